// A message of several work requests that ends, or nearly, between two of them: memory goes, a rail
// falls, a request or a post fails. Both ends are of one process, on a clock that stands
// (ibv_noria_turn): half-way is where the test says.

#include <algorithm>
#include <cstdlib>

#include "base/units.hpp"
#include "tests/support/crew.hpp"
#include "tests/support/transport_pair.hpp"
#include "tests/support/verbs_fixture.hpp"

namespace noria::transport {
namespace {

using test::Connected;
using test::first_wrong;
using test::paint;
using test::verbs;

constexpr Nanoseconds kStart = 1_s;
constexpr Nanoseconds kLimit = 1000_s;
constexpr int kIdleRounds = 100'000;  // control sockets are looked at on every 4096th
constexpr uint64_t kBytes = 9_MiB + 77;
constexpr const char* kOneRail = "name=rail0,max_msg=1";
constexpr const char* kTwoRails = "name=rail0,max_msg=1;name=rail1,max_msg=1";

// Both ends and the message. In a process of its own, which reads devices and faults once.
class HalfWay : public test::TransportPair {
 public:
  // The sender's queue pairs are the first that are made.
  HalfWay(const char* devices, const char* faults) {
    ::setenv("NORIA_SOFT_DEVICES", devices, 1);
    ::setenv("NORIA_SOFT_FAULTS", faults, 1);
    verbs().noria_turn(now_);
    SetUp();
  }
  ~HalfWay() override {
    link_ = {};
    from_ = Region();
    to_ = Region();
    TearDown();
  }
  void TestBody() override {}
  using test::TransportPair::post_receive;

  void send() {
    ASSERT_NE(a_, nullptr);
    ASSERT_NE(b_, nullptr);
    link_ = connect({.peer_name = "rank 4", .qps = 1});
    ASSERT_NE(link_.recv, nullptr);
    paint(source_.data(), kBytes, 3);
    from_ = over(*a_, source_);
    to_ = over(*b_, target_);
    ASSERT_NE(received_ = post_receive(link_, to_, 0, kBytes), nullptr);
    ASSERT_TRUE(poll_until([&] {
      if (sent_ == nullptr) sent_ = link_.send->try_send(from_, 0, kBytes);
      return sent_ != nullptr;
    }));
  }
  // Polls both ends until it holds; lets time go on where nothing else does, up to `limit`.
  bool run_until(const std::function<bool()>& is_true, Nanoseconds limit = kLimit) {
    for (int idle = 0; idle < kIdleRounds;) {
      if (is_true()) return true;
      const bool has_come = a_->poll() + b_->poll() > 0;
      const Nanoseconds next = verbs().noria_turn(now_);
      idle = has_come ? 0 : idle + 1;
      if (idle > 4 && next < limit) now_ = std::max(now_, next);
    }
    return false;
  }
  // So many bytes are there, the next request is lost, and time stands.
  void stop_after(uint64_t bytes) {
    ASSERT_TRUE(run_until([&] { return a_->stats().sent_bytes >= bytes; }, now_));
    EXPECT_FALSE(run_until([&] { return sent_->is_done() || received_->is_done(); }, now_));
  }
  void expect_whole() {
    ASSERT_TRUE(run_until([&] { return sent_->is_done() && received_->is_done(); }))
        << link_.send->describe() << " / " << link_.recv->describe();
    EXPECT_TRUE(sent_->status().is_ok()) << link_.send->describe();
    EXPECT_TRUE(received_->status().is_ok()) << link_.recv->describe();
    EXPECT_EQ(received_->bytes(), kBytes);
    EXPECT_EQ(first_wrong(target_.data(), kBytes, 3), kBytes);
  }
  // The sender's words name the peer and `what`; the receiver's say that of the sender.
  void expect_failed(Code code, const std::string& what) {
    ASSERT_TRUE(run_until([&] { return sent_->is_done() && received_->is_done(); }))
        << link_.send->describe() << " / " << link_.recv->describe();
    EXPECT_EQ(sent_->status().code(), code) << link_.send->describe();
    EXPECT_EQ(received_->status().code(), Code::peer_lost) << link_.recv->describe();
    EXPECT_EQ(sent_->bytes(), 0u);
    EXPECT_EQ(received_->bytes(), 0u) << "of a message that did not arrive";
    for (const std::string& text : {link_.send->describe(), link_.recv->describe()})
      for (const std::string& word : {std::string("rank 4"), what})
        EXPECT_NE(text.find(word), std::string::npos) << "'" << word << "' in: " << text;
    EXPECT_NE(link_.recv->describe().find("the peer gave up"), std::string::npos);
    // Nothing is sent after it, and nothing more of it lands.
    EXPECT_EQ(link_.send->try_send(from_, 0, 1), nullptr);
    std::fill(target_.begin(), target_.end(), std::byte{0});
    EXPECT_FALSE(run_until([&] { return target_.back() != std::byte{0}; }));
    EXPECT_EQ(std::count(target_.begin(), target_.end(), std::byte{0}),
              static_cast<ptrdiff_t>(kBytes));
  }

  Nanoseconds now_ = kStart;
  std::vector<std::byte> source_ = std::vector<std::byte>(kBytes);
  std::vector<std::byte> target_ = std::vector<std::byte>(kBytes);
  Region from_, to_;
  Connected link_;
  Request* sent_ = nullptr;
  Request* received_ = nullptr;
};

// What a test does once the message is under way.
void send_over(const char* devices, const char* faults, void (*then)(HalfWay&)) {
  test::Crew crew({[=](test::Post&) {
    HalfWay run(devices, faults);
    ASSERT_NO_FATAL_FAILURE(run.send());
    then(run);
  }});
  EXPECT_EQ(crew.wait(0).exit_code, 0);
}

TEST(TransportLongFault, Parts_and_answers_that_are_lost_for_a_while_harm_it_not) {
  send_over(kOneRail, "qp=1: every msgs=3 do lose for=5ms; qp=1: every msgs=4 do mute for=5ms",
            [](HalfWay& run) { run.expect_whole(); });
}

TEST(TransportLongFault, A_rail_that_is_down_for_a_while_between_two_parts_harms_it_not) {
  send_over(kTwoRails, "port=rail1: after bytes=2M do down for=20ms",
            [](HalfWay& run) { run.expect_whole(); });
}

TEST(TransportLongFault, A_rail_that_stays_down_from_a_part_on_ends_it) {
  send_over(kTwoRails, "port=rail1: after bytes=2M do down",
            [](HalfWay& run) { run.expect_failed(Code::port_down, "rail1"); });
}

TEST(TransportLongFault, A_part_that_fails_ends_it) {
  send_over(kOneRail, "qp=1: after msgs=4 do fail status=12", [](HalfWay& run) {
    run.expect_failed(Code::connection_lost, "transport retries exceeded");
  });
}

TEST(TransportLongFault, What_announces_it_may_fail_where_all_parts_are_there) {
  send_over(kOneRail, "qp=1: after msgs=10 do fail status=12", [](HalfWay& run) {
    run.expect_failed(Code::connection_lost, "transport retries exceeded");
  });
}

TEST(TransportLongFault, Memory_of_the_receiver_that_goes_between_two_parts_ends_it) {
  send_over(kOneRail, "qp=1: after msgs=4 do lose for=10ms", [](HalfWay& run) {
    run.stop_after(4_MiB);
    run.to_ = Region();
    run.expect_failed(Code::connection_lost, "remote access error");
  });
}

TEST(TransportLongFault, Memory_of_the_sender_that_goes_between_two_parts_ends_it) {
  send_over(kOneRail, "qp=1: after msgs=4 do lose for=10ms", [](HalfWay& run) {
    run.stop_after(4_MiB);
    run.from_ = Region();
    run.expect_failed(Code::connection_lost, "local protection error");
  });
}

TEST(TransportLongFault, A_receiver_that_gives_up_between_two_parts_ends_it) {
  send_over(kOneRail, "qp=1: after msgs=4 do lose for=10ms", [](HalfWay& run) {
    run.stop_after(4_MiB);
    run.link_.recv.reset();
    ASSERT_TRUE(run.run_until([&] { return run.sent_->is_done(); }));
    EXPECT_EQ(run.sent_->status().code(), Code::peer_lost) << run.link_.send->describe();
    EXPECT_NE(run.link_.send->describe().find("the peer closed"), std::string::npos)
        << run.link_.send->describe();
  });
}

TEST(TransportLongFault, A_sender_that_gives_up_between_two_parts_ends_it) {
  send_over(kOneRail, "qp=1: after msgs=4 do lose for=10ms", [](HalfWay& run) {
    run.stop_after(4_MiB);
    run.link_.send.reset();
    ASSERT_TRUE(run.run_until([&] { return run.received_->is_done(); }));
    EXPECT_EQ(run.received_->status().code(), Code::peer_lost) << run.link_.recv->describe();
    EXPECT_EQ(run.received_->bytes(), 0u);
  });
}

TEST(TransportLongFault, A_post_that_is_refused_between_two_parts_ends_it) {
  // The first call is the credit's.
  send_over(kOneRail, "call=post_send: after calls=5 do fail errno=12", [](HalfWay& run) {
    run.expect_failed(Code::connection_lost, "posting was refused: Cannot allocate memory");
  });
}

TEST(TransportLongFault, Those_behind_it_end_with_it) {
  send_over(kOneRail, "qp=1: after msgs=4 do lose for=10ms", [](HalfWay& run) {
    run.stop_after(4_MiB);
    // One that waits for its end, and one that does not.
    Request* const next = run.post_receive(run.link_, run.to_, 0, kBytes);
    ASSERT_NE(next, nullptr);
    EXPECT_EQ(run.link_.send->try_send(run.from_, 0, kBytes), nullptr);
    Request* small = nullptr;
    EXPECT_FALSE(run.run_until(
        [&] { return (small = run.link_.send->try_send(run.from_, 0, kBytes)) != nullptr; },
        run.now_));
    ASSERT_TRUE(run.run_until(
        [&] { return (small = run.link_.send->try_send(run.from_, 0, 5)) != nullptr; }, run.now_));
    run.to_ = Region();
    run.expect_failed(Code::connection_lost, "remote access error");
    EXPECT_EQ(small->status().code(), Code::connection_lost);
    EXPECT_EQ(next->status().code(), Code::peer_lost);
  });
}

}  // namespace
}  // namespace noria::transport
