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

using TimesByCell = std::map<size_t, Repeated>;

ModelChoice least_of(tuner::CostTable costs, const CurveKey& key) {
  for (size_t cell = 0; cell < tuner::kCells; ++cell) {
    const auto algorithm = tuner::algorithm_of(cell);
    const auto protocol = tuner::protocol_of(cell);
    if (key.algorithm.value_or(algorithm) != algorithm ||
        key.protocol.value_or(protocol) != protocol || !has_cell(key.cells, cell))
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

using NamedTimes = std::map<std::pair<CurveKey, uint64_t>, TimesByCell>;

// What was measured by name of each communicator and size.
NamedTimes named_times(const std::vector<Curve>& curves) {
  NamedTimes times;
  for (const Curve& curve : curves) {
    if (!curve.key.algorithm || !curve.key.protocol) continue;
    for (const auto& [bytes, repeated] : repeated_by_size(curve.times))
      times[{communicator_of(curve.key), bytes}]
           [tuner::cell_of(*curve.key.algorithm, *curve.key.protocol)] = repeated;
  }
  return times;
}

// Of a curve: what was chosen at each size, and where between two the model goes over from the one
// choice to the other; nowhere where measurements contradict it.
struct Guesses {
  std::map<uint64_t, ModelChoice> at;
  std::vector<uint64_t> edges;
};

Guesses guesses_of(const Curve& curve, const tuner::NcclModel& model, const NamedTimes& named) {
  Guesses made;
  const auto of_model = [&](uint64_t bytes) { return choice_by_model(model, curve.key, bytes); };
  uint64_t before = 0;
  for (const auto& [bytes, repeated] : repeated_by_size(curve.times)) {
    tuner::CostTable costs = model.costs(curve.key.collective, bytes);
    if (const auto at = named.find({communicator_of(curve.key), bytes}); at != named.end())
      costs = likely_costs(costs, repeated, at->second);
    const ModelChoice choice = made.at[bytes] = least_of(costs, curve.key);
    const bool is_other = before != 0 && made.at[before] != choice;
    if (is_other && of_model(before) == made.at[before] && of_model(bytes) == choice) {
      uint64_t low = before, high = bytes;
      while (high - low > 1) {
        const uint64_t middle = low + (high - low) / 2;
        (of_model(middle) == choice ? high : low) = middle;
      }
      made.edges.push_back(high);
    }
    before = bytes;
  }
  return made;
}

}  // namespace

ModelChoice choice_by_model(const tuner::NcclModel& model, const CurveKey& key, uint64_t bytes) {
  return least_of(model.costs(key.collective, bytes), key);
}

std::map<uint64_t, Repeated> repeated_by_size(const std::vector<TimedSize>& times) {
  std::map<uint64_t, std::pair<double, double>> ends;  // least and most
  for (const TimedSize& time : times) {
    auto& [least, most] = ends.try_emplace(time.bytes, time.us, time.us).first->second;
    least = std::min(least, time.us);
    most = std::max(most, time.us);
  }
  std::map<uint64_t, Repeated> sizes;
  for (const TimedSize& mean : means_of(times)) {
    const auto& [least, most] = ends.at(mean.bytes);
    sizes[mean.bytes] = {mean.us, most / least};
  }
  return sizes;
}

tuner::CostTable likely_costs(tuner::CostTable costs, const Repeated& own,
                              const TimesByCell& by_name) {
  constexpr double kDiffers = 1 + tuner::Table::kMaxRegret;
  for (const auto& [cell, named] : by_name) {
    const double apart = std::max(named.us / own.us, own.us / named.us);
    if (apart > std::max({kDiffers, own.spread, named.spread}))
      costs.us[cell] = plugin::abi::kIgnoredCost;
  }
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
    const Guesses guesses = guesses_of(curve, model, named);
    for (const TimedSize& time : curve.times) {
      CurveKey key = curve.key;
      const ModelChoice choice = guesses.at.at(time.bytes);
      key.algorithm = choice.algorithm;
      key.protocol = choice.protocol;
      if (key.algorithm && key.protocol) key.cells = kAllCells;
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
        part.edges = guesses.edges;
      }
      part.times.push_back(time);
    }
  }
  curves->clear();
  for (auto* const all : {&known, &guessed})
    for (auto& [key, curve] : *all) curves->push_back(std::move(curve));
}

}  // namespace noria::perf
