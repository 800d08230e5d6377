#include "perf/pack_speed.hpp"

#include <algorithm>

#include "base/units.hpp"
#include "bucketing/kernels.hpp"
#include "bucketing/plan.hpp"
#include "perf/stats.hpp"

namespace noria::perf {

namespace {

using bucketing::CudaSymbols;
using bucketing::DevicePack;
using bucketing::dtype_bytes;

constexpr uint64_t kAllocationAlign = 512;  // of a framework's gradients
constexpr uint64_t kSlots = 2;

struct PackedBucket {
  DevicePack pack;
  uint64_t bytes;
};

class Packing {
 public:
  Packing(CudaLane& lane, const Trace& trace, noria_dtype wire, bucketing::PackScale scale)
      : lane_(lane), watch_(lane), heap_(lane.memory(place(trace))) {
    std::vector<bucketing::PlanTensor> tensors;
    for (const TraceTensor& tensor : trace.tensors) tensors.push_back({tensor.numel, tensor.dtype});
    const bucketing::Plan plan = bucketing::plan_buckets(
        bucketing::PlanKind::ddp, tensors, bucketing::reverse_registration(tensors.size()), {});
    for (const bucketing::Bucket& bucket : plan.buckets) add(plan, trace, bucket, wire, scale);
    slots_.push_back(lane.memory(slot_bytes_ * kSlots));
  }

  PackSpeed measure(int rounds) {
    std::vector<double> pack_us, unpack_us, copy_us;
    constexpr int kWarmups = 2;  // tables are written in the first
    for (int round = 0; round < kWarmups + rounds; ++round) {
      const double pack = timed([&](PackedBucket& bucket, uint64_t slot) {
        need(bucket.pack.pack(lane_.handle(), slot));
      });
      const double copy = timed([&](PackedBucket& bucket, uint64_t slot) {
        need(lane_.device().api().call<&CudaSymbols::copy_on_device>(
            bucketing::cuda::Pointer{slot}, heap_.pointer(), bucket.bytes, lane_.handle()));
      });
      const double unpack = timed([&](PackedBucket& bucket, uint64_t slot) {
        need(bucket.pack.unpack(lane_.handle(), slot));
      });
      if (round < kWarmups) continue;
      pack_us.push_back(pack);
      copy_us.push_back(copy);
      unpack_us.push_back(unpack);
    }
    PackSpeed speed{.traffic = traffic_, .buckets = buckets_.size()};
    for (const PackedBucket& bucket : buckets_) speed.bytes += bucket.bytes;
    speed.pack_us = median(pack_us);
    speed.unpack_us = median(unpack_us);
    speed.copy_us = median(copy_us);
    return speed;
  }

 private:
  // Says where gradients lie, each by itself, and returns how much they take.
  uint64_t place(const Trace& trace) {
    uint64_t next = 0;
    for (const TraceTensor& tensor : trace.tensors) {
      at_.push_back(next);
      next = align_up(next + tensor.numel * dtype_bytes(tensor.dtype), kAllocationAlign);
    }
    return next;
  }

  void add(const bucketing::Plan& plan, const Trace& trace, const bucketing::Bucket& bucket,
           noria_dtype wire, bucketing::PackScale scale) {
    const uint64_t element = dtype_bytes(bucket.dtype);
    const noria_dtype travels_as = bucket.dtype == NORIA_FLOAT32 ? wire : bucket.dtype;
    std::vector<bucketing::PackTensor> parts;
    for (const uint32_t id : bucket.tensors) {
      const bucketing::ArenaRange whole{plan.offsets[id],
                                        plan.offsets[id] + trace.tensors[id].numel * element};
      const bucketing::ArenaRange part = bucketing::part_in_bucket(bucket, whole);
      parts.push_back({.first = (part.begin - whole.begin) / element,
                       .count = part.bytes() / element,
                       .at = (part.begin - bucket.arena_offset) / element});
    }
    buckets_.push_back(
        {need(DevicePack::create(lane_.device(), parts, bucket.dtype, travels_as, scale)),
         bucket.bytes});
    for (uint32_t slot = 0; slot < parts.size(); ++slot)
      buckets_.back().pack.point(slot, heap_.pointer() + at_[bucket.tensors[slot]]);
    slot_bytes_ = std::max(slot_bytes_, align_up<uint64_t>(bucket.bytes, kAllocationAlign));
    traffic_ += bucket.numel * (element + dtype_bytes(travels_as));
  }

  template <class Each>
  double timed(const Each& each) {
    watch_.begin();
    for (size_t i = 0; i < buckets_.size(); ++i)
      each(buckets_[i], slots_[0].pointer() + i % kSlots * slot_bytes_);
    watch_.end();
    return watch_.elapsed_us();
  }

  CudaLane& lane_;
  CudaStopwatch watch_;
  std::vector<uint64_t> at_;  // of each tensor in the heap
  bucketing::DeviceMemory heap_;
  std::vector<PackedBucket> buckets_;
  std::vector<bucketing::DeviceMemory> slots_;  // one piece
  uint64_t slot_bytes_ = 0;
  uint64_t traffic_ = 0;
};

}  // namespace

PackSpeed measure_packing(CudaLane& lane, const Trace& trace, noria_dtype wire,
                          bucketing::PackScale scale, int rounds) {
  return Packing(lane, trace, wire, scale).measure(rounds);
}

}  // namespace noria::perf
