// What NCCL chose where a log does not say it, by its own cost model (plugin/tuner/nccl_model.hpp).
//
// A guess, and a row that rests on it says so: the model knows the usual node, and no variable that
// the job may have set. Measurements correct it: what NCCL took by itself was not a choice that was
// measured by name and takes another time.
//
// Threads: any thread; pure.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "perf/tune_curves.hpp"
#include "plugin/tuner/nccl_model.hpp"

namespace noria::perf {

// The choice of least cost among those of the key's algorithm and protocol, where it has them; none
// where NCCL uses none of these.
struct ModelChoice {
  std::optional<plugin::tuner::Algorithm> algorithm;
  std::optional<plugin::tuner::Protocol> protocol;

  friend bool operator==(const ModelChoice&, const ModelChoice&) = default;
};
ModelChoice choice_by_model(const plugin::tuner::NcclModel& model, const CurveKey& key,
                            uint64_t bytes);

// How long a size took, and how many times as long as the fastest the slowest of its times was.
struct Repeated {
  double us = 0;
  double spread = 1;
};
std::map<uint64_t, Repeated> repeated_by_size(const std::vector<TimedSize>& times);

// What NCCL left alone chose, of a size that took it so long: the model's costs without the choices
// that were measured there by name, by cell, and took more or less by more than runs differ, and by
// more than the times of either do.
plugin::tuner::CostTable likely_costs(plugin::tuner::CostTable costs, const Repeated& own,
                                      const std::map<size_t, Repeated>& by_name);

// The cluster of a key: `usual` with its nodes and ranks.
plugin::tuner::NcclModel model_of(const plugin::tuner::Cluster& usual, const CurveKey& key);

enum class Open : uint8_t {
  half,  // curves of which either algorithm or protocol is known
  all,   // those of which neither is, too
};

// Cuts each such curve into those that the model chooses, by size, and leaves out those that were
// measured by name. What the model has no choice for stays open. Scaled and measured curves are two
// calls.
void close_choices(const plugin::tuner::Cluster& usual, Open which, std::vector<Curve>* curves);

}  // namespace noria::perf
