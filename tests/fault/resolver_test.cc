// A resolver that does not answer, as one whose server is cut off for many seconds.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <netdb.h>

#include <condition_variable>
#include <mutex>

#include "bucketing/control.hpp"
#include "bucketing/tcp.hpp"
#include "tests/support/no_threads.hpp"
#include "tests/support/ranks.hpp"

namespace {

std::mutex mutex;
std::condition_variable changed;
bool is_cut_off = true;

void reconnect() {
  const std::lock_guard lock(mutex);
  is_cut_off = false;
  changed.notify_all();
}

}  // namespace

// In place of the system's: silent for one name until the test lets it go on.
extern "C" int getaddrinfo(const char* host, const char* service, const addrinfo* hints,
                           addrinfo** list) {
  if (std::string(host) == "silent.example") {
    std::unique_lock lock(mutex);
    changed.wait(lock, [] { return !is_cut_off; });
    return EAI_NONAME;
  }
  static const auto real =
      reinterpret_cast<decltype(&getaddrinfo)>(dlsym(RTLD_NEXT, "getaddrinfo"));
  return real(host, service, hints, list);
}

namespace noria::bucketing {
namespace {

using test::contains;

TEST(ResolverTest, Names_are_found_and_numbers_need_no_resolver) {
  const auto named = resolve("localhost", 4711, now_ns() + 20_s);
  ASSERT_TRUE(named.is_ok()) << named.failure();
  const std::string host = named->front().host();
  EXPECT_TRUE(host.starts_with("127.") || host == "::1") << host;
  EXPECT_EQ(named->front().port(), 4711);
  EXPECT_TRUE(resolve("127.0.0.1", 4711, 0).is_ok());
}

TEST(ResolverTest, Without_a_thread_is_not_asked_and_the_reason_is_told) {
  const test::NoThreads none;
  const auto named = resolve("localhost", 4711, now_ns() + 20_s);
  ASSERT_FALSE(named.is_ok());
  EXPECT_TRUE(contains(named.failure(), "'localhost': no thread for the resolver"))
      << named.failure();
  EXPECT_TRUE(contains(named.failure(), "ulimit -u")) << named.failure();
}

TEST(ResolverTest, That_is_silent_does_not_hold_a_rank_past_its_start_time_out) {
  for (const int32_t rank : {0, 1}) {
    const auto control = ControlPlane::join({.rank = rank,
                                             .size = 2,
                                             .root_host = "silent.example",
                                             .root_port = 4711,
                                             .deadline = now_ns() + 50_ms});
    ASSERT_FALSE(control.is_ok());
    EXPECT_EQ(control.failure().code, NORIA_E_NET);
    EXPECT_TRUE(contains(control.failure().text, "'silent.example'")) << control.failure().text;
    EXPECT_TRUE(contains(control.failure().text, "resolver")) << control.failure().text;
  }
  // The threads that still ask end without harm.
  reconnect();
}

}  // namespace
}  // namespace noria::bucketing
