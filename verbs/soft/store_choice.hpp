// StoreChoice: whether bytes for a peer's memory go by plain stores or by streamed ones.
//
// A plain store takes the line away from the core that read it last. Within one cache that costs
// little; where the two cores share no cache it is 5 to 10 times dearer than a streamed store,
// which goes past the cache but makes the peer's first look dearer. Virtual machines change from
// one to the other within seconds, as the host moves their processors, so the choice rests on what
// copies cost now: the head of each large copy is timed, and of one in kProbeEvery the other way.
//
// Costs two readings of the clock for a copy of kTimedBytes or more, nothing for a smaller one.
//
// Threads: any thread; an update that is lost to another thread's does no harm.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.hpp"

namespace noria::soft {

class StoreChoice {
 public:
  enum class Way : uint8_t { plain, streamed };

  // The part of a copy that is timed. Smaller copies follow what larger ones found; where there is
  // none yet, they are streamed.
  static constexpr uint64_t kTimedBytes = 16 << 10;
  static constexpr uint32_t kProbeEvery = 64;
  // Plain stores win while they cost the writer less than this many times the streamed ones: the
  // reader then gains what the writer loses (32 KiB, two cores of one cache, us a MiB: streamed 29
  // to write and 69 to read, plain 31 and 31 where the reader took the lines; slot_baseline).
  static constexpr Nanoseconds kWorth = 2;

  Way way() const { return way_.load(std::memory_order_relaxed); }

  // The way to copy and time the next kTimedBytes.
  Way next_timed() {
    const uint32_t count = count_.load(std::memory_order_relaxed) + 1;
    count_.store(count, std::memory_order_relaxed);
    if (count % kProbeEvery != 0) return way();
    return way() == Way::plain ? Way::streamed : Way::plain;
  }

  // kTimedBytes took that long. The estimate follows by an eighth, however far off the sample is: a
  // thread that lost its core in between must not change the choice.
  void took(Way way, Nanoseconds time) {
    std::atomic<Nanoseconds>& estimate = estimates_[static_cast<uint8_t>(way)];
    const Nanoseconds old = estimate.load(std::memory_order_relaxed);
    estimate.store(time > old ? old + old / 8 : old - old / 8, std::memory_order_relaxed);
    const Nanoseconds plain = estimates_[0].load(std::memory_order_relaxed);
    const Nanoseconds streamed = estimates_[1].load(std::memory_order_relaxed);
    way_.store(plain < kWorth * streamed ? Way::plain : Way::streamed, std::memory_order_relaxed);
  }

 private:
  // Of no weight: the first copies correct them. Never below 8, where an eighth is nothing.
  static constexpr Nanoseconds kStart = 1000;

  std::atomic<Nanoseconds> estimates_[2] = {kStart, kStart};  // by Way
  std::atomic<uint32_t> count_{0};
  std::atomic<Way> way_{Way::streamed};
};

}  // namespace noria::soft
