// What the kernel says of our own memory, which a network card would pin when it is registered.
//
// One or two microseconds. To look at each page takes 0.15 us a page, and to read /proc/self/maps
// 50 us and more, for every registration of a caller's buffer; so of a range over 64 KiB only the
// first and the last page are asked what access they have, while a page that is not mapped is
// noticed anywhere. A kernel before 5.14 is not asked: there, memory counts as writable if it is
// mapped.
//
// Threads: any thread.
#pragma once

#include <cstdint>

namespace noria::soft {

// Whether every page of the range may be read, and written if `for_writing`. True if it is empty.
bool has_pages(uint64_t address, uint64_t length, bool for_writing);

}  // namespace noria::soft
