// A trace: JSON from a file of the user's.
#include "perf/trace.hpp"

#include <nlohmann/json.hpp>

#include "perf/elements.hpp"
#include "perf/exit_codes.hpp"
#include "perf/ready_times.hpp"
#include "tests/fuzz/input.hpp"

namespace {

using namespace noria::perf;

// What parse_trace() reads, as a file would say it.
std::string write_trace(const Trace& trace) {
  nlohmann::json json{{"name", trace.name}, {"tensors", nlohmann::json::array()}};
  for (const TraceTensor& tensor : trace.tensors) {
    nlohmann::json row{{"name", tensor.name},
                       {"shape", tensor.shape},
                       {"dtype", dtype_row(tensor.dtype).trace_name}};
    if (tensor.ready_ms) row["ready_ms"] = *tensor.ready_ms;
    json["tensors"].push_back(row);
  }
  if (!trace.arrival.empty()) json["arrival"] = trace.arrival;
  return json.dump();
}

void check_trace(const Trace& trace) {
  NORIA_CHECK(!trace.tensors.empty() && !trace.name.empty(), "a trace has a name and tensors");
  uint64_t bytes = 0;
  for (const TraceTensor& tensor : trace.tensors) {
    uint64_t numel = 1;
    for (const int64_t extent : tensor.shape) numel *= static_cast<uint64_t>(extent);
    NORIA_CHECK(numel == tensor.numel, "elements are the product of the extents");
    bytes += numel * dtype_row(tensor.dtype).bytes;
  }
  NORIA_CHECK(bytes == trace.bytes(), "bytes add up");

  const std::string written = write_trace(trace);
  NORIA_CHECK(write_trace(parse_trace(written, "again")) == written,
              "what is accepted is accepted again as the same");

  const ReadyTimes times = ready_times(trace, 100);
  NORIA_CHECK(times.order.size() == trace.tensors.size(), "every tensor becomes ready");
  std::vector<bool> seen(trace.tensors.size());
  double before = 0;
  for (const uint32_t tensor : times.order) {
    NORIA_CHECK(!seen.at(tensor), "and becomes so once");
    seen[tensor] = true;
    NORIA_CHECK(times.ready_ms[tensor] >= before && times.ready_ms[tensor] <= 100.001,
                "in order, before the pass ends");
    before = times.ready_ms[tensor];
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    check_trace(parse_trace(text, "fuzz.json"));
  } catch (const ToolError& error) {
    NORIA_CHECK(error.code() == Exit::usage, "a bad file is the user's to mend");
    NORIA_CHECK(noria::fuzz::is_one_line(error.what()), "a refusal is one line");
    NORIA_CHECK(std::string_view(error.what()).starts_with("fuzz.json: "), "it names the file");
  }
  return 0;
}
