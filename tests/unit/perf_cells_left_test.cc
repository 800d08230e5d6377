#include "perf/cells_left.hpp"

#include <gtest/gtest.h>

#include <string>

namespace noria::perf {
namespace {

using plugin::tuner::Collective;

// "Tree/LL Ring/LL"
std::string left(Collective collective, const char* algo, const char* proto) {
  std::string text;
  for (size_t cell = 0; cell < plugin::tuner::kCells; ++cell)
    if (has_cell(cells_left(collective, algo, proto), cell))
      text += (text.empty() ? "" : " ") + std::string(name_of(plugin::tuner::algorithm_of(cell))) +
              "/" + std::string(name_of(plugin::tuner::protocol_of(cell)));
  return text;
}
std::string of_all_reduce(const char* algo, const char* proto) {
  return left(Collective::all_reduce, algo, proto);
}

TEST(Cells_left, Without_variables_all_that_NCCL_has_for_the_collective) {
  EXPECT_EQ(left(Collective::reduce, "", ""), "Ring/LL Ring/LL128 Ring/Simple");
  EXPECT_EQ(left(Collective::all_gather, "", "Simple"),
            "Ring/Simple CollNetDirect/Simple NVLS/Simple PAT/Simple");
}

TEST(Cells_left, Lists_name_what_is_used_or_what_is_not) {
  EXPECT_EQ(of_all_reduce("RING,tree", "LL"), "Tree/LL Ring/LL");
  EXPECT_EQ(of_all_reduce("^Ring,CollNetDirect,CollNetChain,NVLS", "^LL128,Simple"), "Tree/LL");
  EXPECT_EQ(of_all_reduce("^Ring,CollNetDirect,CollNetChain,NVLS", "^LL128,LL"),
            "Tree/Simple NVLSTree/Simple");
  EXPECT_EQ(of_all_reduce("Ring,Rong", "LL"), "Ring/LL");
  EXPECT_EQ(of_all_reduce("Rong", ""), "");
}

TEST(Cells_left, Of_a_function_the_last_that_is_for_the_collective_counts) {
  const char* const algo = "ring;AllReduce:tree,nvls;broadcast:ring";
  EXPECT_EQ(of_all_reduce(algo, "Simple"), "Tree/Simple NVLS/Simple");
  EXPECT_EQ(left(Collective::reduce_scatter, algo, "Simple"), "Ring/Simple");
  EXPECT_EQ(of_all_reduce("allreduce:^nvls,collnetdirect,collnetchain,nvlstree", "allreduce:ll"),
            "Tree/LL Ring/LL");
  EXPECT_EQ(of_all_reduce("allgather:ring", "LL"), "Tree/LL Ring/LL");
}

}  // namespace
}  // namespace noria::perf
