// DevicePack: packs one bucket on a GPU, and unpacks it.
//
// Where the tensors are is told by point(); a kernel reads it from a table in the device's memory,
// which is written anew only where something moved. A tensor without memory (0) gives zeros and
// gets nothing back. Values are cast where tensors and bucket differ, and divided.
//
// Without kernels (pack_module.hpp) tensors are copied one by one, each by a call of the driver;
// what would be cast or divided is then UNSUPPORTED.
//
// It must outlive what it gave to a stream, and not the device.
//
// Costs: pack() and unpack() are a launch each, whatever the number of tensors, and a copy to the
// device where something moved; neither waits, allocates or locks.
//
// Threads: point() any thread, for a slot one at a time, and not beside pack(); pack() and unpack()
// one at a time, with the device current.
#pragma once

#include <noria/bucketing.h>

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "bucketing/device_memory.hpp"
#include "bucketing/pack_kernels.hpp"
#include "bucketing/pack_module.hpp"
#include "bucketing/pack_tiles.hpp"

namespace noria::bucketing {

// What values are divided by.
struct PackScale {
  float before = 1;  // as they are packed
  float after = 1;   // as they are unpacked
};

class DevicePack {
 public:
  // `tensor` is what the tensors hold, `bucket` what the bucket does: the same, or float32 that is
  // rounded to float16 or bfloat16. Integers are not divided.
  static Outcome<DevicePack> create(const CudaDevice& device, std::span<const PackTensor> tensors,
                                    noria_dtype tensor, noria_dtype bucket, PackScale scale);

  // From now on the tensor's first element is at `address`, which is aligned to it.
  NORIA_HOT void point(uint32_t slot, cuda::Pointer address) {
    if (table_->addresses[slot] == address) return;
    table_->addresses[slot] = address;
    // relaxed: whoever packs comes behind all who pointed.
    table_->has_moved.store(true, std::memory_order_relaxed);
  }
  // `bucket` is the bucket's first element. What the stream is given is done in order; all of one
  // DevicePack is given to one stream, which thereby orders the table too.
  NORIA_HOT Outcome<Ok> pack(cuda::Stream stream, cuda::Pointer bucket);
  NORIA_HOT Outcome<Ok> unpack(cuda::Stream stream, cuda::Pointer bucket);

 private:
  struct Table {
    explicit Table(size_t slots) : addresses(slots) {}

    std::vector<cuda::Pointer> addresses;  // by slot
    std::atomic<bool> has_moved{true};     // since they were last written to the device
    bool has_tiles = false;                // the device
  };
  // One way: a kernel, or none.
  struct Way {
    cuda::Function kernel = nullptr;
    PackArgs args{};
  };

  DevicePack(const CudaDevice& device, std::span<const PackTensor> tensors, uint32_t element_bytes)
      : device_(&device),
        tensors_(tensors.begin(), tensors.end()),
        element_bytes_(element_bytes),
        table_(std::make_unique<Table>(tensors.size())) {}

  Outcome<Ok> make_tiles(noria_dtype tensor, noria_dtype bucket, PackScale scale);
  Outcome<Way> make_way(PackWay way, noria_dtype from, noria_dtype to, float divisor) const;
  NORIA_HOT Outcome<Ok> launch(const Way& way, cuda::Stream stream, cuda::Pointer bucket) const;
  NORIA_COLD Outcome<Ok> write_table(cuda::Stream stream);
  NORIA_COLD Outcome<Ok> copy_in(cuda::Stream stream, cuda::Pointer bucket) const;
  NORIA_COLD Outcome<Ok> copy_out(cuda::Stream stream, cuda::Pointer bucket) const;

  const CudaDevice* device_;
  std::shared_ptr<const PackModule> module_;
  std::vector<PackTensor> tensors_;
  uint32_t element_bytes_;
  std::unique_ptr<Table> table_;
  std::vector<DeviceMemory> memory_;  // of the tiles, and of the table behind them; or nothing
  std::vector<PackTile> tiles_;
  cuda::Pointer table_on_device_ = 0;
  Way pack_, unpack_;
};

}  // namespace noria::bucketing
