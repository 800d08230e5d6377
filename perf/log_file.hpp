// The text of a log that a user names.
//
// Threads: any thread.
#pragma once

#include <string>

namespace noria::perf {

// Pipes too, to their end. Throws ToolError (usage) with path and cause where it cannot be read, or
// is longer than any log: 256 MiB.
std::string read_log(const std::string& path);

}  // namespace noria::perf
