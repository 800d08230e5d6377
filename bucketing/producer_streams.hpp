// ProducerStreams: the streams that wrote the gradients of a bucket, each once.
//
// Frameworks write gradients on one stream or a few, so that what a gradient costs is a comparison.
// Of those there is no room for, the caller waits at once.
//
// Threads: add() any thread, several at once; each() and clear() one at a time and never beside it.
#pragma once

#include <array>
#include <atomic>

#include "base/check.hpp"
#include "bucketing/cuda_types.hpp"
#include "bucketing/failure.hpp"

namespace noria::bucketing {

class ProducerStreams {
 public:
  static constexpr size_t kMost = 8;

  // `stream` is not null, which stands for an empty place. False: there is no room.
  NORIA_HOT bool add(cuda::Stream stream) {
    for (auto& place : places_) {
      // relaxed, here and below: what says that the bucket is complete publishes it.
      cuda::Stream seen = place.load(std::memory_order_relaxed);
      if (seen == nullptr) place.compare_exchange_strong(seen, stream, std::memory_order_relaxed);
      if (seen == stream || seen == nullptr) return true;
    }
    return false;
  }

  // visit(stream) answers an Outcome; the first failure ends it.
  template <class Visit>
  Outcome<Ok> each(const Visit& visit) const {
    for (const auto& place : places_) {
      const cuda::Stream stream = place.load(std::memory_order_relaxed);
      if (stream == nullptr) break;
      NORIA_TRY(visit(stream));
    }
    return Ok{};
  }
  void clear() {
    for (auto& place : places_) place.store(nullptr, std::memory_order_relaxed);
  }

 private:
  std::array<std::atomic<cuda::Stream>, kMost> places_{};
};

}  // namespace noria::bucketing
