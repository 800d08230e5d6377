// The kernels that the stand-in can launch, by name. Any image has all of them.
//
// Threads: any thread.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "tests/support/cuda_standin/checker.hpp"

namespace noria::standin {

struct Kernel {
  const char* name;
  size_t parameter_bytes;  // of its only parameter, which is copied at the launch
  std::vector<Access> (*touches)(const void* parameter, unsigned blocks);
  void (*run)(const void* parameter, unsigned blocks);
};

const Kernel* find_kernel(std::string_view name);  // null: no such

}  // namespace noria::standin
