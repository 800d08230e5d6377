#include "verbs/transport/adaptive.hpp"

#include <gtest/gtest.h>

namespace noria::transport {
namespace {

TEST(Adaptive_routing, Is_for_InfiniBand_unless_it_is_asked_for_or_forbidden) {
  struct Case {
    const char* asked;
    bool is_infiniband, is_on;
  };
  for (const Case& c :
       {Case{"auto", true, true}, Case{"auto", false, false}, Case{"on", true, true},
        Case{"on", false, true}, Case{"off", true, false}, Case{"off", false, false}}) {
    Params params;
    params.adaptive_routing = c.asked;
    EXPECT_EQ(adaptive_from(params, c.is_infiniband), c.is_on ? 8193 : UINT64_MAX) << c.asked;
  }
}

TEST(Adaptive_routing, Takes_NCCLs_words) {
  for (const auto& [word, from] : {std::pair{"NCCL_IB_ADAPTIVE_ROUTING=0", UINT64_MAX},
                                   std::pair{"NCCL_IB_ADAPTIVE_ROUTING=1", uint64_t{4097}},
                                   std::pair{"NCCL_IB_ADAPTIVE_ROUTING=-2", uint64_t{4097}}}) {
    const char* const environment[] = {word, "NCCL_IB_AR_THRESHOLD=4096", nullptr};
    const auto params = load_params(environment);
    ASSERT_TRUE(params) << params.failure();
    EXPECT_EQ(adaptive_from(*params, true), from) << word;
  }
}

}  // namespace
}  // namespace noria::transport
