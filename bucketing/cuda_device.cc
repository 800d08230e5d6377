#include "bucketing/cuda_device.hpp"

#include <array>

#include "base/log.hpp"

namespace noria::bucketing {
namespace {

Outcome<int32_t> current_ordinal(const CudaApi& api) {
  cuda::Context context = nullptr;
  NORIA_TRY(api.call<&CudaSymbols::context_get_current>(&context));
  if (context == nullptr) return 0;  // as the CUDA runtime takes it
  cuda::Device device = 0;
  NORIA_TRY(api.call<&CudaSymbols::context_get_device>(&device));
  return static_cast<int32_t>(device);
}

}  // namespace

Outcome<std::unique_ptr<CudaDevice>> CudaDevice::create(const std::string& library,
                                                        int32_t ordinal) {
  if (ordinal < -1)
    return Failure{NORIA_E_ARG, "device " + std::to_string(ordinal) +
                                    ": it is 0 or more, or -1 for the current one"};
  NORIA_TRY_ASSIGN(const CudaApi* const api, CudaApi::open(library));
  if (ordinal == -1) {
    NORIA_TRY_ASSIGN(ordinal, current_ordinal(*api));
  }
  int count = 0;
  NORIA_TRY(api->call<&CudaSymbols::device_get_count>(&count));
  if (ordinal >= count)
    return Failure{NORIA_E_ARG, "device " + std::to_string(ordinal) +
                                    " is none: this process sees " + std::to_string(count) +
                                    " of CUDA's; look at "
                                    "CUDA_VISIBLE_DEVICES"};
  cuda::Device handle = 0;
  NORIA_TRY(api->call<&CudaSymbols::device_get>(&handle, ordinal));
  std::array<char, 128> model{};
  NORIA_TRY(api->call<&CudaSymbols::device_get_name>(model.data(),
                                                     static_cast<int>(model.size()) - 1, handle));
  std::unique_ptr<CudaDevice> device(new CudaDevice(*api, ordinal, handle));
  device->name_ = "CUDA device " + std::to_string(ordinal) + " (" + model.data() + ")";
  NORIA_TRY(api->call<&CudaSymbols::primary_retain>(&device->context_, handle));
  return device;
}

CudaDevice::~CudaDevice() {
  if (context_ == nullptr) return;
  if (auto released = api_->call<&CudaSymbols::primary_release>(device_); !released)
    log(LogLevel::info, "%s: %s", name_.c_str(), released.failure().text.c_str());
}

Outcome<CudaDevice::Current> CudaDevice::make_current() const {
  cuda::Context current = nullptr;
  NORIA_TRY(api_->call<&CudaSymbols::context_get_current>(&current));
  if (current == context_) return Current(nullptr);
  NORIA_TRY(api_->call<&CudaSymbols::context_push_current>(context_));
  return Current(api_);
}

void CudaDevice::Current::take_back() {
  cuda::Context ours = nullptr;
  if (auto popped = api_->call<&CudaSymbols::context_pop_current>(&ours); !popped)
    log(LogLevel::warn, "the caller's CUDA context is not current again: %s",
        popped.failure().text.c_str());
}

Outcome<Ok> CudaDevice::check_memory(const std::string& argument, const void* pointer) const {
  NORIA_TRY_ASSIGN(const Current current, make_current());
  // Of memory that CUDA does not know all answers stay 0.
  unsigned type = 0;
  int ordinal = -1;
  const std::array which{cuda::PointerAttribute::memory_type,
                         cuda::PointerAttribute::device_ordinal};
  std::array<void*, 2> values{&type, &ordinal};
  NORIA_TRY(api_->call<&CudaSymbols::pointer_get_attributes>(
      static_cast<unsigned>(which.size()), which.data(), values.data(),
      reinterpret_cast<cuda::Pointer>(pointer)));
  if (type != cuda::kMemoryOfDevice)
    return Failure{NORIA_E_ARG, argument + " is not memory of a GPU, and this communicator is of " +
                                    name_ + ": give its memory, or use a communicator of the host"};
  if (ordinal != ordinal_)
    return Failure{NORIA_E_ARG, argument + " is memory of CUDA device " + std::to_string(ordinal) +
                                    ", and this communicator is of " + name_};
  return Ok{};
}

}  // namespace noria::bucketing
