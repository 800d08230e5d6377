#include "perf/scaled_curves.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "perf/model_choice.hpp"

namespace noria::perf {
namespace {

namespace tuner = plugin::tuner;
using tuner::Range;

// The usual cluster, as it was measured and as the rows are for.
struct Clusters {
  tuner::Cluster measured, wanted;
};

// Of one collective and node, by the number of nodes.
using ByNodes = std::map<uint64_t, std::vector<const Curve*>>;

// The octave around a number of nodes, without the numbers that were measured.
std::vector<Range> stretch_around(uint64_t nodes, const std::vector<uint64_t>& measured) {
  const auto middle = static_cast<double>(nodes);
  Range range{static_cast<uint64_t>(std::ceil(middle / kHalfAnOctave)),
              static_cast<uint64_t>(middle * kHalfAnOctave)};
  std::vector<Range> left;
  for (const uint64_t known : measured) {
    if (!range.has(known)) continue;
    if (known > range.first) left.push_back({range.first, known - 1});
    range.first = known + 1;
  }
  if (range.first <= range.last) left.push_back(range);
  return left;
}

double octaves_between(uint64_t a, uint64_t b) {
  return std::abs(std::log2(static_cast<double>(a) / static_cast<double>(b)));
}

std::vector<uint64_t> nearest_first(const ByNodes& measured, uint64_t nodes) {
  std::vector<uint64_t> numbers;
  for (const auto& [number, curves] : measured)
    if (number > 1) numbers.push_back(number);  // one node knows no network
  std::stable_sort(numbers.begin(), numbers.end(), [&](uint64_t a, uint64_t b) {
    return octaves_between(a, nodes) < octaves_between(b, nodes);
  });
  return numbers;
}

// What the model says of a size; 0 where it says nothing.
double modelled_us(const tuner::NcclModel& model, const CurveKey& key, uint64_t bytes) {
  const ModelChoice choice = choice_by_model(model, key, bytes);
  if (!choice.algorithm || !choice.protocol) return 0;
  return std::max(0.0, model.us(key.collective, *choice.algorithm, *choice.protocol, bytes));
}

// Its sizes that nothing nearer has. Where the choice is open, half an octave below each too, for
// the model may choose otherwise there.
Curve scaled(const Curve& curve, const CurveKey& there, const Clusters& clusters,
             const std::vector<Range>& known) {
  Curve made = curve;
  made.key.nodes = there.nodes;
  made.key.ranks_per_node = there.ranks_per_node;
  made.times.clear();
  const tuner::NcclModel from = model_of(clusters.measured, curve.key);
  const tuner::NcclModel grown = model_of(clusters.measured, made.key);
  const tuner::NcclModel to = model_of(clusters.wanted, made.key);
  const auto add = [&](uint64_t bytes, double us) {
    const double here_us = modelled_us(from, curve.key, bytes);
    const double grown_us = modelled_us(grown, made.key, bytes);
    const double there_us = modelled_us(to, made.key, bytes);
    if (here_us <= 0 || grown_us <= 0 || there_us <= 0) return;
    us *= grown_us / here_us;
    // What fewer NICs take longer comes on top.
    made.times.push_back(
        {bytes, there_us > grown_us ? us + there_us - grown_us : us * there_us / grown_us});
  };
  for (const TimedSize& time : curve.times)
    if (!holds(known, time.bytes)) add(time.bytes, time.us);
  if (made.times.empty()) return made;
  const std::vector<Range> held = held_by(made.times);
  made.scaling = Scaling{.nodes = curve.key.nodes,
                         .ranks_per_node = curve.key.ranks_per_node,
                         .bytes = {held.front().first, held.back().last},
                         .nics = clusters.measured.nics,
                         .nics_there = clusters.wanted.nics};
  const std::vector<LinePiece> pieces = fit_pieces(curve.times);
  if ((curve.key.algorithm && curve.key.protocol) || pieces.empty()) return made;
  for (const TimedSize& mean : means_of(made.times)) {
    const uint64_t below = edge_at(static_cast<double>(mean.bytes) / kHalfAnOctave);
    if (below > 0 && !holds(known, below)) add(below, line_at(pieces, below).us(below));
  }
  return made;
}

void add_sizes(const std::vector<const Curve*>& curves, std::vector<Range>* known) {
  for (const Curve* const curve : curves)
    for (const Range& held : held_by(curve->times)) known->push_back(held);
}

std::vector<Curve> curves_at(const CurveKey& there, const std::vector<Range>& stands_for,
                             const ByNodes& measured, std::vector<Range> known,
                             const Clusters& clusters) {
  std::vector<Curve> made;
  for (const uint64_t nodes : nearest_first(measured, there.nodes)) {
    const std::vector<const Curve*>& curves = measured.at(nodes);
    for (const Curve* const curve : curves) {
      Curve one = scaled(*curve, there, clusters, known);
      if (one.times.empty()) continue;
      one.scaling->stands_for = stands_for;
      made.push_back(std::move(one));
    }
    add_sizes(curves, &known);
  }
  return made;
}

}  // namespace

std::vector<Curve> scaled_curves(const std::vector<Curve>& measured, const ScaleTo& to,
                                 const tuner::Cluster& usual) {
  Clusters clusters{usual, usual};
  if (to.measured_nics != 0) clusters.measured.nics = to.measured_nics;
  std::map<std::pair<tuner::Collective, uint64_t>, ByNodes> all;
  for (const Curve& curve : measured)
    all[{curve.key.collective, curve.key.ranks_per_node}][curve.key.nodes].push_back(&curve);
  std::vector<Curve> made;
  for (const auto& [where, by_nodes] : all) {
    const auto& [collective, ranks] = where;
    const uint64_t asked = to.ranks_per_node != 0 ? to.ranks_per_node : ranks;
    const bool is_measured = asked == ranks && clusters.measured.nics == clusters.wanted.nics;
    CurveKey there{.collective = collective, .ranks_per_node = asked};
    const auto add = [&, &by_nodes = by_nodes](const std::vector<Range>& stands_for,
                                               std::vector<Range> known) {
      std::vector<Curve> curves =
          curves_at(there, stands_for, by_nodes, std::move(known), clusters);
      std::move(curves.begin(), curves.end(), std::back_inserter(made));
    };
    std::vector<uint64_t> numbers;
    for (const auto& [nodes, curves] : by_nodes) {
      if (!is_measured) continue;
      numbers.push_back(nodes);
      if (nodes < 2 || nodes > to.most_nodes) continue;
      std::vector<Range> known;
      add_sizes(curves, &known);
      there.nodes = nodes;
      add({{nodes, nodes}}, std::move(known));
    }
    for (there.nodes = 2; there.nodes <= to.most_nodes; there.nodes *= 2)
      if (const auto stands_for = stretch_around(there.nodes, numbers); !stands_for.empty())
        add(stands_for, {});
  }
  return made;
}

}  // namespace noria::perf
