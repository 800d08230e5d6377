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
// A message that is not worth cutting goes where it is expected to be done first; equals take
// turns.
//
// Costs about twenty instructions a queue pair for a message that is cut, ten for one that is not,
// and eight for what is done; no division but in a lesson.
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
  uint32_t bytes;
  uint32_t qp;  // index of the queue pair it goes to
  friend bool operator==(const Piece&, const Piece&) = default;
};

// Pieces follow each other from the start of the message on.
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
    *this = Stripe();
    uint64_t total = 0;
    for (const uint32_t weight : weights) total += weight;
    for (size_t i = 0; i < weights.size(); ++i) {
      const auto share = static_cast<uint32_t>(total != 0 ? weights[i] * uint64_t{kOne} / total
                                                          : kOne / weights.size());
      lanes_[i] = {.promised = share};
      lanes_[i].set_share(share);
    }
    count_ = static_cast<uint32_t>(weights.size());
    pieces_.assign(count_ > 1 ? kWindow + 1 : 0, {});  // the last: a line's, which weighs nothing
  }

  uint32_t count() const { return count_; }
  uint32_t share(uint32_t qp) const { return lanes_[qp].share; }  // of kOne

  // The queue pair for the message in this slot of the window, which is not worth cutting. What it
  // carries is under way from now on; not to be asked where there is one queue pair. Out of line:
  // that is the common case.
  [[gnu::noinline]] NORIA_HOT uint32_t take_whole(uint32_t slot, uint32_t bytes) {
    uint32_t best = turn_;
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0, qp = turn_; i < count_; ++i, qp = next(qp)) {
      const uint64_t time = (lanes_[qp].under_way + bytes) * lanes_[qp].slowness;
      if (time >= least) continue;
      least = time;
      best = qp;
    }
    turn_ = next(best);
    lanes_[best].under_way += bytes;
    under_way_ += bytes;
    pieces_[slot][best] = bytes;
    return best;
  }

  // Cuts the message in this slot; its pieces are under way from now on. As take_whole().
  NORIA_HOT void cut(uint32_t slot, uint32_t bytes, Cut* out) {
    uint32_t* const pieces = pieces_[slot].data();
    const uint64_t all = under_way_ += bytes;
    const uint32_t lanes = count_;
    uint32_t left = bytes, count = 0, qp = 0;
    do {
      Lane& lane = lanes_[qp];
      const auto lack = static_cast<int64_t>(all * lane.share / kOne - lane.under_way);
      if (lack < static_cast<int64_t>(kLeastPiece)) continue;
      const auto piece = static_cast<uint32_t>(
          std::min(static_cast<uint64_t>(lack) & ~(kLineBytes - 1), uint64_t{left}));
      out->piece[count++] = {.bytes = piece, .qp = qp};
      pieces[qp] = piece;
      lane.take(piece);
      left -= piece;
      if (left == 0) break;
    } while (++qp != lanes);
    if (count == 0) [[unlikely]] {
      qp = most_idle();
      out->piece[count++] = {.bytes = 0, .qp = qp};
      pieces[qp] = 0;
    }
    // What is left by rounding.
    Piece& last = out->piece[count - 1];
    last.bytes += left;
    pieces[last.qp] += left;
    lanes_[last.qp].take(left);
    out->count = count;
    if (++messages_ == kMessagesPerLesson) learn();
  }

  // What a queue pair carried of the message in this slot is done.
  NORIA_HOT void on_done(uint32_t slot, uint32_t qp) {
    const uint32_t bytes = pieces_[slot][qp];
    lanes_[qp].under_way -= bytes;
    under_way_ -= bytes;
  }

 private:
  struct Lane {
    uint64_t under_way = 0;  // bytes
    uint32_t share = 0, promised = 0;
    uint64_t slowness = 0;  // time of a byte: 256 on a queue pair that has the share of all
    uint64_t carried = 0;   // bytes of messages that were cut, since the last lesson

    NORIA_HOT void take(uint32_t bytes) {
      under_way += bytes;
      carried += bytes;
    }
    void set_share(uint32_t of_one) {
      share = of_one;
      // That of no share at all is longer than any.
      slowness = of_one != 0 ? (uint64_t{kOne} << 8) / of_one : uint64_t{kOne} << 9;
    }
  };
  static_assert(sizeof(Lane) == 32, "a power of two: a queue pair is found by a shift");

  NORIA_HOT uint32_t next(uint32_t qp) const { return qp + 1 == count_ ? 0 : qp + 1; }
  // Out of line: one message of kMessagesPerLesson comes here.
  [[gnu::noinline]] NORIA_HOT void learn() {
    messages_ = 0;
    uint64_t all = 1;
    for (uint32_t qp = 0; qp < count_; ++qp) all += lanes_[qp].carried;
    for (uint32_t qp = 0; qp < count_; ++qp) {
      Lane& lane = lanes_[qp];
      const auto carried = static_cast<int32_t>(lane.carried * kOne / all);
      const auto share = static_cast<int32_t>(lane.share);
      const auto promised = static_cast<int32_t>(lane.promised);
      const int32_t moved = share + (carried - share) / 4 + (promised - share) / 64;
      // Never nothing: a rail that carries no byte cannot show that it has recovered.
      lane.set_share(static_cast<uint32_t>(std::max(moved, promised / 16)));
      lane.carried = 0;
    }
  }
  // Where every piece would be too short.
  [[gnu::noinline]] NORIA_HOT uint32_t most_idle() const {
    uint32_t best = 0;
    for (uint32_t qp = 1; qp < count_; ++qp)
      if (lanes_[qp].under_way < lanes_[best].under_way) best = qp;
    return best;
  }

  std::array<Lane, wire::kMaxQps> lanes_;
  uint64_t under_way_ = 0;  // on all of them
  // By slot and queue pair: what is under way of each message. A line a message.
  std::vector<std::array<uint32_t, wire::kMaxQps>> pieces_;
  uint32_t count_ = 1;
  uint32_t turn_ = 0;
  uint32_t messages_ = 0;  // since the last lesson
};

}  // namespace noria::transport
