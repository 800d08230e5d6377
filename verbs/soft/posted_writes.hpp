// Posted writes: what arrived for memory that was registered by descriptor, and is not seen there.
//
// On hardware such memory is another device's: a write to it is posted on the bus, and its message
// may complete here before it is there. A read through the same network device pushes it on. Late
// placement keeps writes back until then: until a READ or an atomic of that memory, or a request
// that sends from it; and at most until the region is deregistered, or until kMost bytes wait,
// for buses have room for a few only. Their order is kept.
//
// Threads: any thread; a leaf among the locks.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "base/mutex.hpp"
#include "base/units.hpp"
#include "verbs/soft/shared_layout.hpp"

namespace noria::soft {

class PostedWrites {
 public:
  static constexpr uint64_t kMost = 16_MiB;

  // `to` stays mapped until publish().
  void add(uint32_t device, uint8_t* to, const uint8_t* from, uint64_t bytes)
      NORIA_EXCLUDES(mutex_);
  // All that came through the device is there when this returns.
  void publish(uint32_t device) NORIA_EXCLUDES(mutex_);

 private:
  struct Write {
    uint8_t* to;
    std::vector<uint8_t> bytes;
  };
  struct Waiting {
    std::vector<Write> writes;
    uint64_t bytes = 0;
  };
  void publish_locked(uint32_t device) NORIA_REQUIRES(mutex_);

  Mutex mutex_;
  std::array<Waiting, kMaxDevices> waiting_ NORIA_GUARDED_BY(mutex_);
};

}  // namespace noria::soft
