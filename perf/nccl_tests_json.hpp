// The JSON of nccl-tests (-J; file version 3), with noria's own facts beside it.
//
// Threads: any thread.
#pragma once

#include <noria/observe.h>

#include <string>
#include <vector>

#include "perf/bench_options.hpp"
#include "perf/table.hpp"

namespace noria::perf {

struct DeviceLine {
  int rank = 0;
  int pid = 0;
  std::string host;
  std::string device;
};

// How a bench's buffers are fetched: they are memory of the tool's own.
constexpr bool fetches_by_reads(const noria_comm_info& info) { return info.reads == 1; }

struct JsonInput {
  const char* tool;
  const BenchOptions& options;
  const std::vector<DeviceLine>& devices;
  const noria_comm_info& info;
  const std::vector<Row>& rows;
  const std::string& start_time;
  uint32_t library_version;
};

std::string nccl_tests_json(const JsonInput& input);

// "2026-01-31T12:00:00Z"
std::string time_text();

// Throws ToolError (environment) with the path and the reason.
void write_file(const std::string& path, const std::string& text);
// The same failure before a long run instead of after it. An empty path is fine.
void require_writable(const std::string& path);
// Adds a section to a RESULTS.md; an empty path is none. Throws ToolError if it cannot be written.
void append_results(const std::string& path, const std::string& section);
// Throws it when something printed since the start did not reach standard output.
void require_printed();

}  // namespace noria::perf
