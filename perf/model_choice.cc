#include "perf/model_choice.hpp"

#include <map>

namespace noria::perf {

namespace tuner = plugin::tuner;

tuner::NcclModel model_of(const tuner::Cluster& usual, const CurveKey& key) {
  tuner::Cluster cluster = usual;
  cluster.nodes = key.nodes;
  cluster.ranks_per_node = key.ranks_per_node;
  return tuner::NcclModel::make(cluster);
}

ModelChoice choice_by_model(const tuner::NcclModel& model, const CurveKey& key, uint64_t bytes) {
  tuner::CostTable table = model.costs(key.collective, bytes);
  for (size_t cell = 0; cell < tuner::kCells; ++cell) {
    const auto algorithm = tuner::algorithm_of(cell);
    const auto protocol = tuner::protocol_of(cell);
    if (key.algorithm.value_or(algorithm) != algorithm ||
        key.protocol.value_or(protocol) != protocol)
      table.us[cell] = plugin::abi::kIgnoredCost;
  }
  const size_t least = tuner::least_of(table.costs());
  if (least == tuner::kNoPlace) return {key.algorithm, key.protocol};
  return {tuner::algorithm_of(least), tuner::protocol_of(least)};
}

void close_choices(const tuner::Cluster& usual, Open which, std::vector<Curve>* curves) {
  const auto is_guessed = [which](const CurveKey& key) {
    const bool has_algorithm = key.algorithm.has_value(), has_protocol = key.protocol.has_value();
    return has_algorithm != has_protocol || (which == Open::all && !has_algorithm);
  };
  std::map<CurveKey, Curve> known, guessed;
  for (const Curve& curve : *curves) {
    if (!is_guessed(curve.key)) {
      known[curve.key] = curve;
      continue;
    }
    const tuner::NcclModel model = model_of(usual, curve.key);
    for (const TimedSize& time : curve.times) {
      CurveKey key = curve.key;
      const ModelChoice choice = choice_by_model(model, key, time.bytes);
      key.algorithm = choice.algorithm;
      key.protocol = choice.protocol;
      Curve& part = guessed[key];
      if (part.sources.empty()) {
        part = curve;
        part.key = key;
        part.times.clear();
        // "modelled" at its front, for the tuner trusts such a row less.
        part.sources.front().insert(0, "modelled choice of NCCL's in ");
      }
      part.times.push_back(time);
    }
  }
  // What was measured by name needs no guess.
  known.merge(guessed);
  curves->clear();
  for (auto& [key, curve] : known) curves->push_back(std::move(curve));
}

}  // namespace noria::perf
