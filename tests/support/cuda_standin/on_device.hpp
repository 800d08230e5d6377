// A thread of a test on one device of the stand-in: its context is current, and what it makes it
// owns.
//
// Threads: the one that made it.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/support/cuda_standin/driver.hpp"
#include "tests/support/cuda_standin/driver_numbers.hpp"
#include "tests/support/cuda_standin/standin.hpp"

namespace noria::standin {

class OnDevice {
 public:
  explicit OnDevice(int device) : device_(device) {
    EXPECT_EQ(cuInit(0), kSuccess);
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&context_, device), kSuccess);
    EXPECT_EQ(cuCtxPushCurrent_v2(context_), kSuccess);
  }
  // Waits for all of the device: what it frees is nobody's then.
  ~OnDevice() {
    EXPECT_EQ(cuCtxSynchronize(), kSuccess);
    for (void* const stream : streams_) EXPECT_EQ(cuStreamDestroy_v2(stream), kSuccess);
    for (void* const event : events_) EXPECT_EQ(cuEventDestroy_v2(event), kSuccess);
    for (const uint64_t address : memory_) EXPECT_EQ(cuMemFree_v2(address), kSuccess);
    EXPECT_EQ(cuCtxPopCurrent_v2(nullptr), kSuccess);
    EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(device_), kSuccess);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  void* context() const { return context_; }
  void* stream(unsigned flags = kStreamNonBlocking) {
    void* made = nullptr;
    EXPECT_EQ(cuStreamCreateWithPriority(&made, flags, 0), kSuccess);
    streams_.push_back(made);
    return made;
  }
  void* event() {
    void* made = nullptr;
    EXPECT_EQ(cuEventCreate(&made, kEventDisableTiming), kSuccess);
    events_.push_back(made);
    return made;
  }
  template <class T>
  uint64_t memory(size_t count) {
    uint64_t address = 0;
    EXPECT_EQ(cuMemAlloc_v2(&address, count * sizeof(T)), kSuccess);
    memory_.push_back(address);
    return address;
  }
  // `after` waits for what `before` has been told so far; not one of the calls that are counted.
  void order(void* before, void* after) const { standin::order(before, after); }
  // A kernel that writes the values.
  template <class T>
  void write(void* on, uint64_t address, const std::vector<T>& values,
             const char* name = "writer") {
    launch(on, name, {}, {{address, values.size() * sizeof(T)}},
           [address, values] { std::copy(values.begin(), values.end(), memory_as<T>(address)); });
  }
  // What a copy to the host behind `on` brings.
  template <class T>
  std::vector<T> read(void* on, uint64_t address, size_t count) {
    std::vector<T> values(count);
    EXPECT_EQ(cuMemcpyDtoHAsync_v2(values.data(), address, count * sizeof(T), on), kSuccess);
    return values;
  }

 private:
  int device_;
  void* context_ = nullptr;
  std::vector<void*> streams_;
  std::vector<void*> events_;
  std::vector<uint64_t> memory_;
};

}  // namespace noria::standin
