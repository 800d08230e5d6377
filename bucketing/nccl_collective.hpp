// NcclCollective: a communicator's collectives on its GPUs, by NCCL, on a stream of its own.
//
// Either ours, which joins the other ranks by an id that one of them made, or a caller's, which
// stays the caller's. An operation waits, on the device, for its pair's `ready` and records `done`
// behind itself; the host waits for nothing. A communicator of ours does not block in NCCL either:
// where NCCL goes on by itself, as at the first operations while it connects, the launcher looks
// until the operation is on the stream, within the operation's bound.
//
// Ranks launch the same operations in the same order; NCCL does not compare them.
//
// Failures: NCCL's and CUDA's words as they are. After one the communicator is out of step, and is
// to be aborted, which ends what is under way on the device. NCCL's abort frees the communicator,
// a caller's too.
//
// Costs: an operation is one call of NCCL and two of the driver; v-forms one of NCCL's a rank.
//
// Threads: begin() and operations one at a time; look(), abort() and leave() one thread, while
// operations are launched; registrations init only, and never beside an operation's launch.
#pragma once

#include <noria/bucketing.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "bucketing/control.hpp"
#include "bucketing/cuda_stream.hpp"
#include "bucketing/device_operations.hpp"
#include "bucketing/nccl_api.hpp"
#include "bucketing/seat.hpp"

namespace noria::bucketing {

// Memory of the device. `count` as NCCL's: of reduce_scatter the block that a rank gets, of
// all_gather the one that it gives.
struct DevicePart {
  const void* in = nullptr;
  void* out = nullptr;
  uint64_t count = 0;
  noria_dtype dtype = NORIA_FLOAT32;
  noria_op op = NORIA_SUM;
};

class NcclCollective {
 public:
  enum class Owner : uint8_t { noria, caller };
  struct Options {
    const CudaDevice* device = nullptr;
    const NcclApi* nccl = nullptr;
    int32_t rank = 0, size = 1;
  };

  // To be given to all ranks. Rank 0 of a communicator makes it.
  static Outcome<nccl::UniqueId> make_id(const NcclApi& nccl);
  // Every rank calls it. Until the deadline, or until `control`, if there is one, has failed.
  static Outcome<std::unique_ptr<NcclCollective>> join(const Options& options,
                                                       const nccl::UniqueId& id,
                                                       const ControlPlane* control,
                                                       Nanoseconds deadline);
  // ARG where it is of another size, rank or device.
  static Outcome<std::unique_ptr<NcclCollective>> adopt(const Options& options, nccl::Comm comm);
  ~NcclCollective();
  NcclCollective(const NcclCollective&) = delete;
  NcclCollective& operator=(const NcclCollective&) = delete;

  // The pair of the next operation. Whoever takes it has its `ready` recorded and calls one of the
  // operations, or fails the communicator. The device is current from here to there. `bound` is how
  // long it may go without progress: on its way to the stream, and once its inputs are there.
  NORIA_HOT DeviceOperation& begin(Nanoseconds bound) { return operations_.begin(bound); }
  NORIA_HOT Outcome<Ok> all_reduce(DeviceOperation& pair, const DevicePart& part);
  Outcome<Ok> reduce_scatter(DeviceOperation& pair, const DevicePart& part);
  Outcome<Ok> all_gather(DeviceOperation& pair, const DevicePart& part);
  Outcome<Ok> broadcast(DeviceOperation& pair, const DevicePart& part, int32_t root);
  // Rank r's block are the elements [edges[r], edges[r + 1]) of `in`, or of `out`.
  Outcome<Ok> reduce_scatter_v(DeviceOperation& pair, const DevicePart& part,
                               const std::vector<uint64_t>& edges);
  Outcome<Ok> all_gather_v(DeviceOperation& pair, const DevicePart& part,
                           const std::vector<uint64_t>& edges);

  // The stream of the operations.
  const CudaStream& stream() const { return stream_; }
  const CudaDevice& device() const { return *options_.device; }
  Owner owner() const { return owner_; }
  bool was_aborted() const { return is_over_.load(std::memory_order_acquire); }

  // Tells NCCL of memory that is used again and again; what it makes of it is its own affair, and
  // where it cannot, nothing is lost. Null: not registered. A caller's communicator is told too.
  void* register_memory(cuda::Pointer memory, size_t bytes);
  // Nothing under way uses the memory. False: NCCL may still count on it. After a failure it is the
  // abort that makes NCCL forget, for which this waits a few seconds.
  bool deregister_memory(void* handle);

  // ---- the watch's, and its owner's when that is gone
  // What NCCL found since; OK while all is well, or while a launcher is in NCCL and sees to it.
  Outcome<Ok> look();
  DeviceOperations& operations() { return operations_; }
  // Ends what is under way: from now on operations answer ABORTED. A call of NCCL's that a launcher
  // is in may go on for a second before.
  void abort();
  // What is under way is done. NCCL forgets what memory is left, and a caller's communicator is not
  // touched any more. Ours ends: all ranks come; else it is aborted at the deadline.
  void leave(Nanoseconds deadline);

 private:
  NcclCollective(const Options& options, Owner owner, CudaStream stream,
                 DeviceOperations operations);

  // Waits until NCCL has done what it was asked for, which it told by `answer`.
  Outcome<Ok> settle(const Outcome<bool>& answer, Nanoseconds deadline,
                     const ControlPlane* control) const;
  template <class Enqueue>
  Outcome<Ok> launch(DeviceOperation& pair, Enqueue enqueue);
  template <class EnqueueBlock>
  Outcome<bool> enqueue_blocks(EnqueueBlock enqueue_block);
  bool step_in() NORIA_TRY_ACQUIRE(true, inside_);
  bool forget(void* handle) NORIA_REQUIRES(inside_);
  bool await_end() const;

  const Options options_;
  const Owner owner_;
  nccl::Comm comm_ = nullptr;
  CudaStream stream_;
  DeviceOperations operations_;
  // Whoever is in NCCL: one thread at a time. A question about a communicator that does not block
  // takes back what NCCL began for it, and two at once would take it back twice. Who launches sits
  // down, then looks whether all is over; who aborts says so, then looks whether somebody sits:
  // sequentially consistent, so that one of the two sees the other.
  Seat inside_;
  std::atomic<bool> is_over_{false};
  std::atomic<bool> has_ended_{false};  // NCCL came back from it, and counts on no memory of ours
  // An operation failed in NCCL, which may be in the midst of it: it is asked for nothing more.
  bool is_out_of_step_ NORIA_GUARDED_BY(inside_) = false;
  std::vector<void*> registered_ NORIA_GUARDED_BY(inside_);  // handles; the same one twice, maybe
  bool has_told_ NORIA_GUARDED_BY(inside_) = false;          // that NCCL does not register
};

}  // namespace noria::bucketing
