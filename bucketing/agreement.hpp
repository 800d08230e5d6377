// Agreement: the ranks compare what they registered before they share a plan.
//
// One gather of a few numbers where all agree. Where they do not, every rank gets MISMATCH with
// the same text, naming the first difference and who has which value. The list of tensors is never
// sent: hashes of blocks narrow the difference down to one tensor, so that 10^5 tensors on many
// ranks still fit small messages.
//
// Threads: one at a time.
#pragma once

#include <noria/bucketing.h>

#include <functional>
#include <string>
#include <vector>

#include "bucketing/failure.hpp"
#include "bucketing/reducer_config.hpp"
#include "bucketing/tensor_table.hpp"

namespace noria::bucketing {

// Gives this rank's bytes and gets every rank's, in rank order. `what` names the exchange.
using Gather = std::function<Outcome<std::vector<std::string>>(const std::string& what,
                                                               const std::string& bytes)>;

// Arena or copies, how many of these at once, time-outs and how often a tensor fires are each
// rank's own affair and are not compared.
Outcome<Ok> agree(const TensorTable& tensors, const ReducerConfig& config, const Gather& gather);

// Whose failure? Every rank gives its own outcome; all get the first rank's failure that there is.
Outcome<Ok> agree_on_success(const Outcome<Ok>& mine, const std::string& what,
                             const Gather& gather);

// "26214400 on rank 0; 1048576 on ranks 1, 2". `values` in rank order; long lists are cut.
std::string values_by_rank(const std::vector<std::string>& values);

}  // namespace noria::bucketing
