// What ranks are told whose calls differ: both, in the same words on every rank that finds out.
//
// Threads: values.
#pragma once

#include <cstdint>
#include <string>

#include "bucketing/failure.hpp"
#include "bucketing/ring_line.hpp"
#include "bucketing/ring_schedule.hpp"
#include "bucketing/ring_wire.hpp"

namespace noria::bucketing {

// As its header would name it.
RingHeader header_of(const LineCall& call);

// "collective 7 differs: rank 0 called barrier, rank 1 called ...". `theirs` is the left
// neighbour's.
Failure calls_differ(const RingPlace& place, uint64_t number, const RingHeader& theirs,
                     const RingHeader& ours);

}  // namespace noria::bucketing
