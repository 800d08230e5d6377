// Adaptive routing: from a threshold on, the bytes of a message go before what announces them. What
// arrives is the same, and only the sender decides.

#include "base/counters.hpp"
#include "base/units.hpp"
#include "tests/support/transport_pair.hpp"
#include "verbs/transport/adaptive.hpp"

namespace noria::transport {
namespace {

using test::Connected;

class TransportAdaptive : public test::TransportPair {
 protected:
  // Domains whose senders route so, and so.
  void choose(const char* of_sender, const char* of_receiver) {
    params_.adaptive_threshold_bytes = 1000;
    params_.adaptive_routing = of_sender;
    a_ = test::make_domain(provider_, params_);
    params_.adaptive_routing = of_receiver;
    b_ = test::make_domain(provider_, params_);
    ASSERT_NE(a_, nullptr);
    ASSERT_NE(b_, nullptr);
  }

  // Carries a message in a receive of `offered` bytes; whether it was routed adaptively.
  bool is_adaptive(Connected& link, uint64_t bytes, uint64_t offered) {
    std::vector<std::byte> source(bytes + 1), target(offered + 1);
    const Region from = over(*a_, source), to = over(*b_, target);
    test::paint(source.data(), bytes, ++seed_);
    const uint64_t before = counter_totals()[static_cast<size_t>(Counter::messages_adaptive)];
    Request* const received = link.recv->try_recv(to, 0, offered);
    EXPECT_NE(received, nullptr);
    Request* sent = nullptr;
    EXPECT_TRUE(poll_until([&] {
      if (sent == nullptr) sent = link.send->try_send(from, 0, bytes);
      return sent != nullptr && sent->is_done() && received->is_done();
    })) << link.send->describe()
        << " / " << link.recv->describe();
    EXPECT_EQ(received->bytes(), bytes);
    EXPECT_EQ(test::first_wrong(target.data(), bytes, seed_), bytes);
    link.send->release(sent);
    link.recv->release(received);
    return counter_totals()[static_cast<size_t>(Counter::messages_adaptive)] != before;
  }

 private:
  uint64_t seed_ = 0;
};

TEST_F(TransportAdaptive, Messages_above_the_threshold_are_whole_and_of_their_true_length) {
  choose("on", "off");
  Connected link = connect();
  ASSERT_NE(link.recv, nullptr);
  EXPECT_FALSE(is_adaptive(link, 0, 0));
  EXPECT_FALSE(is_adaptive(link, 1000, 1000));
  EXPECT_TRUE(is_adaptive(link, 1001, 1001));
  EXPECT_TRUE(is_adaptive(link, 1001, 1_MiB)) << "shorter than its receive";
  EXPECT_TRUE(is_adaptive(link, 700001, 2_MiB));
  const uint64_t long_one = std::min(16_MiB, test::long_message(*provider_)) - 3;
  EXPECT_TRUE(is_adaptive(link, long_one, long_one));
  // The window goes round.  Expect: each record is of its own message.
  for (uint64_t i = 0; i < kWindow + 9; ++i)
    ASSERT_TRUE(is_adaptive(link, 1001 + i, 4096)) << "message " << i;
}

TEST_F(TransportAdaptive, What_the_receiver_would_do_with_messages_of_its_own_does_not_matter) {
  choose("off", "on");
  Connected link = connect();
  ASSERT_NE(link.recv, nullptr);
  EXPECT_FALSE(is_adaptive(link, 1_MiB, 1_MiB));
}

TEST_F(TransportAdaptive, Auto_does_on_InfiniBand_and_not_on_Ethernet) {
  choose("auto", "auto");
  Connected link = connect();
  ASSERT_NE(link.recv, nullptr);
  EXPECT_EQ(is_adaptive(link, 1_MiB, 1_MiB), !provider_->ports().front().is_ethernet);
}

TEST_F(TransportAdaptive, A_whole_window_may_be_under_way) {
  choose("on", "on");
  Connected link = connect();
  ASSERT_NE(link.recv, nullptr);
  const Region from = allocate(*a_, 4096), to = allocate(*b_, 4096);
  std::array<Request*, kWindow> received{}, sent{};
  for (Request*& request : received) ASSERT_NE(request = post_receive(link, to, 0, 4096), nullptr);
  for (Request*& request : sent)
    ASSERT_TRUE(poll_until([&] {
      return (request = link.send->try_send(from, 0, 4096)) != nullptr;
    })) << link.send->describe();
  ASSERT_TRUE(poll_until([&] { return sent.back()->is_done() && received.back()->is_done(); }));
  for (const Request* request : received) EXPECT_EQ(request->bytes(), 4096u);
  EXPECT_TRUE(link.send->status().is_ok()) << link.send->describe();
}

}  // namespace
}  // namespace noria::transport
