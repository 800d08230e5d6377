// The local side of a request: the pieces of our memory that hold a part of it.
//
// Threads: under Qp::exec.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <span>

#include "verbs/soft/placement.hpp"
#include "verbs/soft/queue_pair.hpp"

namespace noria::soft {

struct Pieces {
  iovec at[kMaxSge];
  size_t count = 0;
  uint32_t posted = 0;  // bit i: writes to piece i are kept back (posted_writes.hpp)
  std::span<const iovec> all() const { return {at, count}; }
};

// Collects a part of the request. Every step looks the keys up anew, so that a region that was
// deregistered meanwhile is not touched. False if a key is stale or does not cover its range.
bool gather(const Qp& qp, Wqe& wqe, const Cut& cut, Pieces* out);

// Whether all of it is mapped: the application may have given registered memory back, which a card
// would have pinned. As exact as has_pages() is.
bool is_mapped(const Pieces& pieces, bool for_writing);

// Copies to all pieces what they hold together.
void scatter(const Pieces& to, const uint8_t* from);

// Takes `bytes` off the front of `from`.
Pieces take_front(Pieces* from, uint64_t bytes);

}  // namespace noria::soft
