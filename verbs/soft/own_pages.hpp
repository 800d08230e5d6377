// What the kernel says of our own memory, which a network card would pin when it is registered.
//
// Reads /proc/self/maps up to the range: about a microsecond for each mapping before it. Where
// there is no /proc, or no descriptor is left for it, memory counts as writable if it is mapped.
//
// Threads: any thread.
#pragma once

#include <cstdint>

namespace noria::soft {

// Whether every page of the range may be read, and written if `for_writing`. True if it is empty.
bool has_pages(uint64_t address, uint64_t length, bool for_writing);

}  // namespace noria::soft
