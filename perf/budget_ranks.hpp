// Two ranks of one process, for operations that are budgeted through the C API.
//
// Threads: one at a time.
#pragma once

#include <noria/bucketing.h>

#include <functional>

namespace noria::perf {

// Throws ToolError with the last error's text.
void require(noria_status status, const char* what);

// `body` on rank 0 in this thread and on rank 1 in another; on the host, or each on the GPU of its
// rank's number.
void run_rank_pair(uint32_t device_kind, const std::function<void(noria_comm*, int rank)>& body);

}  // namespace noria::perf
