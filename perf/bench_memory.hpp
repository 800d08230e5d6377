// Where a benchmark's buffers lie, and how its calls are timed there.
//
// On the host the data is written and read in place, calls return with their results, and the clock
// times them. On a GPU data goes through a buffer of the host's, calls are given a stream, and
// CUDA's events time what the device does for them.
//
// Threads: one per rank.
#pragma once

#include <noria/bucketing.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace noria::perf {

class CudaLane;

class BenchMemory {
 public:
  virtual ~BenchMemory() = default;

  // The first bytes of the two buffers.
  virtual std::byte* in() const = 0;
  virtual std::byte* out() const = 0;
  // What calls are given; NULL: the host's.
  virtual const noria_stream* stream() const = 0;

  // `write` writes what shall be at `at`, `bytes` long.
  virtual void fill(std::byte* at, uint64_t bytes,
                    const std::function<void(std::byte*)>& write) = 0;
  // What `look` says of what is at `at`, behind all calls so far.
  virtual uint64_t look_at(const std::byte* at, uint64_t bytes,
                           const std::function<uint64_t(const std::byte*)>& look) = 0;
  // Microseconds from the beginning of `calls` to the end of what they asked for; and the same of
  // one of them, which is waited for.
  virtual double timed(const std::function<void()>& calls) = 0;
  virtual double timed_inside(const std::function<void()>& call) = 0;
};

std::unique_ptr<BenchMemory> host_memory(uint64_t bytes);
// The lane outlives it.
std::unique_ptr<BenchMemory> device_memory(CudaLane& lane, uint64_t bytes);

}  // namespace noria::perf
