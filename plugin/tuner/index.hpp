// Index: the rows that fit one communicator, to be found by collective and size.
//
// Cut at every size where a row begins or ends; each piece lists the rows that fit there in the
// table's order, without those that an earlier row of the same algorithm and protocol hides. So a
// look is a search among the pieces of one power of two, whatever the table's length.
//
// Costs, for n rows: n log n to make, and at most 21 numbers a piece, of which there are 2n + 1.
//
// Threads: make() init only; afterwards immutable.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.hpp"
#include "plugin/tuner/table.hpp"

namespace noria::plugin::tuner {

// What NCCL tells of a communicator.
struct Facts {
  uint64_t ranks = 1;
  uint64_t nodes = 1;

  // 0 where nodes have unlike numbers: only rows for any number fit.
  uint64_t ranks_per_node() const { return nodes != 0 && ranks % nodes == 0 ? ranks / nodes : 0; }
};

bool is_for(const Row& row, const Facts& facts);

class Index {
 public:
  Index() = default;
  // The table outlives it.
  static Index make(const Table& table, const Facts& facts);

  // The rows that fit, by their places in the table, the first first.
  NORIA_HOT std::span<const uint32_t> find(Collective collective, uint64_t bytes) const {
    const Pieces& pieces = pieces_[static_cast<size_t>(collective)];
    if (pieces.begins.empty()) return {};
    // Pieces that begin in the message's power of two, and the one before.
    const auto power = static_cast<size_t>(64 - __builtin_clzll(bytes | 1));
    uint32_t low = pieces.by_power[power - 1], high = pieces.by_power[power];
    while (low < high) {
      const uint32_t middle = low + (high - low) / 2;
      if (pieces.begins[middle] <= bytes)
        low = middle + 1;
      else
        high = middle;
    }
    const uint32_t piece = low - 1;
    return {pieces.rows.data() + pieces.row_begins[piece],
            pieces.rows.data() + pieces.row_begins[piece + 1]};
  }

 private:
  struct Pieces {
    std::vector<uint64_t> begins;      // ascending; the first is 0
    std::vector<uint32_t> row_begins;  // of each piece in rows, and the end
    std::vector<uint32_t> rows;
    std::array<uint32_t, 65> by_power{};  // pieces that begin below 2 to this power
  };
  static Pieces cut(const Table& table, const std::vector<uint32_t>& fitting);

  std::array<Pieces, kCollectives.size()> pieces_;
};

}  // namespace noria::plugin::tuner
