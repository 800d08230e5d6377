// The decision: which algorithm and protocol, for one operation of one communicator.
//
// A pure function of the communicator's rows, the collective, its size and NCCL's costs, which are
// equal on all ranks: so ranks cannot disagree. No allocation; a search in the index and a look at
// 21 costs.
//
// - A cost below zero is ignored by NCCL, or by the user's NCCL_ALGO or NCCL_PROTO, and stays so.
// - The first row that fits and is not ignored is ours. NCCL's own choice is the least cost.
// - Where a row says of NCCL's choice too how long it takes, and ours is not predicted to be better
//   by more than the table's max_regret, NCCL's stands. So it does where ours is modelled and
//   nothing is predicted of NCCL's: there a gain is not known.
//
// Threads: any thread.
#pragma once

#include <cstdint>
#include <span>

#include "base/check.hpp"
#include "plugin/tuner/index.hpp"

namespace noria::plugin::tuner {

// NCCL's cost table: [algorithms][protocols] as one array.
struct Costs {
  float* values = nullptr;
  uint32_t algorithms = 0;
  uint32_t protocols = 0;

  bool has(const Row& row) const {
    return static_cast<uint32_t>(row.algorithm) < algorithms &&
           static_cast<uint32_t>(row.protocol) < protocols;
  }
  size_t place_of(Algorithm algorithm, Protocol protocol) const {
    return static_cast<size_t>(algorithm) * protocols + static_cast<size_t>(protocol);
  }
  float& of(const Row& row) const { return values[place_of(row.algorithm, row.protocol)]; }
  size_t size() const { return size_t{algorithms} * protocols; }
};

inline constexpr size_t kNoPlace = SIZE_MAX;
// The least cost that is not ignored; kNoPlace when all are.
NORIA_HOT size_t least_of(const Costs& costs);

enum class Reason : uint8_t {
  no_row,          // none fits, or all that fit are ignored
  same,            // NCCL chooses the same
  too_small_gain,  // NCCL's choice is as good, within max_regret, as far as is known
  override,
};

struct Decision {
  Reason reason = Reason::no_row;
  const Row* row = nullptr;          // ours, where one fits
  const Row* row_of_nccl = nullptr;  // what the table says of NCCL's choice

  // Whether NCCL shall do as the row says.
  bool is_ours() const { return reason == Reason::same || reason == Reason::override; }
};

NORIA_HOT Decision decide(const Table& table, const Index& index, Collective collective,
                          uint64_t bytes, const Costs& costs);

// The same, and what follows of it: where the choice is ours its cost becomes 0, below all others.
NORIA_HOT Decision choose(const Table& table, const Index& index, Collective collective,
                          uint64_t bytes, const Costs& costs);

// What LL128 costs is ignored, unless nothing else is left to NCCL: returns whether that is so.
NORIA_HOT bool ignore_ll128(const Costs& costs);

}  // namespace noria::plugin::tuner
