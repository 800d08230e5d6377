// Stripe: which queue pair carries which bytes of a message.
//
// A message is cut into at most one piece a queue pair, so that all of them are expected to be done
// at one time: each gets what it lacks to its share of all bytes that are then under way. Shares
// start as the weights, what ports and buses promise. A rail that is slower than promised is left
// with more bytes under way, and so gets less of the next message; nobody needs a clock. Every
// kMessagesPerLesson messages the shares move a quarter of the way to what the queue pairs did
// carry, so that messages that are few at a time are cut right too, and a little back to the
// weights, so that nothing is held against a rail for ever.
//
// Every edge but the last is a multiple of kLineBytes from the buffer's start, so that no line is
// split between two work requests. A piece that would be shorter than kLeastPiece is left out.
//
// Costs about twenty instructions a queue pair for a message that is cut, three for one that is
// not, none where there is one queue pair; no division but in a lesson.
//
// Threads: one at a time.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.hpp"
#include "base/units.hpp"
#include "verbs/transport/wire.hpp"

namespace noria::transport {

inline constexpr uint64_t kLineBytes = 128;

// No initial values: a Cut is filled on the data path.
struct Piece {
  uint64_t offset;
  uint64_t bytes;
  uint32_t qp;  // index of the queue pair it goes to
  friend bool operator==(const Piece&, const Piece&) = default;
};

struct Cut {
  std::array<Piece, wire::kMaxQps> piece;
  uint32_t count;
};

// Weights of `qps` queue pairs. Rail r of a side has the rate rates[r], queue pair i lies on rail i
// modulo their number, and gets no more than its part of the rail at either end.
inline std::vector<uint32_t> qp_weights(std::span<const uint32_t> rates,
                                        std::span<const uint32_t> peer_rates, uint32_t qps) {
  const auto part_of = [qps](std::span<const uint32_t> side, uint32_t qp) {
    const auto rails = static_cast<uint32_t>(side.size());
    const uint32_t rail = qp % rails;
    const uint32_t on_it = (qps - rail + rails - 1) / rails;
    return std::max(1u, side[rail] / on_it);
  };
  std::vector<uint32_t> weights;
  for (uint32_t qp = 0; qp < qps; ++qp)
    weights.push_back(std::min(part_of(rates, qp), part_of(peer_rates, qp)));
  return weights;
}

class Stripe {
 public:
  static constexpr uint32_t kOne = 1u << 16;  // a share of all
  // Below it a work request costs more than it carries.
  static constexpr uint64_t kLeastPiece = 4_KiB;
  static constexpr uint32_t kMessagesPerLesson = 64;

  // One weight per queue pair, 1 to kMaxQps of them; if all are zero they count as equal.
  void start(std::span<const uint32_t> weights) {
    NORIA_CHECK(!weights.empty() && weights.size() <= wire::kMaxQps, "1 to kMaxQps weights");
    uint64_t total = 0;
    for (const uint32_t weight : weights) total += weight;
    lanes_.assign(weights.size(), Lane{});
    for (size_t i = 0; i < weights.size(); ++i)
      lanes_[i].promised = lanes_[i].share = static_cast<uint32_t>(
          total != 0 ? weights[i] * uint64_t{kOne} / total : kOne / weights.size());
    count_ = static_cast<uint32_t>(weights.size());
  }

  uint32_t count() const { return count_; }
  uint32_t share(uint32_t qp) const { return lanes_[qp].share; }  // of kOne

  // The queue pair for a message that is not worth cutting: each in turn.
  NORIA_HOT uint32_t take_whole(uint64_t bytes) {
    if (count_ == 1) return 0;
    const uint32_t qp = turn_;
    turn_ = qp + 1 == count_ ? 0 : qp + 1;
    lanes_[qp].take(bytes);
    return qp;
  }

  // Cuts a message, of at most 2^32 - 1 bytes, whose pieces are then under way.
  NORIA_HOT void cut(uint64_t bytes, Cut* out) {
    uint64_t all = bytes;
    for (const Lane& lane : lanes_) all += lane.under_way;
    uint64_t start = 0;
    uint32_t count = 0;
    for (uint32_t i = 0; i < count_; ++i) {
      const Lane& lane = lanes_[i];
      const uint64_t goal = all * lane.share / kOne;
      if (goal < lane.under_way + kLeastPiece) continue;
      const uint64_t piece = std::min((goal - lane.under_way) & ~(kLineBytes - 1), bytes - start);
      if (piece == 0) break;  // the ones before took it all
      out->piece[count++] = {.offset = start, .bytes = piece, .qp = i};
      start += piece;
    }
    if (count == 0) out->piece[count++] = {.offset = 0, .bytes = 0, .qp = most_idle()};
    out->piece[count - 1].bytes += bytes - start;  // what is left by rounding
    out->count = count;
    for (uint32_t i = 0; i < count; ++i) {
      Lane& lane = lanes_[out->piece[i].qp];
      lane.take(out->piece[i].bytes);
      lane.carried += out->piece[i].bytes;
    }
    if (++messages_ == kMessagesPerLesson) learn();
  }

  // The oldest piece of a queue pair is done, or the oldest whole message.
  NORIA_HOT void on_done(uint32_t qp) { lanes_[qp].give_back(); }

 private:
  struct Lane {
    uint64_t under_way = 0;  // bytes
    uint64_t carried = 0;    // bytes of messages that were cut, since the last lesson
    uint32_t share = 0, promised = 0;
    uint32_t first = 0, next = 0;  // of the pieces under way, done in the order of their posting
    std::array<uint32_t, kWindow> pieces{};

    NORIA_HOT void take(uint64_t bytes) {
      under_way += bytes;
      pieces[next++ & (kWindow - 1)] = static_cast<uint32_t>(bytes);
    }
    NORIA_HOT void give_back() { under_way -= pieces[first++ & (kWindow - 1)]; }
  };

  // Out of line: one message of kMessagesPerLesson comes here.
  [[gnu::noinline]] NORIA_HOT void learn() {
    messages_ = 0;
    uint64_t all = 1;
    for (const Lane& lane : lanes_) all += lane.carried;
    for (Lane& lane : lanes_) {
      const auto carried = static_cast<int32_t>(lane.carried * kOne / all);
      const auto share = static_cast<int32_t>(lane.share);
      const auto promised = static_cast<int32_t>(lane.promised);
      const int32_t moved = share + (carried - share) / 4 + (promised - share) / 64;
      // Never nothing: a rail that carries no byte cannot show that it has recovered.
      lane.share = static_cast<uint32_t>(std::max(moved, promised / 16));
      lane.carried = 0;
    }
  }
  // Where every piece would be too short.
  [[gnu::noinline]] NORIA_HOT uint32_t most_idle() const {
    uint32_t best = 0;
    for (uint32_t i = 1; i < count_; ++i)
      if (lanes_[i].under_way < lanes_[best].under_way) best = i;
    return best;
  }

  std::vector<Lane> lanes_;
  uint32_t count_ = 1;
  uint32_t turn_ = 0;
  uint32_t messages_ = 0;  // since the last lesson
};

}  // namespace noria::transport
