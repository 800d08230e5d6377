// Stripe: how a message is cut into pieces, one per queue pair at most.
//
// Pure functions over plain values. Shares are weights turned into fixed-point edges once per
// connection; cut() then multiplies and shifts, and divides by nothing. Every edge but the last is
// a multiple of kLineBytes from the buffer's start, so that no line is split between two work
// requests. A message below `stripe_min` is one piece; a piece that would be empty is left out; a
// message of zero bytes is one piece of zero bytes.
//
// Threads: values.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.hpp"
#include "verbs/transport/wire.hpp"

namespace noria::transport {

inline constexpr uint64_t kLineBytes = 128;

struct Shares {
  static constexpr unsigned kFractionBits = 16;

  // edge[i]: where piece i ends, as a fraction of the message; the last is one.
  std::array<uint32_t, wire::kMaxQps> edge{};
  uint32_t count = 1;
};

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

// One weight per queue pair, 1 to kMaxQps of them; if all are zero they count as equal.
inline Shares make_shares(std::span<const uint32_t> weights) {
  NORIA_CHECK(!weights.empty() && weights.size() <= wire::kMaxQps, "1 to kMaxQps weights");
  uint64_t total = 0;
  for (const uint32_t weight : weights) total += weight;
  Shares shares;
  shares.count = static_cast<uint32_t>(weights.size());
  uint64_t sum = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    sum += total != 0 ? weights[i] : 1;
    const uint64_t whole = total != 0 ? total : weights.size();
    shares.edge[i] = static_cast<uint32_t>((sum << Shares::kFractionBits) / whole);
  }
  return shares;
}

// `only_qp` takes a message that is not worth cutting. Messages may have up to 2^54 bytes.
NORIA_HOT inline void cut(uint64_t bytes, const Shares& shares, uint64_t stripe_min,
                          uint32_t only_qp, Cut* out) {
  if (shares.count == 1 || bytes < stripe_min) {
    out->piece[0] = {.offset = 0, .bytes = bytes, .qp = only_qp};
    out->count = 1;
    return;
  }
  const uint64_t lines = bytes / kLineBytes;
  uint64_t start = 0;
  uint32_t count = 0;
  for (uint32_t i = 0; i < shares.count; ++i) {
    const uint64_t end = i + 1 == shares.count
                             ? bytes
                             : (lines * shares.edge[i] >> Shares::kFractionBits) * kLineBytes;
    if (end == start) continue;
    out->piece[count++] = {.offset = start, .bytes = end - start, .qp = i};
    start = end;
  }
  if (count == 0) out->piece[count++] = {.offset = 0, .bytes = 0, .qp = only_qp};
  out->count = count;
}

}  // namespace noria::transport
