#include "perf/bench_memory.hpp"

#include "base/clock.hpp"
#include "perf/cuda_lane.hpp"
#include "perf/machine.hpp"

namespace noria::perf {

namespace {

class HostMemory : public BenchMemory {
 public:
  explicit HostMemory(uint64_t bytes) : in_(bytes), out_(bytes) {}

  std::byte* in() const override { return static_cast<std::byte*>(in_.get()); }
  std::byte* out() const override { return static_cast<std::byte*>(out_.get()); }
  const noria_stream* stream() const override { return nullptr; }

  void fill(std::byte* at, uint64_t, const std::function<void(std::byte*)>& write) override {
    write(at);
  }
  uint64_t look_at(const std::byte* at, uint64_t,
                   const std::function<uint64_t(const std::byte*)>& look) override {
    return look(at);
  }
  double timed(const std::function<void()>& calls) override {
    const Nanoseconds begin = now_ns();
    calls();
    return static_cast<double>(now_ns() - begin) * 1e-3;
  }
  double timed_inside(const std::function<void()>& call) override { return timed(call); }

 private:
  Buffer in_, out_;
};

class OnDevice : public BenchMemory {
 public:
  OnDevice(CudaLane& lane, uint64_t bytes)
      : lane_(lane),
        in_(lane.memory(bytes)),
        out_(lane.memory(bytes)),
        here_(bytes),
        stream_(lane.stream()),
        all_(lane),
        one_(lane) {}

  std::byte* in() const override { return reinterpret_cast<std::byte*>(in_.pointer()); }
  std::byte* out() const override { return reinterpret_cast<std::byte*>(out_.pointer()); }
  const noria_stream* stream() const override { return &stream_; }

  void fill(std::byte* at, uint64_t bytes, const std::function<void(std::byte*)>& write) override {
    write(here());
    lane_.to_device(reinterpret_cast<uint64_t>(at), here(), bytes);
  }
  uint64_t look_at(const std::byte* at, uint64_t bytes,
                   const std::function<uint64_t(const std::byte*)>& look) override {
    lane_.to_host(here(), reinterpret_cast<uint64_t>(at), bytes);
    return look(here());
  }
  double timed(const std::function<void()>& calls) override { return by(all_, calls); }
  double timed_inside(const std::function<void()>& call) override { return by(one_, call); }

 private:
  static double by(CudaStopwatch& watch, const std::function<void()>& calls) {
    watch.begin();
    calls();
    watch.end();
    return watch.elapsed_us();
  }
  std::byte* here() const { return static_cast<std::byte*>(here_.get()); }

  CudaLane& lane_;
  bucketing::DeviceMemory in_, out_;
  Buffer here_;
  noria_stream stream_;
  CudaStopwatch all_, one_;
};

}  // namespace

std::unique_ptr<BenchMemory> host_memory(uint64_t bytes) {
  return std::make_unique<HostMemory>(bytes);
}

std::unique_ptr<BenchMemory> device_memory(CudaLane& lane, uint64_t bytes) {
  return std::make_unique<OnDevice>(lane, bytes);
}

}  // namespace noria::perf
