// Why a table of a log is no measurement of ranks that belong together: cut off, wrong, of one
// rank, or with the rows of several programs in it.
//
// Threads: any thread; pure.
#pragma once

#include <string>

#include "perf/nccl_tests_text.hpp"

namespace noria::perf {

// Empty, or the reason.
std::string fault_of(const LoggedTable& table, const NcclTestsLog& log);

}  // namespace noria::perf
