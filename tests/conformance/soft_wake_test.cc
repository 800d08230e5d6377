// Whom the software HCA wakes first. A completion channel is an eventfd here, which a test can
// fill, so that whoever is about to wake its owner is held up.

#include <unistd.h>

#include <thread>

#include "tests/support/verbs_link.hpp"

namespace noria::test {
namespace {

constexpr LinkSpec kSleepy{.sleeps = true};
constexpr uint64_t kFull = UINT64_MAX - 1;  // all that an eventfd counts: one more must wait

// A sleeper that answers at once is not quicker than the completion of what it answers: who waits
// for one and then for the other has room in its send queue by then.
TEST(SoftWake, The_sender_has_its_completion_before_the_receiver_is_woken) {
  run_pair(
      [](Post& p) {
        Link link(p, kSleepy);
        link.wire.meet();
        ASSERT_EQ(ibv_req_notify_cq(link.cq.get(), 0), 0);
        std::thread poster([&] { EXPECT_EQ(post(link.qp.get(), {.id = 1}), 0); });
        // Expect: the completion, while nobody can wake the receiver.
        EXPECT_TRUE(link.has_event(10000));
        link.wire.meet();
        poster.join();
        ASSERT_NO_FATAL_FAILURE(link.take_event());
        expect_completion(link.cq.get(), 1);
        link.wire.meet();
      },
      [](Post& p) {
        Link link(p, kSleepy);
        ASSERT_EQ(post_recv(link.qp.get(), 1, {}), 0);
        ASSERT_EQ(ibv_req_notify_cq(link.cq.get(), 0), 0);
        uint64_t count = kFull;
        ASSERT_EQ(::write(link.channel->fd, &count, sizeof count), ssize_t{sizeof count});
        link.wire.meet();
        link.wire.meet();
        ASSERT_EQ(::read(link.channel->fd, &count, sizeof count), ssize_t{sizeof count});
        ASSERT_NO_FATAL_FAILURE(link.take_event());
        expect_completion(link.cq.get(), 1);
        link.wire.meet();
      });
}

}  // namespace
}  // namespace noria::test
