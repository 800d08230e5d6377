#include "perf/overlap_report.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "perf/exit_codes.hpp"
#include "perf/format_text.hpp"
#include "perf/stats.hpp"

namespace noria::perf {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kRatioTolerance = 0.1;

// By noria_comm_info::reads.
constexpr std::array<const char*, 3> kFetchTexts{
    "messages", "one-sided reads", "one-sided reads from the reducer's arena, messages elsewhere"};
constexpr std::array<const char*, 3> kFetchNames{"message", "read", "by memory"};

Json encode_mode(const ModeResult& mode) {
  Json json{{"mode", static_cast<int>(mode.mode)},
            {"step_ms", mode.step_ms},
            {"communication_ms", mode.communication_ms},
            {"reported_exposed_ms", mode.reported_exposed_ms},
            {"outside_exposed_ms", mode.outside_exposed_ms},
            {"cpu_seconds", mode.cpu_seconds},
            {"seal_ms", mode.seal_ms},
            {"wrong", mode.wrong},
            {"begin_ns", mode.last.begin_ns},
            {"end_ns", mode.last.end_ns},
            {"ready_ns", mode.last.ready_ns},
            {"transfers", Json::array()}};
  for (const Transfer& t : mode.last.transfers)
    json["transfers"].push_back(
        {t.bytes, t.tensors, t.ready_ns, t.start_ns, t.end_ns, t.first_ns, t.queued_ns, t.wire_ns});
  return json;
}

ModeResult decode_mode(const Json& json) {
  ModeResult mode{.mode = static_cast<Mode>(json.at("mode").get<int>()),
                  .step_ms = json.at("step_ms"),
                  .communication_ms = json.at("communication_ms"),
                  .cpu_seconds = json.at("cpu_seconds"),
                  .seal_ms = json.at("seal_ms"),
                  .wrong = json.at("wrong")};
  mode.reported_exposed_ms = json.at("reported_exposed_ms").get<std::vector<double>>();
  mode.outside_exposed_ms = json.at("outside_exposed_ms").get<std::vector<double>>();
  mode.last = {.begin_ns = json.at("begin_ns"),
               .end_ns = json.at("end_ns"),
               .ready_ns = json.at("ready_ns")};
  for (const Json& t : json.at("transfers"))
    mode.last.transfers.push_back({.bytes = t[0],
                                   .tensors = t[1],
                                   .ready_ns = t[2],
                                   .start_ns = t[3],
                                   .end_ns = t[4],
                                   .first_ns = t[5],
                                   .queued_ns = t[6],
                                   .wire_ns = t[7]});
  return mode;
}

std::vector<double> slowest_of_each(std::vector<double> so_far, const std::vector<double>& more) {
  so_far.resize(std::max(so_far.size(), more.size()));
  for (size_t i = 0; i < more.size(); ++i) so_far[i] = std::max(so_far[i], more[i]);
  return so_far;
}

std::string mode_row(const ModeSummary& mode) {
  return format_text("  %10s  %9.2f  %9.2f  %9.2f  %10.2f  %10.3f  %8.3f  %8.3f  %6llu\n",
                     mode_name(mode.mode), mode.step_ms, mode.step_p99_ms, mode.communication_ms,
                     mode.exposed_ms, mode.efficiency, mode.bus_gb_s, mode.cpu_s_per_gb,
                     static_cast<unsigned long long>(mode.wrong));
}

const ModeSummary* mode_of(const OverlapSummary& summary, Mode wanted) {
  for (const ModeSummary& mode : summary.modes)
    if (mode.mode == wanted) return &mode;
  return nullptr;
}

// Whoever asked for a ratio must know when the machine did not give it.
std::string ratio_line(const OverlapSummary& s) {
  const ModeSummary* flat = mode_of(s, Mode::sequential);
  if (!s.comm_ratio || flat == nullptr || s.backward_ms <= 0) return "";
  const double measured = flat->communication_ms / s.backward_ms;
  if (std::fabs(measured / *s.comm_ratio - 1) <= kRatioTolerance) return "";
  return format_text(
      "# Communication took %.2f x backward, not the %g that was asked: this machine is busy, or "
      "too "
      "slow for the rate.\n",
      measured, *s.comm_ratio);
}

double megabytes(uint64_t bytes) { return static_cast<double>(bytes) * 1e-6; }

// What the reducer leaves exposed, beside what cannot be hidden and what DDP leaves.
std::string bound_lines(const OverlapSummary& s, const ModeSummary& bucketed) {
  std::string text;
  if (s.bytes > 0 && s.flat_ms > 0) {
    const double last_ms =
        s.flat_ms * static_cast<double>(bucketed.last_bytes) / static_cast<double>(s.bytes);
    text += format_text(
        "# The backward pass and the last bucket, %.2f MB, take %.2f ms together; the step takes "
        "%.3f x that.\n",
        megabytes(bucketed.last_bytes), s.backward_ms + last_ms,
        bucketed.step_ms / (s.backward_ms + last_ms));
  }
  if (s.flat_ms > 0)
    text += format_text(
        "# From the last gradient on bucketed takes %.3f ms, %.3f x one all-reduce of all of "
        "them.\n",
        bucketed.reported_exposed_ms, bucketed.reported_exposed_ms / s.flat_ms);
  const ModeSummary* calls = mode_of(s, Mode::per_tensor);
  if (calls != nullptr && bucketed.reported_exposed_ms > 0)
    text += format_text("# One call a tensor, with nothing else to do, takes %.1f x that.\n",
                        calls->communication_ms / bucketed.reported_exposed_ms);
  if (s.tail_ms && *s.tail_ms > 0)
    text += format_text(
        "# What becomes ready last, %.3f MB, takes %.2f ms alone; bucketed exposes %.3f x that.\n",
        megabytes(s.tail_bytes), *s.tail_ms, bucketed.exposed_ms / *s.tail_ms);
  if (s.least_step_ms > 0)
    text += format_text(
        "# No order of sending ends a step before %.2f ms, with each tensor sent when it is "
        "ready; bucketed takes %.3f x that.\n",
        s.least_step_ms, bucketed.step_ms / s.least_step_ms);
  const ModeSummary* ddp = mode_of(s, Mode::when_full);
  if (ddp != nullptr && ddp->exposed_ms > 0)
    text += format_text(
        "# DDP's plan, a bucket sent when it is full, exposes %.2f ms; bucketed exposes %.3f x "
        "that.\n",
        ddp->exposed_ms, bucketed.exposed_ms / ddp->exposed_ms);
  if (s.ddp_step_ms > s.backward_ms)
    text += format_text(
        "# Over a link that never rests that plan would expose %.2f ms; bucketed exposes %.3f x "
        "that.\n",
        s.ddp_step_ms - s.backward_ms, bucketed.exposed_ms / (s.ddp_step_ms - s.backward_ms));
  return text;
}

std::string link_line(const OverlapSummary& s) {
  if (s.rate_gbit <= 0) return "# link: not shaped\n";
  std::string line =
      format_text("# link: shaped to %.3f Gbit/s, %g us latency", s.rate_gbit, s.latency_us);
  if (s.comm_ratio) line += format_text(", so that communication = %g x backward", *s.comm_ratio);
  return line + "\n";
}

// Of the mode's step on this rank, moved by `offset_ns`.
TimelineStep step_of(const ReplayPlan& plan, const ModeResult& mode, int64_t offset_ns) {
  const auto moved = [offset_ns](int64_t ns) { return ns == 0 ? 0 : ns + offset_ns; };
  TimelineStep step{.name = mode_name(mode.mode),
                    .begin_ns = mode.last.begin_ns + offset_ns,
                    .end_ns = mode.last.end_ns + offset_ns};
  step.last_gradient_ns = step.begin_ns;
  for (size_t i = 0; i < mode.last.ready_ns.size(); ++i) {
    const TraceTensor& tensor = plan.trace.tensors[plan.times.order[i]];
    step.last_gradient_ns = mode.last.ready_ns[i] + offset_ns;
    step.gradients.push_back(
        {.name = tensor.name, .numel = tensor.numel, .ready_ns = step.last_gradient_ns});
  }
  for (const Transfer& t : mode.last.transfers)
    step.buckets.push_back({.name = mode.mode == Mode::sequential
                                        ? "all gradients"
                                        : "bucket " + std::to_string(step.buckets.size()),
                            .bytes = t.bytes,
                            .tensors = t.tensors,
                            .first_ns = moved(t.first_ns),
                            .queued_ns = moved(t.queued_ns),
                            .ready_ns = t.ready_ns + offset_ns,
                            .start_ns = t.start_ns + offset_ns,
                            .end_ns = t.end_ns + offset_ns,
                            .wire_ns = t.wire_ns});
  return step;
}

}  // namespace

std::string encode(const RankReport& report) {
  Json json{{"device", report.device},   {"notice", report.notice},   {"reads", report.reads},
            {"flat_ms", report.flat_ms}, {"tail_ms", report.tail_ms}, {"modes", Json::array()}};
  for (const ModeResult& mode : report.modes) json["modes"].push_back(encode_mode(mode));
  return json.dump();
}

RankReport decode(const std::string& text) {
  try {
    const Json json = Json::parse(text);
    RankReport report{
        .device = json.at("device"), .notice = json.at("notice"), .reads = json.at("reads")};
    report.flat_ms = json.at("flat_ms").get<std::vector<double>>();
    report.tail_ms = json.at("tail_ms").get<std::vector<double>>();
    for (const Json& mode : json.at("modes")) report.modes.push_back(decode_mode(mode));
    return report;
  } catch (const Json::exception&) {
    throw ToolError(Exit::peer, "a rank ended before its report was complete");
  }
}

Timeline timeline_of(const ReplayPlan& plan, const std::vector<RankReport>& ranks) {
  Timeline timeline{.title = plan.trace.name + " on " + std::to_string(ranks.size()) + " ranks"};
  for (size_t r = 0; r < ranks.size(); ++r) timeline.ranks.push_back({.rank = static_cast<int>(r)});
  int64_t next_ns = 0;
  for (size_t m = 0; !ranks.empty() && m < ranks[0].modes.size(); ++m) {
    int64_t first = INT64_MAX, last = 0;
    for (const RankReport& rank : ranks) {
      first = std::min(first, rank.modes[m].last.begin_ns);
      last = std::max(last, rank.modes[m].last.end_ns);
    }
    for (size_t r = 0; r < ranks.size(); ++r)
      timeline.ranks[r].steps.push_back(step_of(plan, ranks[r].modes[m], next_ns - first));
    next_ns += (last - first) + (last - first) / 10;
  }
  return timeline;
}

namespace {

// What the library reports beside what a clock outside sees.
void compare_clocks(const std::vector<RankReport>& ranks, size_t mode, ModeSummary& summary) {
  std::vector<double> reported, errors;
  for (const RankReport& rank : ranks) {
    const ModeResult& result = rank.modes.at(mode);
    for (size_t i = 0; i < result.reported_exposed_ms.size(); ++i) {
      const double outside = result.outside_exposed_ms.at(i);
      reported.push_back(result.reported_exposed_ms[i]);
      if (outside > 0) errors.push_back(std::fabs(reported.back() / outside - 1));
    }
  }
  summary.reported_exposed_ms = percentile(std::move(reported), 50);
  summary.report_error = percentile(std::move(errors), 50);
}

}  // namespace

ModeSummary summarize(const std::vector<RankReport>& ranks, size_t mode, double backward_ms,
                      uint64_t bytes) {
  ModeSummary summary;
  std::vector<double> steps, communication;
  double cpu_seconds = 0;
  for (const RankReport& rank : ranks) {
    const ModeResult& result = rank.modes.at(mode);
    summary.mode = result.mode;
    steps = slowest_of_each(std::move(steps), result.step_ms);
    communication = slowest_of_each(std::move(communication), result.communication_ms);
    cpu_seconds += result.cpu_seconds;
    summary.seal_ms = std::max(summary.seal_ms, result.seal_ms);
    summary.wrong += result.wrong;
    if (!result.last.transfers.empty()) summary.last_bytes = result.last.transfers.back().bytes;
  }
  const double gigabytes = static_cast<double>(bytes) * 1e-9;
  const auto n = static_cast<double>(ranks.size());
  compare_clocks(ranks, mode, summary);
  summary.step_ms = median(steps);
  summary.step_p99_ms = percentile(steps, 99);
  summary.step_max_ms = largest(steps);
  summary.communication_ms = median(communication);
  summary.exposed_ms = summary.step_ms - backward_ms;
  summary.efficiency = summary.step_ms > 0 ? backward_ms / summary.step_ms : 0;
  if (summary.communication_ms > 0)
    summary.bus_gb_s = gigabytes * 2 * (n - 1) / n / (summary.communication_ms * 1e-3);
  if (gigabytes > 0 && !steps.empty())
    summary.cpu_s_per_gb = cpu_seconds / (gigabytes * static_cast<double>(steps.size()));
  return summary;
}

std::string overlap_table(const OverlapSummary& s) {
  std::string text = format_text(
      "# overlap_perf: %s, %zu tensors, %llu values, %.1f MB; %d ranks; %s; backward %.1f ms\n",
      s.trace.c_str(), s.tensors, static_cast<unsigned long long>(s.numel), megabytes(s.bytes),
      s.ranks, s.copies ? "copies" : "arena", s.backward_ms);
  text += link_line(s);
  if (!s.device.empty()) text += "# device: " + s.device + "\n";
  if (s.is_on_device)
    text += "# backend: NCCL, on GPUs\n";
  else if (s.ranks > 1)
    text += std::string("# fetch: ") + kFetchTexts.at(s.reads) + "\n";
  text +=
      "#\n"
      "#      mode       step       step       comm     exposed  efficiency       bus       CPU  "
      "#wrong\n"
      "#            median ms     p99 ms         ms          ms                  GB/s      s/GB\n";
  for (const ModeSummary& mode : s.modes) text += mode_row(mode);
  text += "#\n";
  text += ratio_line(s);
  const ModeSummary* bucketed = mode_of(s, Mode::bucketed);
  if (s.full_buckets_step_ms && bucketed != nullptr)
    text += format_text(
        "# Buckets sent only when full could end a step after %.2f ms at best; sent while they "
        "fill, they took %.2f ms.\n",
        *s.full_buckets_step_ms, bucketed->step_ms);
  if (bucketed != nullptr) {
    text += bound_lines(s, *bucketed);
    text += format_text(
        "# Sealing the reducer took %.1f ms.\n"
        "# The library reports %.3f ms exposed, from the last gradient on; the median step is "
        "%.2f %% off a clock outside.\n",
        bucketed->seal_ms, bucketed->reported_exposed_ms, 100 * bucketed->report_error);
  }
  if (!s.notice.empty()) text += "# " + s.notice + "\n";
  return text;
}

std::string overlap_json(const OverlapSummary& s) {
  Json json{{"version", 1},         {"trace", s.trace},
            {"tensors", s.tensors}, {"values", s.numel},
            {"bytes", s.bytes},     {"ranks", s.ranks},
            {"arena", !s.copies},   {"backward_ms", s.backward_ms}};
  json["comm_ratio"] = s.comm_ratio ? Json(*s.comm_ratio) : Json(nullptr);
  json["rate_gbit"] = s.rate_gbit;
  json["latency_us"] = s.latency_us;
  json["device"] = s.device;
  json["backend"] = s.is_on_device ? "nccl" : "host";
  json["fetch"] = kFetchNames.at(s.reads);
  json["notice"] = s.notice;
  json["modes"] = Json::array();
  for (const ModeSummary& mode : s.modes)
    json["modes"].push_back({{"mode", mode_name(mode.mode)},
                             {"step_ms", mode.step_ms},
                             {"step_p99_ms", mode.step_p99_ms},
                             {"step_max_ms", mode.step_max_ms},
                             {"communication_ms", mode.communication_ms},
                             {"exposed_ms", mode.exposed_ms},
                             {"efficiency", mode.efficiency},
                             {"bus_gb_s", mode.bus_gb_s},
                             {"cpu_s_per_gb", mode.cpu_s_per_gb},
                             {"seal_ms", mode.seal_ms},
                             {"reported_exposed_ms", mode.reported_exposed_ms},
                             {"report_error", mode.report_error},
                             {"last_bytes", mode.last_bytes},
                             {"wrong", mode.wrong}});
  json["flat_ms"] = s.flat_ms;
  json["least_step_ms"] = s.least_step_ms;
  json["ddp_step_ms"] = s.ddp_step_ms;
  json["tail_bytes"] = s.tail_bytes;
  json["tail_ms"] = s.tail_ms ? Json(*s.tail_ms) : Json(nullptr);
  json["full_buckets_step_ms"] =
      s.full_buckets_step_ms ? Json(*s.full_buckets_step_ms) : Json(nullptr);
  return json.dump(2) + "\n";
}

}  // namespace noria::perf
