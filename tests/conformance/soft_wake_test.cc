// Whom the software HCA wakes first. A completion channel is an eventfd here, which a test can
// fill, so that whoever is about to wake its owner is held up.

#include <signal.h>
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

TEST(SoftWake, A_receiver_wakes_for_a_message_whose_sender_was_killed_before_it_could_wake_it) {
  Crew crew({[](Post& p) {
               Link link(p, kSleepy);
               link.wire.meet();
               ASSERT_EQ(ibv_req_notify_cq(link.cq.get(), 0), 0);
               std::thread poster([&] { EXPECT_EQ(post(link.qp.get(), {.id = 1}), 0); });
               // Its message is there, and nobody can wake the receiver: here it ends.
               link.take_event();
               p.parent.send(uint8_t{1});
               poster.join();
             },
             [](Post& p) {
               Link link(p, kSleepy);
               ASSERT_EQ(post_recv(link.qp.get(), 1, {}), 0);
               ASSERT_EQ(ibv_req_notify_cq(link.cq.get(), 0), 0);
               uint64_t count = kFull;
               ASSERT_EQ(::write(link.channel->fd, &count, sizeof count), ssize_t{sizeof count});
               link.wire.meet();
               p.parent.recv<uint8_t>();  // the sender is dead
               ASSERT_EQ(::read(link.channel->fd, &count, sizeof count), ssize_t{sizeof count});
               // Expect: an event all the same, and the message.
               ASSERT_NO_FATAL_FAILURE(link.take_event());
               expect_completion(link.cq.get(), 1);
             }});
  crew.wire(0).recv<uint8_t>();
  crew.kill(0, SIGKILL);
  EXPECT_EQ(crew.wait(0).signal, SIGKILL);
  crew.wire(1).send(uint8_t{1});
  EXPECT_EQ(crew.wait(1).exit_code, 0);
}

}  // namespace
}  // namespace noria::test
