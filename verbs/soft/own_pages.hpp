// What the kernel says of our own memory, which a network card would pin when it is registered:
// the application may give it back to the system all the same, at any time and in any thread.
//
// A microsecond for each mapping that the range lies in, on Linux 6.11 and later. Older kernels are
// asked page by page up to 64 KiB (0.15 us a page), and of a longer range for the first and the
// last page only: to read /proc/self/maps takes 50 us and more, for every registration of a
// caller's buffer. There a page in the middle that cannot be accessed is taken for good, and who
// touches it later dies of it; a page that is not mapped is noticed. A kernel before 5.14 is not
// asked for access at all.
//
// Threads: any thread.
#pragma once

#include <cstdint>

namespace noria::soft {

// Whether every page of the range may be read, and written if `for_writing`. True if it is empty.
bool has_pages(uint64_t address, uint64_t length, bool for_writing);

// Copies out of it, by the kernel, which survives pages that vanish just then: false where not all
// can be read. A microsecond and 70 us a MiB, several times what loads and stores take. Where the
// kernel forbids attach it only looks before it copies, as has_pages() does.
bool copy_own(void* to, const void* from, uint64_t bytes);

}  // namespace noria::soft
