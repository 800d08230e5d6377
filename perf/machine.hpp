// What the tools ask of the machine: free memory, CPU time, aligned memory.
//
// Threads: any thread.
#pragma once

#include <time.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <new>
#include <string>

namespace noria::perf {

// Of this process, all threads, user and system.
inline double process_cpu_seconds() {
  timespec ts;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
  return static_cast<double>(ts.tv_sec) + static_cast<double>(ts.tv_nsec) * 1e-9;
}

// What can be used without swapping; all there is where the kernel does not say.
inline uint64_t available_memory_bytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key;
  uint64_t kibibytes = 0;
  std::string rest;
  while (meminfo >> key >> kibibytes && std::getline(meminfo, rest))
    if (key == "MemAvailable:") return kibibytes * 1024;
  return UINT64_MAX;
}

// Page-aligned memory.
class Buffer {
 public:
  explicit Buffer(uint64_t bytes)
      : memory_(std::aligned_alloc(kPage, (bytes / kPage + 1) * kPage), &std::free) {
    if (memory_ == nullptr) throw std::bad_alloc();
  }
  void* get() const { return memory_.get(); }

 private:
  static constexpr uint64_t kPage = 4096;
  std::unique_ptr<void, decltype(&std::free)> memory_;
};

}  // namespace noria::perf
