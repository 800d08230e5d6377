// What the tools ask of the machine: what it is, free memory, CPU time, aligned memory, and where
// they themselves lie.
//
// Threads: any thread.
#pragma once

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <new>
#include <string>
#include <thread>

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

// "AMD EPYC, 2 cores", for what is measured here.
inline std::string machine_text() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  std::string model = "unknown processor";
  for (std::string line; std::getline(cpuinfo, line);)
    if (line.starts_with("model name")) {
      model = line.substr(line.find(':') + 2);
      break;
    }
  return model + ", " + std::to_string(std::thread::hardware_concurrency()) + " cores";
}

// Of the program that runs, with the '/' at its end.
inline std::string own_folder() {
  std::array<char, 4096> path{};
  const ssize_t n = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
  const std::string self(path.data(), static_cast<size_t>(std::max<ssize_t>(n, 0)));
  return self.substr(0, self.rfind('/') + 1);
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
