// From fitted curves to the rows of a tuner's table.
//
// Where several choices were measured on one communicator, sizes are cut wherever one of their
// lines begins or ends and wherever two cross, and each cut lists its rows with the fastest first:
// the first that fits is the choice, and the later ones let the tuner see what NCCL's own would
// cost. A curve holds for the sizes that were measured; from 0 where that is 4 KiB or less, without
// end where that is 256 MiB or more, for there the line is known to go on. A choice that NCCL's
// model guessed ends where the model changes it.
//
// For numbers of nodes that nobody measured the lines of the nearest are stretched: what is fixed
// by the steps of the algorithm, what goes by bytes by those on the wire. Such rows are `modelled`.
//
// Threads: any thread; pure.
#pragma once

#include <string>
#include <vector>

#include "perf/tune_curves.hpp"
#include "plugin/tuner/table.hpp"

namespace noria::perf {

// Of all rows alike.
struct RowsFor {
  plugin::tuner::Range nics;
  plugin::tuner::Link link;
  std::optional<plugin::tuner::Gpu> gpu;
  plugin::tuner::Range nccl;
  std::string provenance;   // behind the source of each: where and when
  uint64_t most_nodes = 0;  // modelled up to here; 0: only what was measured
};

// Curves whose choice is open give no row. Of no more than one communicator and choice each.
std::vector<plugin::tuner::Row> rows_of(const std::vector<FittedCurve>& curves,
                                        const RowsFor& what);

// What was fitted and how well, a line: sizes, lines, steps and their time, the best bus bandwidth,
// errors.
std::string summary_of(const FittedCurve& fitted);

// The whole file, its head with a comment for each curve.
std::string table_text(const std::vector<FittedCurve>& curves,
                       const std::vector<plugin::tuner::Row>& rows, double max_regret);

}  // namespace noria::perf
