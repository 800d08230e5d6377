// What callgrind counted, without what was spent inside one library and by the counting program.
//
// Pure: the text of a callgrind.out file in, a number of instructions out. A call into the library
// is left out with everything that the library called in turn; of the program only what it executes
// itself.
//
// Threads: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace noria::perf {

// Instructions of all functions but for those of objects whose path ends in `library`, and of those
// whose path ends in `program`, unless that is empty. Nothing when the text is no output of
// callgrind that counts instructions.
std::optional<uint64_t> instructions_outside(std::string_view text, std::string_view library,
                                             std::string_view program = {});

}  // namespace noria::perf
