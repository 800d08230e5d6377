#include "perf/exit_codes.hpp"

#include <gtest/gtest.h>

namespace noria::perf {
namespace {

TEST(Show_failure_first, A_failure_is_shown_before_what_its_place_holds_goes_and_only_once) {
  struct Slow {
    ~Slow() { std::fputs("gone\n", stderr); }
  };
  testing::internal::CaptureStderr();
  try {
    const Slow slow;
    show_failure_first("tool", [] { throw ToolError(Exit::peer, "the link is down"); });
  } catch (const ToolError& error) {
    error.show("tool");
    EXPECT_EQ(error.code(), Exit::peer);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "tool: the link is down\ngone\n");
}

TEST(Show_failure_first, What_does_not_fail_returns) {
  EXPECT_EQ(show_failure_first("tool", [] { return 7; }), 7);
}

}  // namespace
}  // namespace noria::perf
