#include "verbs/transport/limits.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>

namespace noria::transport {
namespace {

TEST(Limits, The_advice_names_the_limit_that_was_met) {
  struct Row {
    Status refusal;
    Limits limits;
    const char* advice;  // the beginning of it
  };
  const Row rows[]{
      {Status::from_errno(Code::no_memory, ENOMEM),
       {.memlock_bytes = 8u << 20},
       "the limit on locked memory is 8192 KiB: raise it with `ulimit -l unlimited`"},
      {Status::from_errno(Code::no_memory, EAGAIN),
       {.memlock_bytes = 65536},
       "the limit on locked memory is 64 KiB"},
      {Status::from_errno(Code::no_memory, ENOMEM), {}, "locked memory is not limited here"},
      {Status::from_errno(Code::no_memory, EMFILE),
       {.descriptors = 1024},
       "the limit on open files is 1024: raise it with `ulimit -n`"}};
  for (const Row& row : rows)
    EXPECT_TRUE(advice_on(row.refusal, row.limits).starts_with(row.advice))
        << advice_on(row.refusal, row.limits);
  // No limit's matter.  Expect: nothing to say.
  EXPECT_EQ(advice_on(Status(Code::peer_lost), {}), "");
  EXPECT_EQ(advice_on(Status::from_errno(Code::bad_argument, EFAULT), {}), "");
  EXPECT_EQ(advice_on(Status::from_errno(Code::no_memory, ENFILE), {}), "");
}

TEST(Limits, Are_those_of_the_process) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(Limits::of_this_process().descriptors,
            limit.rlim_cur == RLIM_INFINITY ? Limits::kNone : limit.rlim_cur);
}

}  // namespace
}  // namespace noria::transport
