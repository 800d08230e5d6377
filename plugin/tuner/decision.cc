#include "plugin/tuner/decision.hpp"

#include "plugin/abi/tuner.hpp"

namespace noria::plugin::tuner {

size_t least_of(const Costs& costs) {
  size_t least = kNoPlace;
  for (size_t i = 0; i < costs.size(); ++i) {
    if (!(costs.values[i] >= 0)) continue;
    if (least == kNoPlace || costs.values[i] < costs.values[least]) least = i;
  }
  return least;
}

Decision decide(const Table& table, const Index& index, Collective collective, uint64_t bytes,
                const Costs& costs) {
  Decision decision;
  const std::span<const uint32_t> fitting = index.find(collective, bytes);
  if (fitting.empty()) return decision;
  const size_t of_nccl = least_of(costs);
  for (const uint32_t place : fitting) {
    const Row& row = table.rows[place];
    if (!costs.has(row) || !(costs.of(row) >= 0)) continue;
    if (decision.row == nullptr) decision.row = &row;
    if (costs.place_of(row.algorithm, row.protocol) == of_nccl) decision.row_of_nccl = &row;
  }
  const Row* const ours = decision.row;
  const Row* const other = decision.row_of_nccl;
  if (ours == nullptr) return decision;
  const bool is_compared = other != nullptr && ours->is_predicted && other->is_predicted;
  const bool is_small =
      is_compared ? other->predicted_us(bytes) <= ours->predicted_us(bytes) * (1 + ours->max_regret)
                  : ours->is_modelled;
  decision.reason = ours == other ? Reason::same
                    : is_small    ? Reason::too_small_gain
                                  : Reason::override;
  return decision;
}

Decision choose(const Table& table, const Index& index, Collective collective, uint64_t bytes,
                const Costs& costs) {
  const Decision decision = decide(table, index, collective, bytes, costs);
  if (decision.is_ours()) costs.of(*decision.row) = 0;
  return decision;
}

bool ignore_ll128(const Costs& costs) {
  const auto ll128 = static_cast<uint32_t>(Protocol::ll128);
  if (costs.protocols <= ll128) return false;
  bool has_ll128 = false, has_other = false;
  for (uint32_t algorithm = 0; algorithm < costs.algorithms; ++algorithm) {
    const float* const row = costs.values + size_t{algorithm} * costs.protocols;
    for (uint32_t protocol = 0; protocol < costs.protocols; ++protocol)
      if (row[protocol] >= 0) (protocol == ll128 ? has_ll128 : has_other) = true;
  }
  if (!has_other) return has_ll128;
  for (uint32_t algorithm = 0; algorithm < costs.algorithms; ++algorithm)
    costs.values[size_t{algorithm} * costs.protocols + ll128] = abi::kIgnoredCost;
  return false;
}

}  // namespace noria::plugin::tuner
