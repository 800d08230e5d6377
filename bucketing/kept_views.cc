#include "bucketing/kept_views.hpp"

#include <utility>

namespace noria::bucketing {

Outcome<Ok> KeptViews::save(const View& view, cuda::Stream stream) {
  auto place = memory_.find(view.id);
  if (place == memory_.end()) {
    auto made = DeviceMemory::allocate_in(*device_, view.bytes, stream);
    if (!made)
      return Failure{made.failure().code,
                     made.failure().text +
                         "; it was to keep what stands in the view of an unused tensor: take "
                         "NORIA_UNUSED_ZERO where that is not needed"};
    place = memory_.emplace(view.id, std::move(*made)).first;
  }
  saved_.push_back(view);
  return device_->api().call<&CudaSymbols::copy_on_device>(place->second.pointer(), view.at,
                                                           view.bytes, stream);
}

Outcome<bool> KeptViews::put_back(const std::function<bool(uint32_t)>& is_used,
                                  cuda::Stream stream) const {
  bool is_any = false;
  for (const View& view : saved_) {
    if (is_used(view.id)) continue;
    is_any = true;
    NORIA_TRY(device_->api().call<&CudaSymbols::copy_on_device>(
        view.at, memory_.at(view.id).pointer(), view.bytes, stream));
  }
  return is_any;
}

}  // namespace noria::bucketing
