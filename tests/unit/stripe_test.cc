#include "verbs/transport/stripe.hpp"

#include <gtest/gtest.h>

#include <queue>
#include <random>
#include <vector>

#include "base/units.hpp"

namespace noria::transport {
namespace {

Cut cut_by(uint32_t bytes, const std::vector<uint32_t>& weights) {
  Stripe stripe;
  stripe.start(weights);
  Cut out;
  stripe.cut(0, bytes, &out);
  return out;
}

// What holds for every cut.
void expect_sound(const Cut& cut, uint64_t bytes, size_t queue_pairs) {
  ASSERT_GE(cut.count, 1u);
  ASSERT_LE(cut.count, queue_pairs);
  uint64_t next = 0;
  for (uint32_t i = 0; i < cut.count; ++i) {
    const Piece& piece = cut.piece[i];
    EXPECT_EQ(next % kLineBytes, 0u) << "no line is split";
    EXPECT_LT(piece.qp, queue_pairs);
    if (i > 0) {
      EXPECT_GT(piece.qp, cut.piece[i - 1].qp) << "one piece a queue pair";
    }
    if (bytes != 0) {
      EXPECT_GT(piece.bytes, 0u);
    }
    next += piece.bytes;
  }
  EXPECT_EQ(next, bytes);
}

TEST(Stripe, Covers_every_byte_once_on_line_boundaries_whatever_is_under_way) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<uint32_t> weights(2 + random() % (wire::kMaxQps - 1));
    for (uint32_t& weight : weights)
      weight = static_cast<uint32_t>(random() >> (32 + random() % 32));
    Stripe stripe;
    stripe.start(weights);
    std::vector<std::queue<uint32_t>> under_way(weights.size());  // slots, as the device has them
    for (uint32_t message = 0; message < 300; ++message) {
      const auto bytes = static_cast<uint32_t>(random() >> (34 + random() % 30));
      const uint32_t slot = message % kWindow;
      Cut cut;
      if (random() % 4 == 0)
        cut = {.piece = {{{.bytes = bytes, .qp = stripe.take_whole(slot, bytes)}}}, .count = 1};
      else
        stripe.cut(slot, bytes, &cut);
      expect_sound(cut, bytes, weights.size());
      if (testing::Test::HasFailure()) return;
      for (uint32_t i = 0; i < cut.count; ++i) under_way[cut.piece[i].qp].push(slot);
      // Some of them answer, and whose slot is next must.
      for (uint32_t qp = 0; qp < weights.size(); ++qp)
        while (!under_way[qp].empty() &&
               (under_way[qp].front() == (message + 1) % kWindow || random() % 2 == 0)) {
          stripe.on_done(under_way[qp].front(), qp);
          under_way[qp].pop();
        }
    }
  }
}

TEST(Stripe, Gives_each_queue_pair_its_share_to_within_lines_and_a_65536th) {
  const std::vector<uint32_t> weights{400000, 100000, 200000, 100000};
  const uint32_t bytes = 64_MiB;
  const Cut cut = cut_by(bytes, weights);
  ASSERT_EQ(cut.count, 4u);
  for (uint32_t i = 0; i < 4; ++i)
    EXPECT_NEAR(static_cast<double>(cut.piece[i].bytes),
                static_cast<double>(bytes) * weights[i] / 800000,
                4 * 128 + 64.0 * 1024 * 1024 / 65536);
}

TEST(Stripe, Whole_messages_go_to_equal_queue_pairs_in_turn) {
  Stripe stripe;
  stripe.start(std::vector<uint32_t>{1, 1, 1});
  // Each behind those before, and each alone, of bytes and of none.  Expect: the same.
  for (const uint32_t qp : {0u, 1u, 2u, 0u, 1u}) EXPECT_EQ(stripe.take_whole(qp, 100), qp);
  for (const uint32_t bytes : {100u, 0u}) {
    stripe.start(std::vector<uint32_t>{1, 1, 1});
    for (const uint32_t qp : {0u, 1u, 2u, 0u, 1u}) {
      EXPECT_EQ(stripe.take_whole(7, bytes), qp);
      stripe.on_done(7, qp);
    }
  }
}

TEST(Stripe, Whole_messages_go_by_weight_and_by_what_is_under_way) {
  Stripe stripe;
  stripe.start(std::vector<uint32_t>{300, 100, 0});
  std::array<int, 3> messages{};
  for (uint32_t slot = 0; slot < 200; ++slot) ++messages[stripe.take_whole(slot, 64_KiB)];
  // Expect: three of four on the one that is three times as fast, none on that of no weight.
  EXPECT_NEAR(messages[0], 150, 1);
  EXPECT_NEAR(messages[1], 50, 1);
  // A rail stalls under a message that was cut.  Expect: what follows passes it by.
  stripe.start(std::vector<uint32_t>{100, 100});
  Cut cut;
  stripe.cut(0, 2_MiB, &cut);
  stripe.on_done(0, 1);
  for (uint32_t slot = 1; slot <= 15; ++slot) EXPECT_EQ(stripe.take_whole(slot, 64_KiB), 1u);
  // With one under way the faster takes all: each is done sooner there.
  stripe.start(std::vector<uint32_t>{234, 400});
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(stripe.take_whole(0, 8), 1u);
    stripe.on_done(0, 1);
  }
}

TEST(Stripe, A_piece_too_short_to_be_worth_a_request_is_left_out) {
  // One in a hundred of 128 KiB.  Expect: the other carries all.
  const Cut cut = cut_by(128_KiB, {1, 99});
  ASSERT_EQ(cut.count, 1u);
  EXPECT_EQ(cut.piece[0], (Piece{.bytes = 128_KiB, .qp = 1}));
  // Every piece would be.  Expect: one carries all.
  EXPECT_EQ(cut_by(5_KiB, {1, 1}).count, 1u);
}

TEST(Stripe, What_waits_on_a_queue_pair_counts_as_its_own) {
  Stripe stripe;
  stripe.start(std::vector<uint32_t>{1, 1});
  Cut cut;
  stripe.cut(0, 1_MiB, &cut);
  ASSERT_EQ(cut.count, 2u);
  // The first is done, the second is not.  Expect: the next message goes where nothing waits.
  stripe.on_done(0, 0);
  stripe.cut(1, 512_KiB, &cut);
  ASSERT_EQ(cut.count, 1u);
  EXPECT_EQ(cut.piece[0].qp, 0u);
}

TEST(Stripe, A_queue_pair_weighs_its_part_of_the_slower_of_its_two_rails) {
  struct Row {
    std::vector<uint32_t> rates, peer_rates;
    uint32_t qps;
    std::vector<uint32_t> weights;
  };
  for (const Row& row :
       {Row{{400}, {400}, 1, {400}}, Row{{400, 234}, {400, 400}, 2, {400, 234}},
        // Several on a rail share it, however they come out even.
        Row{{400, 200}, {400, 200}, 4, {200, 100, 200, 100}},
        Row{{400, 100, 200}, {400, 100, 200}, 5, {200, 50, 200, 200, 50}},
        // Unlike numbers of rails.
        Row{{400}, {200, 100}, 2, {200, 100}}, Row{{200, 100}, {400}, 2, {200, 100}},
        Row{{400, 400}, {200, 200, 100, 100}, 4, {200, 200, 100, 100}},
        Row{{100, 100, 100}, {300, 300}, 3, {100, 100, 100}},
        // What no port is, a peer may still say.
        Row{{400, 400}, {0, 400}, 2, {1, 400}}})
    EXPECT_EQ(qp_weights(row.rates, row.peer_rates, row.qps), row.weights)
        << row.rates.size() << " x " << row.peer_rates.size() << ", " << row.qps << " queue pairs";
}

TEST(Stripe, A_message_of_nothing_is_one_piece_of_nothing) {
  const Cut cut = cut_by(0, {1, 1});
  ASSERT_EQ(cut.count, 1u);
  EXPECT_EQ(cut.piece[0].bytes, 0u);
}

TEST(Stripe, A_queue_pair_of_no_weight_gets_nothing) {
  const Cut cut = cut_by(1_MiB, {1, 0, 1});
  ASSERT_EQ(cut.count, 2u);
  EXPECT_EQ(cut.piece[0].qp, 0u);
  EXPECT_EQ(cut.piece[1].qp, 2u);
}

TEST(Stripe, Weights_that_are_all_zero_count_as_equal) {
  const Cut cut = cut_by(1_MiB, {0, 0});
  ASSERT_EQ(cut.count, 2u);
  EXPECT_EQ(cut.piece[0].bytes, cut.piece[1].bytes);
}

// ---- rails that are not what they promise -------------------------------------------------------

// A sender with a window of messages over rails of any rate: a piece takes its bytes over the rate
// of its rail, behind those before it, and its answer a latency more. Messages end in order.
class Traffic {
 public:
  Traffic(const std::vector<uint32_t>& weights, std::vector<double> rates, uint32_t depth,
          uint32_t message_bytes)
      : rates_(std::move(rates)), free_at_(rates_.size()), depth_(depth), bytes_(message_bytes) {
    stripe_.start(weights);
  }

  void set_rates(const std::vector<double>& rates) { rates_ = rates; }
  // Bytes a unit of time over `messages` more.
  double run(uint32_t messages) {
    const double start = now_;
    for (const uint32_t goal = ended_ + messages; ended_ < goal;) {
      while (begun_ < ended_ + depth_) post();
      const Answer answer = answers_.top();
      answers_.pop();
      now_ = answer.at;
      stripe_.on_done(answer.message % kWindow, answer.qp);
      --pieces_left_[answer.message % kWindow];
      for (; ended_ < begun_ && pieces_left_[ended_ % kWindow] == 0; ++ended_) {
      }
    }
    return static_cast<double>(messages) * bytes_ / (now_ - start);
  }
  double share(uint32_t qp) const { return static_cast<double>(stripe_.share(qp)) / Stripe::kOne; }

 private:
  struct Answer {
    double at;
    uint32_t qp;
    uint32_t message;
    bool operator<(const Answer& other) const { return at > other.at; }  // the earliest on top
  };

  void post() {
    Cut cut;
    stripe_.cut(begun_ % kWindow, bytes_, &cut);
    pieces_left_[begun_ % kWindow] = cut.count;
    for (uint32_t i = 0; i < cut.count; ++i) {
      const Piece& piece = cut.piece[i];
      double& free_at = free_at_[piece.qp];
      free_at = std::max(free_at, now_) + static_cast<double>(piece.bytes) / rates_[piece.qp];
      answers_.push({.at = free_at + kLatency, .qp = piece.qp, .message = begun_});
    }
    ++begun_;
  }

  static constexpr double kLatency = 2;  // microseconds, where a rate is bytes a microsecond

  Stripe stripe_;
  std::vector<double> rates_, free_at_;
  std::priority_queue<Answer> answers_;
  std::array<uint32_t, kWindow> pieces_left_{};
  double now_ = 0;
  uint32_t begun_ = 0, ended_ = 0;
  uint32_t depth_;
  uint32_t bytes_;
};

constexpr double kGbit = 125;  // bytes a microsecond

TEST(Stripe, Rails_of_400_and_234_carry_their_sum_though_both_promise_400) {
  for (const uint32_t bytes : {128u << 10, 512u << 10, 4u << 20})
    for (const uint32_t depth : {4u, 8u, kWindow}) {
      Traffic traffic({400, 400}, {400 * kGbit, 234 * kGbit}, depth, bytes);
      traffic.run(16 * Stripe::kMessagesPerLesson);
      const double rate = traffic.run(1000);
      const bool is_too_little = depth == 4 && bytes == 128_KiB;  // under way, to fill both pipes
      EXPECT_GE(rate, (is_too_little ? 0.85 : 0.98) * 634 * kGbit) << depth << " of " << bytes;
    }
}

TEST(Stripe, A_rail_that_drops_to_a_third_gets_less_within_four_lessons) {
  Traffic traffic({400, 400}, {400 * kGbit, 400 * kGbit}, 8, 512_KiB);
  traffic.run(1000);
  traffic.set_rates({400 * kGbit, 133 * kGbit});
  traffic.run(4 * Stripe::kMessagesPerLesson);
  EXPECT_GE(traffic.run(200), 0.95 * 533 * kGbit);
  traffic.run(16 * Stripe::kMessagesPerLesson);
  EXPECT_NEAR(traffic.share(1), 133.0 / 533, 0.03);
  EXPECT_GE(traffic.run(200), 0.98 * 533 * kGbit);
  // It recovers.  Expect: it gets its half back as fast.
  traffic.set_rates({400 * kGbit, 400 * kGbit});
  traffic.run(4 * Stripe::kMessagesPerLesson);
  EXPECT_GE(traffic.run(200), 0.95 * 800 * kGbit);
}

TEST(Stripe, Equal_rails_stay_equal_and_shares_that_are_right_stay_where_they_are) {
  for (const uint32_t depth : {1u, 2u, 8u, kWindow}) {
    Traffic four({400, 400, 400, 400}, std::vector<double>(4, 400 * kGbit), depth, 512_KiB);
    Traffic two({400, 234}, {400 * kGbit, 234 * kGbit}, depth, 512_KiB);
    for (int i = 0; i < 100; ++i) {
      four.run(Stripe::kMessagesPerLesson);
      two.run(Stripe::kMessagesPerLesson);
      for (uint32_t qp = 0; qp < 4; ++qp) ASSERT_NEAR(four.share(qp), 0.25, 0.01) << depth;
      ASSERT_NEAR(two.share(0), 400.0 / 634, 0.015) << depth;
    }
  }
}

TEST(Stripe, A_rail_that_stands_still_is_left_a_little_and_takes_no_more) {
  Traffic traffic({400, 400}, {400 * kGbit, 0.4 * kGbit}, 8, 1_MiB);
  traffic.run(32 * Stripe::kMessagesPerLesson);
  EXPECT_LT(traffic.share(1), 0.08);
  EXPECT_GE(traffic.share(1), 0.5 / 16 - 0.001);
}

}  // namespace
}  // namespace noria::transport
