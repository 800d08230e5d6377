// DeviceBuckets: a reducer's buckets in the memory of a GPU, and what is done to them there.
//
// A bucket that is complete is launched by the thread that completed it, with those behind it in
// the plan's order that are complete too; nobody waits for the device. What a bucket goes through,
// on two streams:
//
//   copy   waits for the streams that wrote its gradients, packs it into a slot
//   NCCL's waits for that, reduces the slot
//   copy   waits for that, unpacks the slot to where the gradients came from
//
// Where gradients lie in the arena as they travel, NCCL reduces them in place. There are
// max_in_flight slots. A bucket is unpacked just before the next one that needs its slot is packed,
// so that copy never stands before a reduction while something could be packed; finish() unpacks
// the rest. Where each rank keeps a shard, NCCL leaves it in the slot, and it alone is unpacked, to
// where it stays. One rank reduces nothing: consumers wait for producers.
//
// The order of streams and events is all that guards memory: a pointer or a slot is used again only
// behind the work that used it before. A stream that gave a gradient is asked for an event when the
// bucket is launched, and must live until then.
//
// Costs: a gradient that lies where it did before, some dozen instructions; a bucket, a few calls
// of the driver and one of NCCL, whatever the number of tensors. No allocation, but for a view that
// is kept for the first time (kept_views.hpp); no lock but, for a bucket, to see whose turn it is,
// for a stream that the bucket has no room for, and for what is left out.
//
// Threads: note(), leave_out() and on_complete() any thread, several at once, for a tensor or
// bucket one at a time; launch_complete() any thread; publish() and is_published() likewise, once a
// bucket is launched; the rest one at a time and never beside them.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.hpp"
#include "bucketing/bucket_times.hpp"
#include "bucketing/cuda_event.hpp"
#include "bucketing/device_host.hpp"
#include "bucketing/device_memory.hpp"
#include "bucketing/device_pack.hpp"
#include "bucketing/kept_views.hpp"
#include "bucketing/open_steps.hpp"
#include "bucketing/plan.hpp"
#include "bucketing/producer_streams.hpp"
#include "bucketing/reducer_config.hpp"
#include "bucketing/registered_memory.hpp"
#include "bucketing/seat.hpp"
#include "bucketing/tensor_table.hpp"

namespace noria::bucketing {

class DeviceBuckets {
 public:
  // Launches while `step` is the first of `steps`: of several that are open the ranks' NCCL must
  // see the same one first.
  struct Turn {
    const OpenSteps* steps = nullptr;
    const OpenStep* step = nullptr;
  };
  struct Place {
    uint32_t rank = 0, ranks = 1;
  };
  // `tensors` stay as they are from install() on. `timeout` is a step's.
  DeviceBuckets(const DeviceHost& host, const ReducerConfig& config, const Place& place,
                const TensorTable& tensors, const Turn& turn, Nanoseconds timeout);
  // Waits for what is under way; where that does not end, its memory is not given back.
  ~DeviceBuckets();
  DeviceBuckets(const DeviceBuckets&) = delete;
  DeviceBuckets& operator=(const DeviceBuckets&) = delete;

  // Memory, tiles and tables for a plan. Where that fails the one before stays.
  Outcome<Ok> install(const Plan& plan);
  // Of arena mode.
  std::byte* arena() const { return reinterpret_cast<std::byte*>(arena_->pointer()); }
  // Where the bucket's shard of this rank is, after a step.
  std::byte* shard(uint32_t bucket) const {
    return reinterpret_cast<std::byte*>(installed_->buckets[bucket].shard);
  }
  CallerStreams* streams() const { return host_.streams; }

  // A step begins; of the one before, times are read if it is over.
  Outcome<Ok> restart(Nanoseconds begun_ns);
  // The next window's gradients may come from elsewhere.
  void forget_producers();

  // Before the tensor counts as given: its gradient is at `grad` (copy mode) when what `producer`
  // was given so far is done; none: now. ARG where that is no memory for it.
  NORIA_HOT Outcome<Ok> note(uint32_t id, const void* grad, std::optional<cuda::Stream> producer);
  // This rank gives zeros for the tensor, which lies at `range` of the arena. With KEEP and views
  // what stood there is saved.
  Outcome<Ok> leave_out(uint32_t id, const ArenaRange& range);
  // All gradients of the bucket are noted, or left out.
  NORIA_HOT Outcome<Ok> on_complete(uint32_t bucket);
  // Launches what is complete if it is the step's turn, as it may be since the last one was.
  Outcome<Ok> launch_complete();

  bool is_launched(uint32_t bucket) const;
  // The results of a bucket that is launched: `consumer` sees them in what it is given from now on;
  // the host, when is_published().
  Outcome<Ok> publish(uint32_t bucket, std::optional<cuda::Stream> consumer);
  Outcome<bool> is_published(uint32_t bucket) const {
    return installed_->buckets[bucket].published->is_done();
  }
  // All buckets are complete: their results as in publish(); the host, when is_done().
  Outcome<Ok> finish(std::optional<cuda::Stream> consumer);
  Outcome<bool> is_done() const { return done_->is_done(); }
  // After finish(), with the step's verdict: of tensors that were left out here, and that nobody
  // `is_used`, by id, what was saved is the result; seen as in finish().
  Outcome<Ok> put_back(const std::function<bool(uint32_t)>& is_used,
                       std::optional<cuda::Stream> consumer);
  // What a step that is not done stands at.
  struct Standing {
    uint32_t ended = 0;                    // so many buckets were packed, and were reduced, in all
    bool is_reducing = false;              // some bucket: NCCL's affair, and the watch's
    std::optional<uint32_t> bucket;        // the first whose gradients are not there
    std::optional<cuda::Stream> producer;  // one that has not come to them
  };
  Outcome<Standing> look() const;

  // What `consumer`, if there is one, is given from now on sees the results of the step that ended.
  Outcome<Ok> show_results(std::optional<cuda::Stream> consumer);
  // Copy mode: where the tensor's gradient came from, and its result goes.
  cuda::Pointer given(uint32_t id) const { return given_[id].load(std::memory_order_relaxed); }

  // Blocks of `memory` between steps: each rank gives its own, and gets the others'. The host sees
  // them when is_gathered().
  struct Gathering {
    std::byte* memory = nullptr;
    noria_dtype dtype = NORIA_FLOAT32;
    std::vector<uint64_t> edges;  // of the ranks' blocks, in elements
  };
  Outcome<Ok> gather(std::span<const Gathering> parts);
  Outcome<bool> is_gathered() const { return mark_->is_done(); }

  // Between steps: an all-reduce, which ends when is_done(), and how long it took then.
  Outcome<Ok> start_probe(cuda::Pointer memory, uint64_t bytes);
  Outcome<double> probe_us() const;

  // Of a step that is_done(): reads them from the device.
  Outcome<Ok> read_times();
  // In the last step of which they were read under this plan; 0: none was, or there is one rank.
  WireTimes times(uint32_t bucket) const { return times_[bucket]; }

 private:
  // Where a tensor lies in a bucket: its slot in the table of pointers.
  struct Seated {
    uint32_t bucket = 0;
    uint32_t slot = 0;
  };
  struct Travelling {
    noria_dtype wire = NORIA_FLOAT32;  // what NCCL sees
    uint64_t numel = 0;
    uint64_t block = 0;  // of each rank, in elements; 0: all are everybody's
    cuda::Pointer in_arena = 0, shard = 0;
    std::optional<DevicePack> pack;        // none: reduced in place
    std::optional<DevicePack> own;         // unpacks the shard alone
    std::atomic<bool> is_complete{false};  // seq_cst: see Seat
    ProducerStreams producers;
    std::optional<CudaEvent> packed, reduced;  // with timing
    std::optional<CudaEvent> published;
    bool is_published = false;  // in this step; with the seat
  };
  // What follows from a plan.
  struct Installed {
    std::unique_ptr<Travelling[]> buckets;
    uint32_t size = 0;
    std::vector<Seated> places;          // tensor by tensor
    std::vector<uint32_t> first_places;  // by id, and past the last
    uint32_t slots = 0;
    uint64_t slot_bytes = 0;
    std::optional<RegisteredMemory> memory;  // of the slots

    std::span<const Seated> places_of(uint32_t id) const {
      return {places.data() + first_places[id], places.data() + first_places[id + 1]};
    }
  };

  Outcome<Ok> make_events();
  Outcome<Ok> make_arena(const Plan& plan);
  Outcome<Ok> make_bucket(const Plan& plan, uint32_t index, Travelling* made);
  Outcome<Ok> place_shards(const Plan& plan, Installed* made);
  Outcome<Ok> make_shards(const Plan& plan, Installed* made);
  void find_places(const Plan& plan, Installed* made) const;
  Outcome<Ok> make_slots(Installed* made) const;
  bool is_packed(const Bucket& bucket) const;
  // Null where NCCL does nothing.
  NcclCollective* nccl() const { return ranks_ > 1 ? host_.nccl : nullptr; }
  noria_dtype wire_of(noria_dtype dtype) const;
  noria_op op() const;
  PackScale scale() const;
  Outcome<bool> is_idle_within(Nanoseconds patience);
  Outcome<Ok> find_late_producer(uint32_t bucket, Standing* standing) const;

  NORIA_COLD Outcome<Ok> move_gradient(uint32_t id, cuda::Pointer address);
  void point_at(uint32_t id, cuda::Pointer address);
  NORIA_COLD Outcome<Ok> wait_now(cuda::Stream producer);
  // What copy is given from now on comes behind what `stream` was given so far, by the event.
  NORIA_HOT Outcome<Ok> hold_copy_back(cuda::Stream stream, CudaEvent& mark) const;

  Outcome<Ok> launch_row() NORIA_REQUIRES(seat_);
  NORIA_HOT Outcome<Ok> launch(uint32_t index) NORIA_REQUIRES(seat_);
  NORIA_HOT Outcome<Ok> reduce(Travelling& bucket, cuda::Pointer place) NORIA_REQUIRES(seat_);
  NORIA_HOT Outcome<Ok> unpack(uint32_t index) NORIA_REQUIRES(seat_);
  Outcome<Ok> unpack_to(uint32_t end) NORIA_REQUIRES(seat_);
  Outcome<Ok> wait_for_last_reduction();
  cuda::Stream copy() const { return copy_->handle(); }
  cuda::Pointer slot_of(uint32_t index) const {
    return installed_->memory->pointer() + index % installed_->slots * installed_->slot_bytes;
  }

  const DeviceHost host_;
  const CudaDevice& device_;
  const ReducerConfig config_;
  const uint32_t rank_, ranks_;
  const TensorTable& tensors_;
  const Turn turn_;
  const Nanoseconds timeout_;

  std::optional<CudaStream> copy_;
  std::optional<RegisteredMemory> arena_;
  std::optional<DeviceMemory> shards_;  // copy mode, whatever the plan
  std::unique_ptr<Installed> installed_;
  std::unique_ptr<std::atomic<cuda::Pointer>[]> given_;  // copy mode, by id: as in the tables
  std::optional<CudaEvent> begun_, done_;                // of a step, with timing
  bool has_ended_ = false;                               // a step, of which no times were read
  Nanoseconds begun_ns_ = 0;
  std::vector<WireTimes> times_;

  Seat seat_;                                            // whoever launches
  std::atomic<uint32_t> next_{0};                        // to be launched; written with the seat
  uint32_t unpacked_ NORIA_GUARDED_BY(seat_) = 0;        // so many first buckets
  std::optional<Failure> lost_ NORIA_GUARDED_BY(seat_);  // nothing is launched any more
  std::optional<CudaEvent> written_;  // by a producer, at a launch; with the seat
  std::optional<CudaEvent> mark_;     // between steps

  Mutex mutex_;
  std::optional<cuda::Stream> consumer_ NORIA_GUARDED_BY(mutex_);  // of the last step's results
  std::optional<CudaEvent> written_now_ NORIA_GUARDED_BY(mutex_);
  KeptViews kept_ NORIA_GUARDED_BY(mutex_);
};

}  // namespace noria::bucketing
