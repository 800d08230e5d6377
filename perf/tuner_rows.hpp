// From fitted curves to the rows of a tuner's table.
//
// Where several choices were measured on one communicator, sizes are cut wherever one of their
// lines begins or ends and wherever two cross, and each cut lists its rows with the fastest first:
// the first that fits is the choice, and the later ones let the tuner see what NCCL's own would
// cost. A curve holds where held_by() says. A choice that NCCL's model guessed ends where the model
// changes it.
//
// What was scaled from another communicator (perf/scaled_curves.hpp), or whose choice is a guess,
// gives rows that are `modelled`.
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
  std::string provenance;  // behind the source of each: where and when
};

// Curves whose choice is open give no row. Of no more than one communicator and choice each.
std::vector<plugin::tuner::Row> rows_of(const std::vector<FittedCurve>& curves,
                                        const RowsFor& what);

// The max_regret of a table of these: a gain below it is noise. The tuner's own, or the median of
// what the curves' sizes were off when they were left out, where that is more.
double max_regret_of(const std::vector<FittedCurve>& curves);

// What was fitted and how well, a line: sizes, lines, steps and their time, the best bus bandwidth,
// errors.
std::string summary_of(const FittedCurve& fitted);

// The whole file, its head with a comment for each curve.
std::string table_text(const std::vector<FittedCurve>& curves,
                       const std::vector<plugin::tuner::Row>& rows, double max_regret);

}  // namespace noria::perf
