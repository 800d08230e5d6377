// The measurements of net_perf over a link: both sides run the same function, each its part.
//
// What is timed begins after the warm-up and ends with the last completion of a send: as perftest
// counts writes. Nothing but the plugin is called in between, and the clock.
//
// Threads: one.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "perf/net_link.hpp"
#include "perf/net_report.hpp"

namespace noria::perf {

struct NetLength {
  uint64_t messages = 0;     // of each connection; 0: by time
  Nanoseconds duration = 0;  // 0: by messages
};

// How far a row is, in percent; called some hundred times a row.
using NetProgress = std::function<void(double percent)>;

// This side's own sends over all links, one at least, each of which sends `length`; all zero on a
// side that only receives.
RateRow measure_rate(std::span<const NetLink> links, NetControl& control, uint64_t bytes,
                     const NetLength& length, const NetProgress& progress);

// One way, microseconds; empty on the side that answers.
std::vector<double> measure_latency(NetLink& link, NetControl& control, uint64_t bytes,
                                    const NetLength& length, bool begins,
                                    const NetProgress& progress);

}  // namespace noria::perf
