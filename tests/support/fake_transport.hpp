// A transport without a device, for state machines above it: all ranks in one thread, and bytes
// that land at some late moment, by a seed.
//
// Implements Domain, Region, SendConnection and RecvConnection of verbs/transport/ as their headers
// promise and no kinder: what was posted moves in pieces whenever any domain is polled, or not yet;
// a credit may be withheld; a read takes its bytes in two halves at different times. A piece that
// would touch memory that is no longer registered, or out of bounds, breaks its connection. Link
// it instead of the real one.
//
// Threads: one.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "verbs/transport/connection.hpp"
#include "verbs/transport/domain.hpp"

namespace noria::test {

// Starts the sequence of chances anew; connections and domains of before must be gone.
void seed_fake_transport(uint64_t seed);

// Chances in percent that a posted piece moves when asked, and that a try_ call says *not yet*.
void set_fake_chances(unsigned moves, unsigned not_yet);

std::unique_ptr<transport::Domain> make_fake_domain();

struct FakeLink {
  std::unique_ptr<transport::SendConnection> send;
  std::unique_ptr<transport::RecvConnection> recv;
};
FakeLink connect_fake(transport::Domain& from, transport::Domain& to);

// Registered regions alive: 0 when every test gave back what it took.
unsigned fake_regions_alive();

}  // namespace noria::test
