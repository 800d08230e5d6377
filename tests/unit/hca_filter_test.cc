#include "base/hca_filter.hpp"

#include <gtest/gtest.h>

namespace noria {
namespace {

struct Port {
  const char* device;
  int port;
};
constexpr Port kNode[] = {{"mlx5_0", 1},  {"mlx5_1", 1},      {"mlx5_10", 1},
                          {"mlx5_10", 2}, {"mlx5_bond_0", 1}, {"rocep1s0", 1}};

std::string taken(const std::string& text) {
  const auto filter = HcaFilter::parse(text);
  if (!filter) return filter.failure();
  std::string all;
  for (const auto& [device, port] : kNode)
    if (filter->takes(device, port))
      all += (all.empty() ? "" : " ") + std::string(device) + ":" + std::to_string(port);
  return all;
}

TEST(Hca_filter, Takes_what_NCCL_takes) {
  const std::pair<const char*, const char*> table[] = {
      {"", "mlx5_0:1 mlx5_1:1 mlx5_10:1 mlx5_10:2 mlx5_bond_0:1 rocep1s0:1"},
      {"mlx5", "mlx5_0:1 mlx5_1:1 mlx5_10:1 mlx5_10:2 mlx5_bond_0:1"},
      {"mlx5_1", "mlx5_1:1 mlx5_10:1 mlx5_10:2"},
      {"=mlx5_1", "mlx5_1:1"},
      {"=mlx5_0,mlx5_10:2", "mlx5_0:1 mlx5_10:2"},
      {"mlx5_10:2", "mlx5_10:2"},
      {"^mlx5_1", "mlx5_0:1 mlx5_bond_0:1 rocep1s0:1"},
      {"^=mlx5_1", "mlx5_0:1 mlx5_10:1 mlx5_10:2 mlx5_bond_0:1 rocep1s0:1"},
      {" ^ =mlx5_1", "mlx5_0:1 mlx5_10:1 mlx5_10:2 mlx5_bond_0:1 rocep1s0:1"},
      {"^=mlx5_10:2,rocep1s0", "mlx5_0:1 mlx5_1:1 mlx5_10:1 mlx5_bond_0:1"},
      {" mlx5_0 , rocep ,", "mlx5_0:1 rocep1s0:1"},
      {"=mlx5", ""},
      {"mlx6", ""},
      {"mlx5_0:2", ""},
  };
  for (const auto& [text, expected] : table) EXPECT_EQ(taken(text), expected) << text;
}

TEST(Hca_filter, A_failure_names_the_entry) {
  const std::pair<const char*, const char*> table[] = {
      {"mlx5_0:0", "'mlx5_0:0': its port is no number from 1 to 255"},
      {"mlx5_0:x", "'mlx5_0:x': its port is no number from 1 to 255"},
      {"mlx5_0:256", "'mlx5_0:256': its port is no number from 1 to 255"},
      {"a,:1", "':1': it has no device"},
      {"a:1:0:-1", "'a:1:0:-1': its plane is no number from 0 to 255"},
      {"a:1:0:0:0", "'a:1:0:0:0': it has more than device, port, rail and plane"},
      {"^", "it names no device"},
      {"^=,", "it names no device"},
      {"a\nb:x", "'a?b:x': its port is no number from 1 to 255"},
  };
  for (const auto& [text, expected] : table) EXPECT_EQ(taken(text), expected) << text;
}

TEST(Hca_filter, Rail_and_plane_are_said_by_the_first_entry_that_fits) {
  const auto filter = HcaFilter::parse("mlx5_0:1:2:7,mlx5");
  ASSERT_TRUE(filter);
  EXPECT_EQ(filter->says("mlx5_0", 1)->rail, 2);
  EXPECT_EQ(filter->says("mlx5_0", 1)->plane, 7);
  EXPECT_EQ(filter->says("mlx5_1", 1)->rail, -1);
  EXPECT_EQ(filter->says("rocep1s0", 1), nullptr);
  EXPECT_EQ(HcaFilter::parse("^mlx5_0:1:2")->says("mlx5_0", 1), nullptr);
}

}  // namespace
}  // namespace noria
