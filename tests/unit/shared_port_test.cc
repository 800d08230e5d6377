#include "verbs/soft/shared_port.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <thread>

namespace noria::soft {
namespace {

std::string own_key(const char* name) { return std::to_string(::getpid()) + "/" + name; }

// Joins while `holder` serves, as its service thread would.
SharedPort join_by(const SharedPort& holder, const std::string& key) {
  std::thread service([&holder] {
    pollfd asked{holder.listener.get(), POLLIN, 0};
    ASSERT_EQ(::poll(&asked, 1, 10'000), 1);
    hand_over(holder);
  });
  auto joined = join_port(key);
  service.join();
  EXPECT_TRUE(joined.is_ok()) << joined.failure();
  return std::move(joined).value();
}

TEST(Shared_port, Without_a_key_it_is_our_own) {
  const SharedPort a = join_port("").value(), b = join_port("").value();
  a.schedule->egress_free = 7;
  EXPECT_EQ(b.schedule->egress_free, 0);
  EXPECT_FALSE(a.listener.is_open());
}

TEST(Shared_port, Whoever_joins_has_the_same_words) {
  const std::string key = own_key("same");
  const SharedPort first = join_port(key).value();
  first.schedule->egress_free = 7;
  const SharedPort second = join_by(first, key);
  EXPECT_EQ(second.schedule->egress_free, 7);
  second.schedule->ingress_free = 9;
  EXPECT_EQ(first.schedule->ingress_free, 9);
}

TEST(Shared_port, It_outlives_the_one_who_made_it) {
  const std::string key = own_key("outlives");
  SharedPort first = join_port(key).value();
  const SharedPort second = join_by(first, key);
  second.schedule->egress_free = 7;
  first = SharedPort();

  // Expect: the second answers in its place.
  const SharedPort third = join_by(second, key);
  EXPECT_EQ(third.schedule->egress_free, 7);
}

TEST(Shared_port, The_name_goes_with_the_last) {
  const std::string key = own_key("last");
  {
    const SharedPort first = join_port(key).value();
    first.schedule->egress_free = 7;
    const SharedPort second = join_by(first, key);
  }
  const SharedPort next = join_port(key).value();
  EXPECT_EQ(next.schedule->egress_free, 0);
}

TEST(Shared_port, Holders_that_do_not_answer_are_named_in_time) {
  const std::string key = own_key("silent");
  const SharedPort silent = join_port(key).value();
  const auto refused = join_port(key);
  ASSERT_FALSE(refused.is_ok());
  EXPECT_NE(refused.failure().find(key), std::string::npos) << refused.failure();
  EXPECT_NE(refused.failure().find("do not answer"), std::string::npos) << refused.failure();
}

}  // namespace
}  // namespace noria::soft
