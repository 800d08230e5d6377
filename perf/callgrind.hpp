// What callgrind counted, without what was spent inside one library.
//
// Pure: the text of a callgrind.out file in, a number of instructions out. A call into the library
// is left out with everything that the library called in turn.
//
// Threads: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace noria::perf {

// Instructions of all functions but for those of objects whose path ends in `library`. Nothing when
// the text is no output of callgrind that counts instructions.
std::optional<uint64_t> instructions_outside(std::string_view text, std::string_view library);

}  // namespace noria::perf
