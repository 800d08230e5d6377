// Random traffic over two rails of one process, with faults, all of it from a seed.
//
// Two ends of a host of its own, four devices, a few connections, one thread, a clock that stands
// (ibv_noria_turn): nothing comes from outside, so that the same seed gives the same run, byte
// for byte. What is sent, when time goes on, and which faults are set (NORIA_SOFT_FAULTS) are drawn
// from the seed.
//
// What must hold of every run: a request completes at most once and in order, signalled ones
// exactly once; success means that the bytes are right; an acknowledged message is received, once
// and in order; after a failure all is flushed; nothing lands after the fence; a failure has a
// cause among those that were set; nothing hangs, in virtual time.
//
// Threads: one, in a process of its own: it sets the environment of the library that it loads.
#pragma once

#include <cstdint>

#include "tests/support/seed_runner.hpp"

namespace noria::test {

// `prints`: each line of the trace goes to standard output.
SeedReport run_seed(uint64_t seed, bool prints);

}  // namespace noria::test
