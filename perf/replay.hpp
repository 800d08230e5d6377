// A backward pass replayed against noria: each rank hands over its gradients at their ready times.
//
// The compute thread sleeps until each ready time, as a host does whose accelerator computes, so
// that the cores are free for communication. Gradients are filled before the step begins and
// compared after it ended, outside the measured time; every element of every step is compared.
//
//  sequential  one all-reduce of all gradients in one buffer, after the backward pass
//  per_tensor  one asynchronous all-reduce a tensor, at its ready time
//  bucketed    the reducer
//  when_full   DDP's plan in the reducer, as DDP runs it: a bucket is given when all of it is ready
//
// Threads: one per rank.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "perf/communicator.hpp"
#include "perf/ready_times.hpp"
#include "perf/trace.hpp"

namespace noria::perf {

class CudaLane;

enum class Mode { sequential, per_tensor, bucketed, when_full };
inline constexpr std::array<Mode, 4> kModes{Mode::sequential, Mode::per_tensor, Mode::bucketed,
                                            Mode::when_full};

constexpr const char* mode_name(Mode mode) {
  switch (mode) {
    case Mode::sequential: return "sequential";
    case Mode::per_tensor: return "per-tensor";
    case Mode::bucketed: return "bucketed";
    case Mode::when_full: return "when-full";
  }
  return "?";
}

struct ReplayPlan {
  Trace trace;
  ReadyTimes times;
  int steps = 10;
  int warmups = 2;
  bool copies = false;         // gradients live in memory of the tool's, not in the reducer's arena
  uint32_t max_in_flight = 0;  // of copies; 0: all buckets
  uint64_t bucket_bytes = 0;   // 0: noria's own
  uint64_t first_bucket_bytes = 0;  // 0: noria's own
  uint64_t last_bucket_bytes = 0;   // 0: noria's own
  uint32_t kind = NORIA_PLAN_DDP;
  uint32_t order = NORIA_ORDER_REVERSE;
  std::string load_plan, save_plan;  // files; empty: none
  // The tensors of each bucket of DDP's plan with these caps, for Mode::when_full.
  std::vector<std::vector<uint32_t>> ddp_buckets;
};

// A transfer as the timeline shows it; ns of CLOCK_MONOTONIC.
struct Transfer {
  uint64_t bytes = 0;
  uint32_t tensors = 0;
  int64_t ready_ns = 0, start_ns = 0, end_ns = 0;
  int64_t first_ns = 0, queued_ns = 0, wire_ns = 0;  // as noria_bucket_info has them; 0: unknown
};

struct StepTimes {
  int64_t begin_ns = 0, end_ns = 0;
  int64_t reported_exposed_ns = 0;  // of a reducer
  std::vector<int64_t> ready_ns;    // as handed over, in order of arrival
  std::vector<Transfer> transfers;
};

struct ModeResult {
  Mode mode = Mode::sequential;
  std::vector<double> step_ms;           // of the measured steps
  std::vector<double> communication_ms;  // per step; per_tensor: of the same calls with no backward
  // Of a reducer, per step: exposed time as the library reports it, and as a clock outside sees it,
  // from the call for the last gradient to the end of step_end.
  std::vector<double> reported_exposed_ms, outside_exposed_ms;
  double cpu_seconds = 0;  // of all measured steps
  double seal_ms = 0;      // of a reducer: of noria_reducer_seal()
  uint64_t wrong = 0;      // elements, over all steps
  StepTimes last;
};

class Replay {
 public:
  // `lane`: gradients lie on that GPU, which is the communicator's too; NULL: on the host.
  Replay(const ReplayPlan& plan, Communicator& comm, CudaLane* lane);

  // Collective. `progress` is called with the number of each step that begins.
  ModeResult run(Mode mode, const std::function<void(int)>& progress);

  // Collective: times of `calls` flat all-reduces with no backward pass, slowest rank of each.
  std::vector<double> flat_ms(int calls);

 private:
  class Gradients;
  class Strategy;
  class Sequential;
  class PerTensor;
  class Bucketed;
  class WhenFull;

  const ReplayPlan& plan_;
  ReplayPlan ddp_plan_;  // of Mode::when_full
  Communicator& comm_;
  CudaLane* lane_;
};

}  // namespace noria::perf
