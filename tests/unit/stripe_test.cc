#include "verbs/transport/stripe.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "base/units.hpp"

namespace noria::transport {
namespace {

Cut cut_by(uint64_t bytes, const std::vector<uint32_t>& weights, uint64_t stripe_min) {
  Cut out;
  cut(bytes, make_shares(weights), stripe_min, 0, &out);
  return out;
}

// What holds for every cut.
void expect_sound(const Cut& cut, uint64_t bytes, size_t queue_pairs) {
  ASSERT_GE(cut.count, 1u);
  ASSERT_LE(cut.count, queue_pairs);
  uint64_t next = 0;
  for (uint32_t i = 0; i < cut.count; ++i) {
    const Piece& piece = cut.piece[i];
    EXPECT_EQ(piece.offset, next) << "pieces follow each other without gap";
    EXPECT_EQ(piece.offset % kLineBytes, 0u) << "no line is split";
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

TEST(Stripe, Covers_every_byte_once_on_line_boundaries_for_any_size_and_weights) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 20000; ++round) {
    std::vector<uint32_t> weights(1 + random() % wire::kMaxQps);
    for (uint32_t& weight : weights)
      weight = static_cast<uint32_t>(random() >> (32 + random() % 32));
    const uint64_t bytes = random() >> (10 + random() % 54);
    expect_sound(cut_by(bytes, weights, 4096), bytes, weights.size());
  }
}

TEST(Stripe, Gives_each_queue_pair_its_share_to_within_a_line_and_a_65536th) {
  const std::vector<uint32_t> weights{400000, 100000, 200000, 100000};
  const uint64_t bytes = 64_MiB;
  const Cut cut = cut_by(bytes, weights, 128_KiB);
  ASSERT_EQ(cut.count, 4u);
  for (uint32_t i = 0; i < 4; ++i)
    EXPECT_NEAR(static_cast<double>(cut.piece[i].bytes),
                static_cast<double>(bytes) * weights[i] / 800000, 128 + 64.0 * 1024 * 1024 / 65536);
}

TEST(Stripe, Small_messages_stay_whole_on_the_queue_pair_that_is_next) {
  const Shares shares = make_shares(std::vector<uint32_t>{1, 1, 1, 1});
  Cut out;
  cut(128_KiB - 1, shares, 128_KiB, 2, &out);
  ASSERT_EQ(out.count, 1u);
  EXPECT_EQ(out.piece[0], (Piece{.offset = 0, .bytes = 128_KiB - 1, .qp = 2}));
  cut(128_KiB, shares, 128_KiB, 2, &out);
  EXPECT_EQ(out.count, 4u);
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
  const Cut cut = cut_by(0, {1, 1}, 4096);
  ASSERT_EQ(cut.count, 1u);
  EXPECT_EQ(cut.piece[0].bytes, 0u);
}

TEST(Stripe, A_queue_pair_of_no_weight_gets_nothing) {
  const Cut cut = cut_by(1_MiB, {1, 0, 1}, 4096);
  ASSERT_EQ(cut.count, 2u);
  EXPECT_EQ(cut.piece[0].qp, 0u);
  EXPECT_EQ(cut.piece[1].qp, 2u);
}

TEST(Stripe, Weights_that_are_all_zero_count_as_equal) {
  const Cut cut = cut_by(1_MiB, {0, 0}, 4096);
  ASSERT_EQ(cut.count, 2u);
  EXPECT_EQ(cut.piece[0].bytes, cut.piece[1].bytes);
}

}  // namespace
}  // namespace noria::transport
