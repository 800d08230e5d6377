// slot_baseline: what it costs to fill memory that another core reads, and to read it, by the way
// of storing and by what the reader does to the lines: why bucketing/slot_lines.hpp and
// verbs/soft/store_choice.hpp are as they are.
//
// Two threads, a few slots, in turn: one fills a slot, the other reads it. No rank, no device.

#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <new>
#include <thread>

#include "base/clock.hpp"
#include "bucketing/slot_lines.hpp"
#include "perf/command_line.hpp"
#include "perf/sizes.hpp"
#include "perf/stats.hpp"
#include "verbs/soft/streamed_store.hpp"

namespace noria::perf {
namespace {

constexpr const char* kName = "slot_baseline";
constexpr size_t kSlots = 4;

enum class Way { plain, streamed, plain_taken };
constexpr std::array<Way, 3> kWays{Way::plain, Way::streamed, Way::plain_taken};
constexpr std::array<const char*, 3> kNames{"plain stores", "past the cache", "plain, lines taken"};

struct Costs {
  std::vector<double> fill, read;  // us a MiB
};

// Page-aligned, touched.
class Buffer {
 public:
  explicit Buffer(size_t bytes)
      : data_(static_cast<std::byte*>(::operator new(bytes, std::align_val_t(4096)))) {
    std::memset(data_, 1, bytes);
  }
  ~Buffer() { ::operator delete(data_, std::align_val_t(4096)); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  std::byte* at(size_t offset) const { return data_ + offset; }

 private:
  std::byte* data_;
};

class Bench {
 public:
  explicit Bench(size_t slot_bytes)
      : bytes_(slot_bytes),
        slots_(kWays.size() * kSlots * slot_bytes),
        source_(slot_bytes),
        out_(slot_bytes) {}

  // `rounds` of each way, one way after the other.
  void run(size_t rounds, std::array<Costs, kWays.size()>& costs) {
    for (size_t i = 0; i < kWays.size(); ++i) run_way(kWays[i], rounds, costs[i]);
  }

 private:
  void run_way(Way way, size_t rounds, Costs& costs) {
    const uint64_t start = turn_.load(std::memory_order_relaxed);
    std::thread reader([&] {
      for (size_t i = 0; i < rounds; ++i) {
        wait_for(start + 2 * i + 1);
        costs.read.push_back(time([&] { read(way, slot(way, i)); }));
        turn_.store(start + 2 * i + 2, std::memory_order_release);
      }
    });
    for (size_t i = 0; i < rounds; ++i) {
      costs.fill.push_back(time([&] { fill(way, slot(way, i)); }));
      turn_.store(start + 2 * i + 1, std::memory_order_release);
      wait_for(start + 2 * i + 2);
    }
    reader.join();
  }

  // Each way has its own: what one leaves in the caches is not the next one's start.
  std::byte* slot(Way way, size_t round) const {
    return slots_.at((static_cast<size_t>(way) * kSlots + round % kSlots) * bytes_);
  }

  void fill(Way way, std::byte* slot) const {
    if (way == Way::streamed)
      soft::store_streamed(reinterpret_cast<uint8_t*>(slot),
                           reinterpret_cast<const uint8_t*>(source_.at(0)), bytes_);
    else
      std::memcpy(slot, source_.at(0), bytes_);
  }
  void read(Way way, std::byte* slot) const {
    if (way == Way::plain_taken)
      bucketing::copy_out_of_slot(out_.at(0), slot, bytes_);
    else
      std::memcpy(out_.at(0), slot, bytes_);
  }

  // Never yields: threads that do may both stay on one core, where nothing has to move.
  void wait_for(uint64_t turn) const {
    while (turn_.load(std::memory_order_acquire) != turn) {
    }
  }

  template <class Act>
  double time(Act act) const {
    const Nanoseconds start = now_ns();
    act();
    return static_cast<double>(now_ns() - start) * 1e-3 * 1048576 / static_cast<double>(bytes_);
  }

  const size_t bytes_;
  Buffer slots_, source_, out_;
  alignas(64) std::atomic<uint64_t> turn_{0};
};

int body(int argc, char** argv) {
  std::vector<std::string> sizes{"32K", "256K"};
  int rounds = 20;
  CLI::App app(
      "Times how one thread fills slots of memory that another reads: by plain stores, by stores "
      "past the cache, and by plain stores where the reader takes the lines. Medians, us a MiB.\n"
      "Exit: 0, 2 usage.",
      kName);
  app.add_option("--sizes", sizes, "bytes of a slot (32K,256K)")
      ->delimiter(',')
      ->transform(byte_size(64, uint64_t{64} << 20));
  app.add_option("--rounds", rounds, "turns of all ways, 100 slots each (20)")
      ->check(whole_number(1, 100000));
  if (parse_command_line(app, argc, argv)) return 0;
  std::printf("# %8s  %-20s %8s %8s %8s\n", "bytes", "way", "fill", "read", "both");
  for (const std::string& size : sizes) {
    const auto bytes = static_cast<size_t>(parse_size(size).value_or(0));
    Bench bench(bytes);
    std::array<Costs, kWays.size()> costs;
    for (int round = 0; round < rounds; ++round) bench.run(100, costs);
    for (size_t i = 0; i < kWays.size(); ++i) {
      const double fill = median(costs[i].fill), read = median(costs[i].read);
      std::printf("  %8zu  %-20s %8.1f %8.1f %8.1f\n", bytes, kNames[i], fill, read, fill + read);
    }
  }
  return 0;
}

}  // namespace
}  // namespace noria::perf

int main(int argc, char** argv) {
  return noria::perf::run_tool(noria::perf::kName, &noria::perf::body, argc, argv);
}
