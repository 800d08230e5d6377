// all_reduce_perf between processes of this machine, as a comparison runs it: one buffer in and one
// out, floats, sum, nothing bound, nothing checked.
//
// Threads: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace noria::perf {

std::vector<std::string> all_reduce_command(int ranks, const std::string& bytes,
                                            int64_t iterations);
// Microseconds of a call, out of what it printed; nothing where it printed none.
std::optional<double> all_reduce_us(const std::string& output);

}  // namespace noria::perf
