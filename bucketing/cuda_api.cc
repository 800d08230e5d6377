#include "bucketing/cuda_api.hpp"

#include <memory>
#include <utility>

namespace noria::bucketing {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

noria_status status_of(cuda::Result result) {
  switch (result) {
    case cuda::Result::out_of_memory: return NORIA_E_NOMEM;
    case cuda::Result::invalid_value: return NORIA_E_ARG;
    case cuda::Result::not_supported: return NORIA_E_UNSUPPORTED;
    default: return NORIA_E_DEVICE;
  }
}

// What to try; empty where nobody knows.
const char* advice_for(cuda::Result result) {
  switch (result) {
    case cuda::Result::out_of_memory:
      return "; give the GPU's memory back, or ask for less: smaller buckets, fewer in flight";
    case cuda::Result::not_initialized:
      return "; a child of fork() cannot use CUDA if its parent does: start it by exec";
    case cuda::Result::deinitialized: return "; the process is about to end";
    case cuda::Result::stub_library:
      return "; this is the library to link with: take the driver's own libcuda.so.1 off the path "
             "of stubs";
    case cuda::Result::no_device:
      return "; look at nvidia-smi, CUDA_VISIBLE_DEVICES and /dev/nvidia*";
    case cuda::Result::system_driver_mismatch:
      return "; the kernel's driver and the library are of different versions: reload the one, or "
             "install the other";
    case cuda::Result::illegal_address:
    case cuda::Result::launch_failed:
      return "; a kernel of this process failed before, whoever launched it: "
             "CUDA_LAUNCH_BLOCKING=1 "
             "or compute-sanitizer shows which";
    default: return "";
  }
}

}  // namespace

Outcome<CudaSymbols> CudaSymbols::load(const SharedObject& library) {
  CudaSymbols symbols;
  std::string missing;
#define NORIA_CUDA(member, function, arguments, required, answers) \
  take_function(library, #function, required, &symbols.member, &missing);
#include "bucketing/cuda_symbols.def"
#undef NORIA_CUDA
  if (missing.empty()) return symbols;
  return Failure{NORIA_E_UNSUPPORTED, library.path() + " has no " + missing +
                                          ": a driver for CUDA 11.4 or later has all that is "
                                          "needed"};
}

CudaApi::CudaApi(SharedObject library, const CudaSymbols& symbols)
    : library_(std::move(library)), symbols_(symbols) {}

Outcome<const CudaApi*> CudaApi::open(const std::string& path) {
  static auto* const all = new OpenLibraries<CudaApi>;  // never destroyed: as the header says
  return all->get(path, [&path]() -> Outcome<std::unique_ptr<const CudaApi>> {
    auto library = SharedObject::open(path.empty() ? kLibrary : path);
    if (!library)
      return Failure{NORIA_E_DEVICE, "cannot load CUDA's driver library: " + library.failure() +
                                         "; it comes with the GPU's driver, and NORIA_CUDA may "
                                         "name another"};
    NORIA_TRY_ASSIGN(const CudaSymbols symbols, CudaSymbols::load(*library));
    std::unique_ptr<const CudaApi> api(new CudaApi(std::move(*library), symbols));
    NORIA_TRY(api->call<&CudaSymbols::init>(0U));
    return api;
  });
}

Failure CudaApi::failed(const char* function, cuda::Result result) const {
  const char *name = nullptr, *text = nullptr;
  // A number that the library does not know leaves both null.
  symbols_.get_error_name(result, &name);
  symbols_.get_error_string(result, &text);
  std::string words = std::string(function) + ": ";
  words += name != nullptr ? name : "error " + std::to_string(static_cast<int>(result));
  if (text != nullptr) words += std::string(" (") + text + ")";
  return {status_of(result), words + advice_for(result)};
}

}  // namespace noria::bucketing
