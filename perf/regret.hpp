// Regret: how much slower a table's choice is than the best that was measured, and NCCL's as well.
//
// Asked is the tuner's own decision, with NCCL's costs of the choices that were measured at that
// size, and of what NCCL's model would choose where NCCL left alone was measured too; others are
// ignored, as if NCCL did not have them, for nobody knows how long they take.
// Where there is no row, or no gain, NCCL's choice stands: what it was measured to be without
// NCCL_ALGO and NCCL_PROTO, else what its model takes of those that were measured.
//
// Threads: any thread; pure.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "perf/tune_curves.hpp"
#include "plugin/tuner/nccl_model.hpp"
#include "plugin/tuner/table.hpp"

namespace noria::perf {

struct TimedChoice {
  std::string name;  // "Ring/Simple", "NCCL's own"
  double us = 0;     // measured
};

struct ChoiceComparison {
  CurveKey communicator;  // without a choice
  uint64_t bytes = 0;
  TimedChoice best, ours, of_nccl;
  double max_regret = 0;  // of the table that decided

  double regret() const { return ours.us / best.us - 1; }
  double regret_of_nccl() const { return of_nccl.us / best.us - 1; }
  double over_nccl() const { return ours.us / of_nccl.us - 1; }
};

// The table that a size is decided by; it may leave that size out.
using TableFor = std::function<plugin::tuner::Table(const CurveKey& communicator, uint64_t bytes)>;

// Every size at which two choices at least were measured on one communicator. Of a curve both
// algorithm and protocol are known, or neither: then it is NCCL's own.
std::vector<ChoiceComparison> compare_choices(const std::vector<Curve>& curves,
                                              const plugin::tuner::Cluster& usual,
                                              const TableFor& table_for);

// A table fitted to the curves without one size of one communicator, as noria_tune fit writes it.
plugin::tuner::Table table_without(const std::vector<Curve>& curves, const CurveKey& communicator,
                                   uint64_t bytes);

}  // namespace noria::perf
