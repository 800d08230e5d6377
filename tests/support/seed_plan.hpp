// What a seed draws for a run of seeded traffic: the numbers, and the world that they make.
//
// Threads: values.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace noria::test {

// The same numbers for the same seed (a well-mixed counter).
class Draw {
 public:
  explicit Draw(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  // 0 to n - 1.
  uint64_t below(uint64_t n) {
    state_ += 0x9e3779b97f4a7c15u;
    uint64_t x = (state_ ^ state_ >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (x ^ x >> 31) % n;
  }
  uint64_t between(uint64_t least, uint64_t most) { return least + below(most - least + 1); }
  bool one_in(uint64_t n) { return below(n) == 0; }
  template <class T, size_t N>
  const T& of(const std::array<T, N>& values) {
    return values[below(N)];
  }

 private:
  uint64_t state_;
};

struct SeedPlan {
  std::string faults, place, rate_gbit, latency_us;
  uint32_t statuses = 0;  // a bit for each ibv_wc_status that a request may end with
  bool has_bad_keys = false;
  bool shares_queues = false;  // one completion queue a device
  bool maps_memory = false;
  uint8_t ack_timeout = 10, retry_count = 1, rnr_retry = 7;
  uint64_t pairs_per_rail = 1, rounds = 60;

  // Nothing may fail at all.
  bool is_quiet() const { return statuses == 0; }
};

SeedPlan draw_plan(Draw& draw);
// What the software HCA reads of it, into the environment of this process; and no logs.
void set_world(const SeedPlan& plan);

constexpr const char* kSeedDevices =
    "name=a0,ll=ib,host=a;name=b0,ll=ib,host=b;name=a1,ll=eth,host=a;name=b1,ll=eth,host=b";

}  // namespace noria::test
