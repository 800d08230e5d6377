// Byte sizes as people write them, and the list of sizes that a sweep visits.
//
// Threads: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace noria::perf {

// "8", "64K", "1.5M", "128MiB": a number, decimals allowed, and a suffix K, M, G or T (1024 each;
// "iB" or "B" may follow). Rounded down to whole bytes. Nothing for anything else, and from 2^62
// on.
std::optional<uint64_t> parse_size(std::string_view text);

struct Sweep {
  uint64_t min_bytes = 0;
  uint64_t max_bytes = 0;
  uint64_t step_bytes = 0;   // used where step_factor is 0
  uint64_t step_factor = 0;  // at least 2
};

// min, then by factor or step, while not above max. A step of 0 visits min alone.
std::vector<uint64_t> sizes_of(const Sweep& sweep);

}  // namespace noria::perf
