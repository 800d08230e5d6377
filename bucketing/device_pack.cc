#include "bucketing/device_pack.hpp"

#include "base/check.hpp"
#include "bucketing/kernels.hpp"
#include "bucketing/pack_kernels.hpp"

namespace noria::bucketing {

namespace {

template <class T>
T* at(cuda::Pointer address) {
  return reinterpret_cast<T*>(address);
}

}  // namespace

// ---- made --------------------------------------------------------------------------------------

Outcome<DevicePack> DevicePack::create(const CudaDevice& device,
                                       std::span<const PackTensor> tensors, noria_dtype tensor,
                                       noria_dtype bucket, PackScale scale) {
  NORIA_TRY_ASSIGN(const CudaDevice::Current current, device.make_current());
  DevicePack made(device, tensors, dtype_bytes(tensor));
  NORIA_TRY_ASSIGN(made.module_, PackModule::of(device));
  if (made.module_->has_kernels()) {
    NORIA_TRY(made.make_tiles(tensor, bucket, scale));
  } else if (tensor != bucket || scale.before != 1 || scale.after != 1) {
    return Failure{NORIA_E_UNSUPPORTED,
                   "gradients cannot be cast or divided on " + device.name() + ", since " +
                       made.module_->why_none() +
                       ": let them travel as they are (wire_dtype 0, NORIA_AVERAGE_POST), or build "
                       "noria where CMake finds nvcc"};
  }
  return made;
}

Outcome<Ok> DevicePack::make_tiles(noria_dtype tensor, noria_dtype bucket, PackScale scale) {
  tiles_ = cut_tiles(tensors_);
  NORIA_TRY_ASSIGN(DeviceMemory memory,
                   DeviceMemory::allocate(*device_, tiles_.size() * sizeof(PackTile) +
                                                        tensors_.size() * sizeof(cuda::Pointer)));
  table_on_device_ = memory.pointer() + tiles_.size() * sizeof(PackTile);
  memory_.push_back(std::move(memory));
  NORIA_TRY_ASSIGN(pack_, make_way(PackWay::pack, tensor, bucket, scale.before));
  NORIA_TRY_ASSIGN(unpack_, make_way(PackWay::unpack, bucket, tensor, scale.after));
  return Ok{};
}

Outcome<DevicePack::Way> DevicePack::make_way(PackWay way, noria_dtype from, noria_dtype to,
                                              float divisor) const {
  const std::string kernel = pack_kernel_name(way, from, to, divisor);
  NORIA_CHECK(find_pack_kernel(kernel) != nullptr, "gradients that no kernel casts or divides");
  Way made;
  NORIA_TRY_ASSIGN(made.kernel, module_->find(kernel));
  made.args = pack_args(divisor, element_bytes_);
  made.args.tiles = at<const PackTile>(memory_[0].pointer());
  made.args.pointers = at<const uint64_t>(table_on_device_);
  return made;
}

// ---- used --------------------------------------------------------------------------------------

Outcome<Ok> DevicePack::pack(cuda::Stream stream, cuda::Pointer bucket) {
  if (!module_->has_kernels()) [[unlikely]]
    return copy_in(stream, bucket);
  if (table_->has_moved.load(std::memory_order_relaxed)) NORIA_TRY(write_table(stream));
  return launch(pack_, stream, bucket);
}

Outcome<Ok> DevicePack::unpack(cuda::Stream stream, cuda::Pointer bucket) {
  if (!module_->has_kernels()) [[unlikely]]
    return copy_out(stream, bucket);
  // Where nothing was packed before.
  if (table_->has_moved.load(std::memory_order_relaxed)) NORIA_TRY(write_table(stream));
  return launch(unpack_, stream, bucket);
}

Outcome<Ok> DevicePack::launch(const Way& way, cuda::Stream stream, cuda::Pointer bucket) const {
  if (tiles_.empty()) [[unlikely]]
    return Ok{};
  PackArgs args = way.args;
  args.bucket = at<void>(bucket);
  void* parameters[] = {&args};
  return device_->api().call<&CudaSymbols::launch_kernel>(
      way.kernel, static_cast<unsigned>(tiles_.size()), 1U, 1U, kPackThreads, 1U, 1U, 0U, stream,
      parameters, nullptr);
}

// What lies in memory that is not pinned the driver has read when it returns. Tiles stay as they
// are, and come with the first table: by the stream that needs them, which so comes behind them.
Outcome<Ok> DevicePack::write_table(cuda::Stream stream) {
  if (tiles_.empty()) return Ok{};
  if (!table_->has_tiles)
    NORIA_TRY(device_->api().call<&CudaSymbols::copy_to_device>(
        memory_[0].pointer(), tiles_.data(), tiles_.size() * sizeof(PackTile), stream));
  table_->has_tiles = true;
  NORIA_TRY(device_->api().call<&CudaSymbols::copy_to_device>(
      table_on_device_, table_->addresses.data(), tensors_.size() * sizeof(cuda::Pointer), stream));
  table_->has_moved.store(false, std::memory_order_relaxed);
  return Ok{};
}

Outcome<Ok> DevicePack::copy_in(cuda::Stream stream, cuda::Pointer bucket) const {
  for (size_t slot = 0; slot < tensors_.size(); ++slot) {
    const PackTensor& tensor = tensors_[slot];
    if (tensor.count == 0) continue;
    const cuda::Pointer from = table_->addresses[slot];
    const cuda::Pointer to = bucket + tensor.at * element_bytes_;
    const size_t bytes = tensor.count * element_bytes_;
    if (from == 0)
      NORIA_TRY(device_->api().call<&CudaSymbols::memory_set>(to, uint8_t{0}, bytes, stream));
    else
      NORIA_TRY(device_->api().call<&CudaSymbols::copy_on_device>(
          to, from + tensor.first * element_bytes_, bytes, stream));
  }
  return Ok{};
}

Outcome<Ok> DevicePack::copy_out(cuda::Stream stream, cuda::Pointer bucket) const {
  for (size_t slot = 0; slot < tensors_.size(); ++slot) {
    const PackTensor& tensor = tensors_[slot];
    const cuda::Pointer to = table_->addresses[slot];
    if (tensor.count == 0 || to == 0) continue;
    NORIA_TRY(device_->api().call<&CudaSymbols::copy_on_device>(
        to + tensor.first * element_bytes_, bucket + tensor.at * element_bytes_,
        tensor.count * element_bytes_, stream));
  }
  return Ok{};
}

}  // namespace noria::bucketing
