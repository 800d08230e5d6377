#include "perf/regret.hpp"

#include <algorithm>
#include <map>
#include <optional>

#include "perf/model_choice.hpp"
#include "perf/tuner_rows.hpp"
#include "plugin/tuner/decision.hpp"

namespace noria::perf {
namespace {

namespace tuner = plugin::tuner;

// What NCCL's model leaves out and somebody measured is possible, and the last it would take.
constexpr float kDearest = 1e9F;

struct AtSize {
  std::map<size_t, Repeated> times;  // by cell
  std::optional<Repeated> own;       // NCCL left alone
};

using Sizes = std::map<std::pair<CurveKey, uint64_t>, AtSize>;

Sizes sizes_of(const std::vector<Curve>& curves) {
  Sizes sizes;
  for (const Curve& curve : curves) {
    const CurveKey& key = curve.key;
    const bool is_named = key.algorithm && key.protocol;
    if (!is_named && !key.is_free()) continue;  // neither one choice nor NCCL left alone
    for (const auto& [bytes, repeated] : repeated_by_size(curve.times)) {
      AtSize& at = sizes[{communicator_of(key), bytes}];
      if (is_named)
        at.times[tuner::cell_of(*key.algorithm, *key.protocol)] = repeated;
      else
        at.own = repeated;
    }
  }
  return sizes;
}

std::string name_of(size_t cell) {
  return std::string(tuner::name_of(tuner::algorithm_of(cell))) + "/" +
         std::string(tuner::name_of(tuner::protocol_of(cell)));
}

// NCCL's, of what was measured; and what it would choose itself, where it was measured left alone.
tuner::CostTable costs_of(const tuner::NcclModel& model, const CurveKey& communicator,
                          uint64_t bytes, const AtSize& at) {
  tuner::CostTable all = model.costs(communicator.collective, bytes);
  tuner::CostTable measured;
  for (const auto& [cell, time] : at.times)
    measured.us[cell] = all.us[cell] >= 0 ? all.us[cell] : kDearest;
  if (!at.own) return measured;
  // What was measured by name and is not what NCCL took is dearer to NCCL, whatever its model says.
  tuner::CostTable likely = likely_costs(all, *at.own, at.times);
  const size_t own = tuner::least_of(likely.costs());
  if (own == tuner::kNoPlace) return measured;
  for (const auto& [cell, time] : at.times)
    if (likely.us[cell] < 0) measured.us[cell] = kDearest;
  measured.us[own] = all.us[own];
  return measured;
}

ChoiceComparison compare(const CurveKey& communicator, uint64_t bytes, const AtSize& at,
                         const tuner::NcclModel& model, const tuner::Table& table) {
  ChoiceComparison made{
      .communicator = communicator, .bytes = bytes, .max_regret = table.max_regret};
  tuner::CostTable costs = costs_of(model, communicator, bytes, at);
  if (at.own) {
    made.of_nccl = {"NCCL's own", at.own->us};
  } else {
    const size_t least = tuner::least_of(costs.costs());
    made.of_nccl = {name_of(least), at.times.at(least).us};
  }

  const tuner::Index index =
      tuner::Index::make(table, {.ranks = communicator.ranks(), .nodes = communicator.nodes});
  const tuner::Decision decision =
      tuner::decide(table, index, communicator.collective, bytes, costs.costs());
  made.ours = made.of_nccl;
  if (decision.reason == tuner::Reason::override)
    if (const auto named = at.times.find(decision.row->cell()); named != at.times.end())
      made.ours = {name_of(named->first), named->second.us};

  made.best = made.of_nccl;
  for (const auto& [cell, time] : at.times)
    if (time.us < made.best.us) made.best = {name_of(cell), time.us};
  return made;
}

}  // namespace

std::vector<ChoiceComparison> compare_choices(const std::vector<Curve>& curves,
                                              const tuner::Cluster& usual,
                                              const TableFor& table_for) {
  std::vector<ChoiceComparison> comparisons;
  for (const auto& [where, at] : sizes_of(curves)) {
    const auto& [communicator, bytes] = where;
    if (at.times.empty() || at.times.size() + (at.own ? 1 : 0) < 2) continue;
    comparisons.push_back(compare(communicator, bytes, at, model_of(usual, communicator),
                                  table_for(communicator, bytes)));
  }
  return comparisons;
}

tuner::Table table_without(const std::vector<Curve>& curves, const CurveKey& communicator,
                           uint64_t bytes) {
  Measured others;
  for (Curve curve : curves) {
    if (communicator_of(curve.key) != communicator) continue;
    std::erase_if(curve.times, [&](const TimedSize& time) { return time.bytes == bytes; });
    if (!curve.times.empty()) others.curves.push_back(std::move(curve));
  }
  const std::vector<FittedCurve> fitted = fit_curves(&others);
  tuner::Table table{.max_regret = max_regret_of(fitted), .rows = rows_of(fitted, {})};
  for (tuner::Row& row : table.rows) row.max_regret = table.max_regret;
  return table;
}

}  // namespace noria::perf
