// Review: what is allowed in a table and yet cannot be meant.
//
// - a row that is never reached, for an earlier one of the same choice fits wherever it does, or
//   several together do;
// - two rows of the same choice that meet, and say different things of it;
// - an order against the predictions: where both rows of different choices fit, the earlier counts,
//   and is predicted to be slower by more than max_regret.
//
// Costs a comparison of every row with every earlier one.
//
// Threads: any thread; pure.
#pragma once

#include <string>
#include <vector>

#include "plugin/tuner/table.hpp"

namespace noria::plugin::tuner {

// One line each, as "line 12 is never reached: line 4 fits wherever it does"; at most `most`.
std::vector<std::string> review(const Table& table, size_t most = 100);

}  // namespace noria::plugin::tuner
