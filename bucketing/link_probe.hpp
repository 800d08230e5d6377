// What the link takes for a bucket, measured when a planned reducer is sealed.
//
// Two sizes, each several times; the median counts, and of the ranks the slowest. Every rank
// measures at the same time, so that all get the same curve, and make the same plan of it.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <functional>

#include "base/link_curve.hpp"
#include "base/units.hpp"
#include "bucketing/agreement.hpp"
#include "bucketing/arena.hpp"
#include "bucketing/failure.hpp"
#include "bucketing/reducer_host.hpp"

namespace noria::bucketing {

// What it takes of the arena, even where buckets, or slots, take less.
inline constexpr uint64_t kMostProbedBytes = 8_MiB;

// In us; the first call warms up, and does not count.
Outcome<double> median_us(const std::function<Outcome<double>()>& probe);

// All-reduces of zeros in the arena, which no step uses yet; in us.
Outcome<double> ring_probe_us(const ReducerHost& host, const Arena& arena, Nanoseconds timeout,
                              uint64_t bytes);

// Collective. STATE on all ranks where a step is open on any. `most_bytes`: of all buckets.
// `probe_us` takes this rank's median.
Outcome<LinkCurve> measure_link(const ReducerHost& host, uint64_t most_bytes, const Gather& ask_all,
                                const std::function<Outcome<double>(uint64_t)>& probe_us);

}  // namespace noria::bucketing
