// A trace: the gradient tensors of a model, in registration order, and when a backward pass
// completes them.
//
// Generators make the shapes of well-known models; read_trace() takes a JSON file:
//   {"name": "m", "tensors": [{"name": "fc.weight", "shape": [1000, 2048], "dtype": "f32",
//    "ready_ms": 1.5}, ...], "arrival": [indices]}
// with ready_ms (of all tensors or of none) and arrival optional.
//
// Threads: any thread.
#pragma once

#include <noria/bucketing.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace noria::perf {

struct TraceTensor {
  std::string name;
  std::vector<int64_t> shape;
  noria_dtype dtype = NORIA_FLOAT32;
  uint64_t numel = 1;
  std::optional<double> ready_ms;
};

struct Trace {
  std::string name;
  std::vector<TraceTensor> tensors;
  std::vector<uint32_t> arrival;  // indices in order of completion; empty: not given

  uint64_t numel() const;
  uint64_t bytes() const;
};

// The names that make_trace() knows, in the order in which --help shows them.
std::vector<std::string> trace_names();

// Nothing for an unknown name.
std::optional<Trace> make_trace(std::string_view name);

// A name of make_trace(), else a path. Throws ToolError (usage) that names file, tensor and field,
// or the nearest known name.
Trace load_trace(const std::string& name_or_path);

// Strict: unknown fields, wrong types, repeated names and bad shapes are refused. `file` is for the
// text of the failure.
Trace parse_trace(const std::string& text, const std::string& file);

// The gradient of an embedding costs nothing to compute and comes last: it is a scatter of what the
// first layer's backward left. Known by its name: a part that begins with "embed", or wte, or wpe.
bool is_embedding(std::string_view tensor_name);

}  // namespace noria::perf
