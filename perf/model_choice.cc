#include "perf/model_choice.hpp"

#include <algorithm>
#include <map>

namespace noria::perf {

namespace tuner = plugin::tuner;

tuner::NcclModel model_of(const tuner::Cluster& usual, const CurveKey& key) {
  tuner::Cluster cluster = usual;
  cluster.nodes = key.nodes;
  cluster.ranks_per_node = key.ranks_per_node;
  return tuner::NcclModel::make(cluster);
}

namespace {

using UsByCell = std::map<size_t, double>;

ModelChoice least_of(tuner::CostTable costs, const CurveKey& key) {
  for (size_t cell = 0; cell < tuner::kCells; ++cell) {
    const auto algorithm = tuner::algorithm_of(cell);
    const auto protocol = tuner::protocol_of(cell);
    if (key.algorithm.value_or(algorithm) != algorithm ||
        key.protocol.value_or(protocol) != protocol)
      costs.us[cell] = plugin::abi::kIgnoredCost;
  }
  const size_t least = tuner::least_of(costs.costs());
  if (least == tuner::kNoPlace) return {key.algorithm, key.protocol};
  return {tuner::algorithm_of(least), tuner::protocol_of(least)};
}

// None where the choice stays open.
std::optional<Line> shape_of(const tuner::NcclModel& model, const CurveKey& key) {
  if (!key.algorithm || !key.protocol) return std::nullopt;
  const tuner::NcclModel::Line& line = model.line(key.collective, *key.algorithm, *key.protocol);
  return Line{line.latency_us, 1 / (1000 * line.gbs)};
}

// What was measured by name of each communicator and size.
std::map<std::pair<CurveKey, uint64_t>, UsByCell> named_times(const std::vector<Curve>& curves) {
  std::map<std::pair<CurveKey, uint64_t>, UsByCell> times;
  for (const Curve& curve : curves) {
    if (!curve.key.algorithm || !curve.key.protocol) continue;
    for (const TimedSize& mean : means_of(curve.times))
      times[{communicator_of(curve.key), mean.bytes}]
           [tuner::cell_of(*curve.key.algorithm, *curve.key.protocol)] = mean.us;
  }
  return times;
}

}  // namespace

ModelChoice choice_by_model(const tuner::NcclModel& model, const CurveKey& key, uint64_t bytes) {
  return least_of(model.costs(key.collective, bytes), key);
}

tuner::CostTable likely_costs(tuner::CostTable costs, double own_us,
                              const std::map<size_t, double>& us_by_name) {
  constexpr double kDiffers = 1 + tuner::Table::kMaxRegret;
  for (const auto& [cell, us] : us_by_name)
    if (std::max(us / own_us, own_us / us) > kDiffers) costs.us[cell] = plugin::abi::kIgnoredCost;
  return costs;
}

void close_choices(const tuner::Cluster& usual, Open which, std::vector<Curve>* curves) {
  const auto is_guessed = [which](const CurveKey& key) {
    const bool has_algorithm = key.algorithm.has_value(), has_protocol = key.protocol.has_value();
    return has_algorithm != has_protocol || (which == Open::all && !has_algorithm);
  };
  const auto named = named_times(*curves);
  using Origin = std::pair<uint64_t, uint64_t>;
  std::map<std::pair<CurveKey, Origin>, Curve> known, guessed;
  std::map<std::pair<CurveKey, Origin>, std::vector<tuner::Range>> held_by_name;
  const auto origin_of = [](const Curve& curve) {
    return curve.scaling ? curve.scaling->origin() : Origin();
  };
  for (const Curve& curve : *curves)
    if (!is_guessed(curve.key)) held_by_name[{curve.key, origin_of(curve)}] = held_by(curve.times);
  for (const Curve& curve : *curves) {
    const Origin from = origin_of(curve);
    if (!is_guessed(curve.key)) {
      known[{curve.key, from}] = curve;
      continue;
    }
    const tuner::NcclModel model = model_of(usual, curve.key);
    std::map<uint64_t, double> own_us;
    for (const TimedSize& mean : means_of(curve.times)) own_us[mean.bytes] = mean.us;
    for (const TimedSize& time : curve.times) {
      CurveKey key = curve.key;
      tuner::CostTable costs = model.costs(key.collective, time.bytes);
      if (const auto at = named.find({communicator_of(key), time.bytes}); at != named.end())
        costs = likely_costs(costs, own_us[time.bytes], at->second);
      const ModelChoice choice = least_of(costs, key);
      key.algorithm = choice.algorithm;
      key.protocol = choice.protocol;
      // What was measured by name needs no guess.
      if (const auto at = held_by_name.find({key, from});
          at != held_by_name.end() && holds(at->second, time.bytes))
        continue;
      Curve& part = guessed[{key, from}];
      if (part.sources.empty()) {
        part = curve;
        part.key = key;
        part.times.clear();
        part.is_guess = true;
        part.shape = shape_of(model, key);
      }
      part.times.push_back(time);
    }
  }
  curves->clear();
  for (auto* const all : {&known, &guessed})
    for (auto& [key, curve] : *all) curves->push_back(std::move(curve));
}

}  // namespace noria::perf
