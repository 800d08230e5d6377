#include "verbs/transport/staging.hpp"

#include <gtest/gtest.h>

namespace noria::transport {
namespace {

TEST(Staging, Copies_any_few_bytes_and_touches_no_other) {
  std::array<std::byte, 64> from;
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i + 1);
  for (size_t bytes = 0; bytes <= from.size(); ++bytes) {
    std::array<std::byte, 80> to{};
    copy_small(to.data() + 8, from.data(), bytes);
    for (size_t i = 0; i < to.size(); ++i) {
      const bool is_copied = i >= 8 && i < 8 + bytes;
      EXPECT_EQ(to[i], is_copied ? from[i - 8] : std::byte{0}) << bytes << " bytes, at " << i;
    }
  }
}

}  // namespace
}  // namespace noria::transport
