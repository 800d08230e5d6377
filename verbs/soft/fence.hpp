// The fence: after it returns, no initiator touches what was revoked before the call.
//
// An initiator publishes a mark before it looks at key or state, and clears it after its copy. So
// whoever revokes first and then sees no mark knows that the next look fails. Marks of dead peers
// do not count: their copies ended with them.
//
// Waits at most `limit`: a stopped peer may hold a mark for as long as it is stopped. Once one
// fence has waited so long for a peer, the next ones wait a moment only while that mark stands, so
// that giving up many objects of a stopped peer takes one limit and not one for each.
//
// Threads: any thread, holding no lock of the data path.
#pragma once

#include "base/clock.hpp"
#include "verbs/soft/engine.hpp"

namespace noria::soft {

// A mark stands for one copy, milliseconds at most: who runs at all clears it in this time. Whoever
// destroys a communicator of which a rank is stopped waits as long.
constexpr Nanoseconds kFenceLimit = 3_s;
constexpr Nanoseconds kStalledLimit = 1_ms;

// Until nothing is under way into memory of `key`. False: the limit passed.
bool fence_key(Engine& engine, uint32_t key, Nanoseconds limit = kFenceLimit);
// Until nothing is under way into queue pair `qpn`.
bool fence_qp(Engine& engine, uint32_t qpn, Nanoseconds limit = kFenceLimit);

}  // namespace noria::soft
