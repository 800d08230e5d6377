// Two programs of this machine that talk to each other: a server, and a client that tries until the
// server listens. Neither outlives the call.
//
// Bound, each side has a core of its own. Else a side whose peer sleeps has both: what the software
// HCA's service thread copies for a queue pair beside the poster's own is then counted as one
// device's, which a peer that polls would not have left.
//
// Threads: one at a time.
#pragma once

#include <string>
#include <vector>

#include "base/clock.hpp"

namespace noria::perf {

struct TwoSides {
  std::vector<std::string> server, client;
  // On the first two cores that this process may use; throws ToolError (environment) of one.
  bool are_bound = false;
};

// What the client prints. Throws ToolError (environment) if no client ended well within `limit`.
std::string output_of_client(const TwoSides& sides, Nanoseconds limit);

// A port for the next server, below those that the kernel gives to clients.
int next_server_port();

}  // namespace noria::perf
