// Modules and launches.
#include <cstring>
#include <map>
#include <memory>

#include "tests/support/cuda_standin/call.hpp"
#include "tests/support/cuda_standin/driver.hpp"
#include "tests/support/cuda_standin/driver_numbers.hpp"
#include "tests/support/cuda_standin/kernels.hpp"
#include "tests/support/cuda_standin/say.hpp"

using namespace noria::standin;

namespace {

struct Function {
  const Kernel* kernel;
  Context* context;
};

struct Module {
  Context* context;
  std::map<const Kernel*, std::unique_ptr<Function>> functions;
};

std::map<void*, std::unique_ptr<Module>>& modules() {
  static auto& all = *new std::map<void*, std::unique_ptr<Module>>;
  return all;
}

const Function* find_function(const void* handle) {
  for (const auto& [at, module] : modules())
    for (const auto& [kernel, function] : module->functions)
      if (function.get() == handle) return function.get();
  return nullptr;
}

}  // namespace

int cuModuleLoadData(void** module, const void* image) {
  Call call("cuModuleLoadData", Needs::context);
  if (call.is_over()) return call.code();
  if (image == nullptr) return kInvalidValue;
  auto made = std::make_unique<Module>();
  made->context = call.machine().current();
  *module = made.get();
  modules()[*module] = std::move(made);
  return kSuccess;
}

int cuModuleUnload(void* module) {
  Call call("cuModuleUnload", Needs::context);
  if (call.is_over()) return call.code();
  return modules().erase(module) == 1 ? kSuccess : kInvalidHandle;
}

int cuModuleGetFunction(void** function, void* module, const char* name) {
  Call call("cuModuleGetFunction", Needs::context);
  if (call.is_over()) return call.code();
  const auto found = modules().find(module);
  if (found == modules().end()) return kInvalidHandle;
  const Kernel* const kernel = find_kernel(name);
  if (kernel == nullptr) return kNotFound;
  std::unique_ptr<Function>& made = found->second->functions[kernel];
  if (made == nullptr) made = std::make_unique<Function>(Function{kernel, found->second->context});
  *function = made.get();
  return kSuccess;
}

int cuFuncGetAttribute(int* value, int, void* function) {
  Call call("cuFuncGetAttribute", Needs::context);
  if (call.is_over()) return call.code();
  if (find_function(function) == nullptr) return kInvalidHandle;
  *value = 1024;  // threads of a block, for what else would one ask
  return kSuccess;
}

int cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned, void* stream,
                   void** parameters, void** extra) {
  Call call("cuLaunchKernel", Needs::context);
  if (call.is_over()) return call.code();
  const Function* const found = find_function(function);
  Stream* const on = call.machine().stream(stream);
  if (found == nullptr || on == nullptr || on->context != found->context) {
    call.machine().violation(say("cuLaunchKernel of %p on %s", function,
                                 on == nullptr ? "no stream" : on->name.c_str()));
    return kInvalidHandle;
  }
  const uint64_t threads = uint64_t{block_x} * block_y * block_z;
  if (grid_x == 0 || grid_y != 1 || grid_z != 1 || threads == 0 || threads > 1024 ||
      parameters == nullptr || extra != nullptr)
    return kInvalidValue;
  const Kernel* const kernel = found->kernel;
  auto parameter = std::make_shared<std::vector<std::byte>>(kernel->parameter_bytes);
  memcpy(parameter->data(), parameters[0], kernel->parameter_bytes);
  call.machine().enqueue(
      on, kernel->name,
      [kernel, parameter, grid_x] { return kernel->touches(parameter->data(), grid_x); },
      [kernel, parameter, grid_x] { kernel->run(parameter->data(), grid_x); });
  return kSuccess;
}
