// Arrival: when each gradient of an observed step came, and how far two orders are apart.
//
// Buckets are sent in one order on all ranks. Rank 0's order of the observed step decides it; a
// rank whose gradients come in another order stays correct, but what is ready early waits for what
// is sent before it. held_back_ns() says how long.
//
// Threads: note() any thread, several at once; the rest one at a time and never beside it. The
// functions are pure.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "bucketing/failure.hpp"

namespace noria::bucketing {

// What was seen of a backward pass.
struct ArrivalTimes {
  std::vector<uint32_t> order;     // tensors as they became ready
  std::vector<uint32_t> ready_us;  // by tensor, since the step began

  // Each tensor's place in `order`.
  std::vector<uint32_t> places() const;
};

class Arrival {
 public:
  explicit Arrival(uint32_t tensors);

  void restart();
  NORIA_HOT void note(uint32_t id) {
    // relaxed: read after the step's last caller has left. Of several fires the last one counts.
    seen_ns_[id].store(now_ns(), std::memory_order_relaxed);
  }
  bool has_any() const;
  // What was never noted comes last, with the latest of the others. `begun_ns`: when the step did.
  ArrivalTimes times(Nanoseconds begun_ns) const;

 private:
  const uint32_t tensors_;
  std::unique_ptr<std::atomic<Nanoseconds>[]> seen_ns_;
};

// For the other ranks. What is read back is an order of exactly `tensors` tensors, or MISMATCH.
std::string to_bytes(const ArrivalTimes& times);
Outcome<ArrivalTimes> arrival_from_bytes(std::string_view bytes, uint32_t tensors);

struct ReadyBucket {
  uint64_t bytes = 0;
  Nanoseconds ready_ns = 0;
};
// How long a byte that is ready waits, on average, for one that is sent before it and is not.
// Buckets in launch order.
Nanoseconds held_back_ns(std::span<const ReadyBucket> buckets);

}  // namespace noria::bucketing
