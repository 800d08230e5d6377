// overlap_perf: how much of a model's gradient traffic hides behind its backward pass.

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "bucketing/plan_timed.hpp"
#include "perf/command_line.hpp"
#include "perf/cuda_lane.hpp"
#include "perf/local_ranks.hpp"
#include "perf/machine.hpp"
#include "perf/nccl_tests_json.hpp"
#include "perf/overlap_report.hpp"
#include "perf/stats.hpp"
#include "perf/step_bounds.hpp"
#include "perf/timeline.hpp"

namespace noria::perf {
namespace {

constexpr const char* kName = "overlap_perf";
constexpr double kDefaultBackwardMs = 200;
constexpr double kDefaultLatencyUs = 20;  // of a shaped link: a fabric's, with its switches
constexpr int kCalibrationCalls = 8;
constexpr double kMostRateGbit = 100000;

struct Options {
  std::string trace = "resnet50";
  std::vector<std::string> modes{"all"};
  int ranks = 2;
  std::string backend = "host";
  double backward_ms = 0;  // 0: not given
  double comm_ratio = 0;   // 0: not given
  double bucket_mib = 0;   // 0: noria's own
  double first_bucket_mib = 0;
  double last_bucket_mib = 0;
  std::string plan = "ddp";
  std::string order = "reverse";
  std::string load_plan, save_plan;
  int steps = 10;
  int warmups = 2;
  bool copies = false;
  uint32_t max_in_flight = 0;
  bool print_plan = false;
  bool json = false;
  std::string timeline, html;

  bool is_on_device() const { return backend == "nccl"; }
};

constexpr const char* kHelp =
    "Replays a model's backward pass on N local ranks and reduces its gradients in four ways.\n"
    "  sequential  one flat all-reduce after the backward pass\n"
    "  per-tensor  one asynchronous all-reduce a tensor, at its ready time\n"
    "  bucketed    the reducer: buckets, sent while the backward pass goes on\n"
    "  when-full   as DDP does: its plan, a bucket sent when all of it is ready\n"
    "The backward pass is a list of ready times: the compute thread sleeps until each, as a host "
    "does "
    "whose accelerator computes. Where a trace has no times, a tensor takes time in proportion to "
    "its "
    "elements + 2000, and embeddings come last and take none.\n"
    "step: from the begin to the end of step_end, slowest rank, median over steps. comm: sum of "
    "the "
    "buckets' wire times (per-tensor: the same calls with no backward pass). exposed: step - "
    "backward. "
    "efficiency: backward / step. GB is 10^9 bytes.\n"
    "Exit: 0 all right, 1 wrong result, 2 usage, 3 environment, 4 a rank was lost or time ran out.";

std::vector<std::string> plan_names() {
  std::vector<std::string> names;
  for (const bucketing::PlanKind kind : bucketing::kPlanKinds)
    names.emplace_back(bucketing::plan_name(kind));
  return names;
}

void add_flags(CLI::App& app, Options& o) {
  std::string models;
  for (const std::string& name : trace_names()) models += (models.empty() ? "" : ", ") + name;
  app.add_option("--trace", o.trace, "model or JSON file (resnet50). Models: " + models);
  app.add_option("--mode", o.modes,
                 "sequential, per-tensor, bucketed, when-full, several with commas, or all (all)")
      ->delimiter(',')
      ->check(CLI::Validator(
          [](std::string& text) {
            if (text == "all") return std::string();
            for (const Mode mode : kModes)
              if (text == mode_name(mode)) return std::string();
            return "'" + text +
                   "' is not accepted; it takes sequential, per-tensor, bucketed, when-full or all";
          },
          "MODE"));
  app.add_option("-g", o.ranks, "ranks to start on this machine (2)")->check(whole_number(1, 1024));
  app.add_option("--backend", o.backend,
                 "host: gradients of the host, over verbs; nccl: of a GPU a rank, through NCCL; "
                 "ranks share GPUs where there are fewer (host)")
      ->check(CLI::IsMember({"host", "nccl"}));
  app.add_option("--backward-ms", o.backward_ms,
                 "length of the backward pass (200, or the trace's own times)")
      ->check(real_number(0.1, 3.6e6));
  app.add_option(
         "--comm-ratio", o.comm_ratio,
         "shape the software HCA's link so that communication takes this many backward passes; "
         "latency 20 us unless NORIA_SOFT_LATENCY_US is set")
      ->check(real_number(0.01, 100));
  app.add_option("--bucket-mib", o.bucket_mib, "cap of a bucket, MiB (25)")
      ->check(real_number(0.001, 100000));
  app.add_option("--first-bucket-mib", o.first_bucket_mib, "cap of the first bucket, MiB (1)")
      ->check(real_number(0.001, 100000));
  app.add_option("--last-bucket-mib", o.last_bucket_mib,
                 "most that the last bucket holds, MiB (1); --plan strict")
      ->check(real_number(0.001, 100000));
  app.add_option(
         "--plan", o.plan,
         "how tensors are cut into buckets: ddp, as PyTorch's DDP (default); strict: no "
         "bucket above its cap, large tensors split, a small last bucket; planned: by the "
         "first step's times and the link (--print-plan: the trace's times, and a link that "
         "carries all gradients in --comm-ratio x backward, 1 if not given)")
      ->check(CLI::IsMember(plan_names()));
  app.add_option("--order", o.order,
                 "what buckets are filled and sent by: reverse of registration (default), or "
                 "arrival in the first step")
      ->check(CLI::IsMember({"reverse", "arrival"}));
  app.add_option("--save-plan", o.save_plan, "write the reducer's plan after the steps, as text")
      ->check(file_name());
  app.add_option("--load-plan", o.load_plan, "use the plan that --save-plan wrote")
      ->check(file_name());
  app.add_option("--steps", o.steps, "measured steps a mode (10)")->check(whole_number(1, 100000));
  app.add_option("--warmup", o.warmups, "steps before them (2)")->check(whole_number(0, 100000));
  auto* const copy = app.add_flag("--copy", o.copies,
                                  "gradients in memory of the tool's own; default: noria's arena");
  app.add_option("--in-flight", o.max_in_flight,
                 "buckets whose copies noria holds at once (all); with --copy")
      ->check(whole_number(1, 100000))
      ->needs(copy);
  app.add_flag("--print-plan", o.print_plan,
               "print the buckets as rows 'index bytes tensors' and end; starts nothing");
  app.add_flag("--json", o.json, "JSON instead of the table");
  app.add_option("--timeline", o.timeline, "write the last steps as a Chrome trace for Perfetto")
      ->check(file_name());
  app.add_option("--html", o.html, "write the last steps as a page for a browser")
      ->check(file_name());
}

bucketing::PlanKind kind_of(const std::string& name) {
  for (const bucketing::PlanKind kind : bucketing::kPlanKinds)
    if (name == bucketing::plan_name(kind)) return kind;
  return bucketing::PlanKind::ddp;  // the command line was checked
}

uint64_t bytes_of_mib(double mib) { return static_cast<uint64_t>(std::llround(mib * 0x1p20)); }

// A link over which all gradients take ratio x backward. The latency is paid on each step of a
// ring.
LinkCurve curve_of(const ReplayPlan& plan, const Options& options) {
  const double ratio = options.comm_ratio > 0 ? options.comm_ratio : 1;
  const double us = std::max(plan.times.backward_ms * 1e3 * ratio, 1e-3);
  return {.alpha_us = 2 * (options.ranks - 1) * kDefaultLatencyUs,
          .bytes_per_us = static_cast<double>(plan.trace.bytes()) / us};
}

bucketing::PlanCaps caps_of(const Options& options) {
  bucketing::PlanCaps caps;
  if (options.bucket_mib > 0) caps.bucket_bytes = bytes_of_mib(options.bucket_mib);
  if (options.first_bucket_mib > 0)
    caps.first_bucket_bytes = bytes_of_mib(options.first_bucket_mib);
  if (options.last_bucket_mib > 0) caps.last_bucket_bytes = bytes_of_mib(options.last_bucket_mib);
  return caps;
}

std::vector<bucketing::PlanTensor> tensors_of(const Trace& trace) {
  std::vector<bucketing::PlanTensor> tensors;
  for (const TraceTensor& tensor : trace.tensors) tensors.push_back({tensor.numel, tensor.dtype});
  return tensors;
}

bucketing::Plan ddp_plan_of(const Trace& trace, const Options& options) {
  const std::vector<bucketing::PlanTensor> tensors = tensors_of(trace);
  return bucketing::plan_buckets(bucketing::PlanKind::ddp, tensors,
                                 bucketing::reverse_registration(tensors.size()), caps_of(options));
}

// As the reducer makes it; planned, as it makes it after its first step.
bucketing::Plan plan_of(const ReplayPlan& plan, const Options& options) {
  const bucketing::PlanCaps caps = caps_of(options);
  const std::vector<bucketing::PlanTensor> tensors = tensors_of(plan.trace);
  const bucketing::PlanKind kind = kind_of(options.plan);
  const bool is_planned = kind == bucketing::PlanKind::planned;
  const std::vector<uint32_t> fill_order =
      options.copies && (is_planned || options.order == "arrival")
          ? plan.times.order
          : bucketing::reverse_registration(tensors.size());
  if (is_planned)
    return bucketing::plan_by_times(tensors, fill_order, caps, ready_us(plan.times),
                                    curve_of(plan, options));
  bucketing::Plan made = bucketing::plan_buckets(kind, tensors, fill_order, caps);
  if (options.order == "reverse") return made;
  std::vector<uint32_t> places(plan.times.order.size());
  for (uint32_t i = 0; i < places.size(); ++i) places[plan.times.order[i]] = i;
  bucketing::launch_in_order(made, places);
  return made;
}

void print_plan(const bucketing::Plan& plan) {
  for (size_t i = 0; i < plan.buckets.size(); ++i)
    std::printf("%zu %llu %zu\n", i, static_cast<unsigned long long>(plan.buckets[i].bytes),
                plan.buckets[i].tensors.size());
}

// A line that a terminal shows while one waits; nothing where standard error is a file.
void progress(const std::string& text) {
  if (::isatty(STDERR_FILENO) == 0) return;
  std::fprintf(stderr, "\r\033[K%s", text.c_str());
  std::fflush(stderr);
}

bool has_mode(const Options& options, Mode wanted) {
  return std::any_of(options.modes.begin(), options.modes.end(), [&](const std::string& name) {
    return name == "all" || name == mode_name(wanted);
  });
}

// The link that the ranks are given.
struct Link {
  double rate_gbit = 0;
  double latency_us = 0;
  bool is_ours = false;  // set by --comm-ratio, not by the environment

  std::vector<std::pair<std::string, std::string>> environment() const {
    if (!is_ours) return {};
    return {{"NORIA_SOFT_RATE_GBIT", detail::number_text(rate_gbit)},
            {"NORIA_SOFT_LATENCY_US", detail::number_text(latency_us)}};
  }
};

std::vector<RankReport> decode_all(const LocalResult& result) {
  std::vector<RankReport> reports;
  for (const std::string& text : result.reports) reports.push_back(decode(text));
  return reports;
}

// A rank's communicator, and the GPU that it is of, if it is of one.
struct Joined {
  std::unique_ptr<CudaLane> lane;
  Communicator comm;

  Joined(LocalRank& rank, const Options& options)
      : lane(options.is_on_device() ? CudaLane::of_rank(params_of_environment(), rank.rank())
                                    : nullptr),
        comm(rank, lane != nullptr ? std::optional(lane->device().ordinal()) : std::nullopt) {}
};

void describe(const Joined& joined, RankReport& report) {
  const noria_comm_info info = joined.comm.info();
  report.device = joined.lane != nullptr ? joined.lane->device().name() : info.device;
  report.notice = info.notice;
  report.reads = info.reads;
}

// Flat all-reduces over the link, no backward pass: the fastest, and what device they ran on.
// What a busy machine adds to the others is no property of the link.
struct Calibration {
  double flat_ms = 0;
  bool is_software = false;
  Exit exit = Exit::ok;
};

Calibration calibrate(const ReplayPlan& plan, const Options& options, const Link& link) {
  const LocalResult result =
      run_local_ranks({.tool = kName, .size = options.ranks, .environment = link.environment()},
                      [&](LocalRank& local) {
                        Joined joined(local, options);
                        RankReport report;
                        describe(joined, report);
                        Replay replay(plan, joined.comm, joined.lane.get());
                        replay.flat_ms(1);
                        report.flat_ms = replay.flat_ms(kCalibrationCalls);
                        local.report(encode(report));
                        joined.comm.barrier();
                        return Exit::ok;
                      });
  if (result.exit != Exit::ok) return {.exit = result.exit};
  const RankReport report = decode_all(result).front();
  return {.flat_ms = *std::min_element(report.flat_ms.begin(), report.flat_ms.end()),
          .is_software = report.device.find("software HCA") != std::string::npos};
}

// Finds the rate at which a flat all-reduce takes ratio x backward: first from the bytes that a
// ring carries, then corrected by a run. Where the device is real it cannot be shaped, so the
// backward pass is made as long as the ratio asks.
Exit fit_link(ReplayPlan& plan, const Options& options, Link& link) {
  const double target_ms = options.comm_ratio * plan.times.backward_ms;
  const double bits =
      static_cast<double>(plan.trace.bytes()) * 8 * 2 * (options.ranks - 1) / options.ranks;
  link.is_ours = true;
  link.rate_gbit = std::clamp(bits / (target_ms * 1e6), 1e-6, kMostRateGbit);
  progress("measuring the link");
  const Calibration measured = calibrate(plan, options, link);
  progress("");
  if (measured.exit != Exit::ok) return measured.exit;
  if (!measured.is_software) {
    std::fprintf(stderr,
                 "%s: a real device cannot be shaped: the backward pass is set to communication / "
                 "ratio = %.2f ms\n",
                 kName, measured.flat_ms / options.comm_ratio);
    plan.times = ready_times(plan.trace, measured.flat_ms / options.comm_ratio);
    link = {};
    return Exit::ok;
  }
  link.rate_gbit = std::clamp(link.rate_gbit * measured.flat_ms / target_ms, 1e-6, kMostRateGbit);
  return Exit::ok;
}

// All-reduces of what becomes ready last, alone.
std::vector<double> tail_ms(const ReplayPlan& plan, Joined& joined) {
  const ReplayPlan tail{.trace = tail_of(plan.trace, plan.times)};
  Replay replay(tail, joined.comm, joined.lane.get());
  replay.flat_ms(1);
  return replay.flat_ms(kCalibrationCalls);
}

LocalResult run_modes(const ReplayPlan& plan, const Options& options, const Link& link) {
  return run_local_ranks({.tool = kName, .size = options.ranks, .environment = link.environment()},
                         [&](LocalRank& local) {
                           Joined joined(local, options);
                           RankReport report;
                           describe(joined, report);
                           Replay replay(plan, joined.comm, joined.lane.get());
                           uint64_t wrong = 0;
                           for (const Mode mode : kModes) {
                             if (!has_mode(options, mode)) continue;
                             report.modes.push_back(replay.run(mode, [&](int step) {
                               if (local.rank() == 0)
                                 progress(std::string(mode_name(mode)) + ": step " +
                                          std::to_string(step + 1) + " of " +
                                          std::to_string(plan.warmups + plan.steps));
                             }));
                             wrong += report.modes.back().wrong;
                           }
                           if (options.ranks > 1 && has_mode(options, Mode::bucketed))
                             report.tail_ms = tail_ms(plan, joined);
                           local.report(encode(report));
                           joined.comm.barrier();  // a rank that leaves early looks like a lost one
                           return wrong == 0 ? Exit::ok : Exit::wrong_result;
                         });
}

OverlapSummary summary_of(const ReplayPlan& plan, const Options& options, const Link& link,
                          const std::vector<RankReport>& reports) {
  OverlapSummary s{.trace = plan.trace.name,
                   .tensors = plan.trace.tensors.size(),
                   .numel = plan.trace.numel(),
                   .bytes = plan.trace.bytes(),
                   .ranks = options.ranks,
                   .copies = options.copies,
                   .backward_ms = plan.times.backward_ms};
  if (options.comm_ratio > 0) s.comm_ratio = options.comm_ratio;
  s.rate_gbit = link.rate_gbit;
  s.latency_us = link.latency_us;
  s.device = reports[0].device;
  s.notice = reports[0].notice;
  s.reads = reports[0].reads;
  s.is_on_device = options.is_on_device();
  for (size_t m = 0; m < reports[0].modes.size(); ++m) {
    s.modes.push_back(summarize(reports, m, s.backward_ms, s.bytes));
    if (s.modes.back().mode == Mode::sequential) s.flat_ms = s.modes.back().communication_ms;
  }
  s.tail_bytes = tail_of(plan.trace, plan.times).bytes();
  if (!reports[0].tail_ms.empty()) s.tail_ms = median(reports[0].tail_ms);
  if (s.flat_ms > 0) {
    s.least_step_ms = least_step_ms(plan.trace, plan.times, s.flat_ms);
    s.ddp_step_ms =
        full_buckets_step_ms(plan.trace, plan.times, ddp_plan_of(plan.trace, options), s.flat_ms);
  }
  // Its buckets' own time where one all-reduce of everything was not measured.
  const double all_ms = s.flat_ms > 0 ? s.flat_ms : s.modes.back().communication_ms;
  s.full_buckets_step_ms =
      full_buckets_step_ms(plan.trace, plan.times, plan_of(plan, options), all_ms);
  return s;
}

// A plan is the reducer's: without the bucketed mode there is none to save, nor to load one into.
void require_reducer(const Options& options) {
  const bool is_bucketed = has_mode(options, Mode::bucketed);
  for (const auto& [flag, file] :
       {std::pair{"--save-plan", options.save_plan}, std::pair{"--load-plan", options.load_plan}}) {
    if (file.empty()) continue;
    if (!is_bucketed)
      throw usage_error(std::string(flag) + ": only --mode bucketed and --mode all have a plan");
    if (options.print_plan)
      throw usage_error(std::string(flag) + ": --print-plan starts no reducer; leave one of them");
  }
}

// Refuses what cannot be done together, before anything starts.
Link settle(const Options& options, const Params& params, const ReplayPlan& plan) {
  Link link{.rate_gbit = params.soft_rate_gbit, .latency_us = params.soft_latency_us};
  if (options.comm_ratio > 0) {
    if (options.ranks < 2)
      throw usage_error("--comm-ratio: one rank has no communication; use -g 2");
    if (params.soft_rate_gbit != 0)
      throw usage_error("--comm-ratio chooses NORIA_SOFT_RATE_GBIT itself; unset that variable");
    if (params.soft_latency_us == 0) link.latency_us = kDefaultLatencyUs;
  }
  // The gradients, the arena, and room for what the library needs beside them.
  const uint64_t needed = 3 * plan.trace.bytes() * static_cast<uint64_t>(options.ranks);
  if (const uint64_t available = available_memory_bytes(); needed > available)
    throw ToolError(Exit::environment, plan.trace.name + " on " + std::to_string(options.ranks) +
                                           " ranks needs about " + std::to_string(needed >> 20) +
                                           " MiB; " + std::to_string(available >> 20) +
                                           " MiB are free");
  return link;
}

int body(int argc, char** argv) {
  Options options;
  CLI::App app(kHelp, kName);
  add_flags(app, options);
  if (parse_command_line(app, argc, argv)) return 0;
  require_reducer(options);

  ReplayPlan plan{.trace = load_trace(options.trace)};
  const bool has_times = plan.trace.tensors[0].ready_ms.has_value();
  if (options.backward_ms == 0 && !has_times) options.backward_ms = kDefaultBackwardMs;
  plan.times =
      ready_times(plan.trace, options.backward_ms > 0 ? std::optional<double>(options.backward_ms)
                                                      : std::nullopt);
  if (options.print_plan) {
    print_plan(plan_of(plan, options));
    return 0;
  }
  plan.steps = options.steps;
  plan.warmups = options.warmups;
  plan.copies = options.copies;
  plan.max_in_flight = options.max_in_flight;
  plan.bucket_bytes = bytes_of_mib(options.bucket_mib);
  plan.first_bucket_bytes = bytes_of_mib(options.first_bucket_mib);
  plan.last_bucket_bytes = bytes_of_mib(options.last_bucket_mib);
  plan.kind = static_cast<uint32_t>(kind_of(options.plan));
  plan.load_plan = options.load_plan;
  plan.save_plan = options.save_plan;
  for (const bucketing::Bucket& bucket : ddp_plan_of(plan.trace, options).buckets)
    plan.ddp_buckets.push_back(bucket.tensors);
  plan.order = options.order == "arrival" ? NORIA_ORDER_ARRIVAL : NORIA_ORDER_REVERSE;

  Link link = settle(options, params_of_environment(), plan);
  require_writable(options.timeline);
  require_writable(options.save_plan);
  require_writable(options.html);
  if (options.comm_ratio > 0)
    if (const Exit exit = fit_link(plan, options, link); exit != Exit::ok)
      return static_cast<int>(exit);
  const LocalResult result = run_modes(plan, options, link);
  progress("");
  if (result.exit != Exit::ok && result.exit != Exit::wrong_result)
    return static_cast<int>(result.exit);

  const std::vector<RankReport> reports = decode_all(result);
  const OverlapSummary summary = summary_of(plan, options, link, reports);
  std::fputs((options.json ? overlap_json(summary) : overlap_table(summary)).c_str(), stdout);
  const Timeline timeline = timeline_of(plan, reports);
  if (!options.timeline.empty()) write_file(options.timeline, chrome_trace(timeline));
  if (!options.html.empty()) write_file(options.html, timeline_page(timeline));
  return static_cast<int>(result.exit);
}

}  // namespace
}  // namespace noria::perf

int main(int argc, char** argv) {
  return noria::perf::run_tool(noria::perf::kName, &noria::perf::body, argc, argv);
}
