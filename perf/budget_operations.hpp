// The operations whose instructions are budgeted, each as a program that callgrind can watch.
//
// An operation runs `count` times inside a function whose name begins with kMeasured, and as often
// as it needs before that outside of it, so that tables are filled and symbols bound. Whatever it
// needs of a peer is another thread of this process, or this thread in turn: callgrind sees one
// process.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace noria::perf {

inline constexpr const char* kMeasured = "noria_measured";

struct Operation {
  const char* name;
  const char* what;             // for --help
  uint64_t count;               // of one run
  void (*run)(uint64_t count);  // throws ToolError
  bool is_of_library = false;   // what the tool itself executes is left out
  bool is_on_gpu = false;       // over the stand-in for CUDA and NCCL, which is left out
};

// What is inside is counted; the body is part of it, so that no call comes between.
template <class Body>
[[gnu::noinline]] void noria_measured(Body body) {
  body();
}

inline constexpr uint64_t kBudgetWarmups = 400;  // more than any window or batch

// All of them; those through NCCL's table are budget_plugin.cc's, those on GPUs budget_gpu.cc's.
const std::vector<Operation>& budgeted_operations();
std::vector<Operation> plugin_operations();
std::vector<Operation> gpu_operations();

}  // namespace noria::perf
