// The JSON that nccl-tests writes with -J (since its version 2.17.3), and all_reduce_perf of noria
// with it, read into the same rows as its text.
//
// Numbers become the text that tells them from all others; a null half is absent, a null nwrong is
// N/A. NCCL_ALGO and NCCL_PROTO are those of env[]. Keys that are not known do not count.
//
// Threads: any thread.
#pragma once

#include <string>
#include <string_view>

#include "perf/nccl_tests_text.hpp"

namespace noria::perf {

// Whether the first character that is no blank begins an object.
bool is_json(std::string_view text);

// `file` is for the text of the failure. Throws ToolError (usage) that names file, line and what is
// wrong: no whole JSON, as of a run that was cut off, or none of nccl-tests.
NcclTestsLog parse_nccl_tests_json(std::string_view text, const std::string& file);

// A log of either kind. Throws as above; a text without a row gives no table.
NcclTestsLog parse_nccl_log(std::string_view text, const std::string& file);

}  // namespace noria::perf
