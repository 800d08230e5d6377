#include "perf/step_lines.hpp"

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

#include "perf/exit_codes.hpp"
#include "perf/format_text.hpp"
#include "perf/stats.hpp"

namespace noria::perf {
namespace {

using Json = nlohmann::json;

// What a quartz of a server may be off; one that is disciplined is off by far less.
constexpr double kDrift = 50e-6;

// The clock of a rank, and how to get from it to rank 0's.
struct RankClock {
  int64_t offset_ns = 0, error_ns = 0, measured_ns = 0;

  int64_t on_root(int64_t ns) const { return ns == 0 ? 0 : ns - offset_ns; }
  // A clock that is rank 0's own does not drift from it.
  int64_t error_at(int64_t ns) const {
    if (error_ns == 0) return 0;
    const auto age = static_cast<double>(std::llabs(ns - measured_ns));
    return error_ns + static_cast<int64_t>(age * kDrift);
  }
};

TimelineBucket bucket_of(const Json& json, const RankClock& clock) {
  return {.name = "bucket " + std::to_string(json.at("bucket").get<uint32_t>()),
          .bytes = json.at("bytes"),
          .tensors = json.at("tensors"),
          .first_ns = clock.on_root(json.at("first_ns")),
          .queued_ns = clock.on_root(json.at("queued_ns")),
          .ready_ns = clock.on_root(json.at("ready_ns")),
          .start_ns = clock.on_root(json.at("start_ns")),
          .end_ns = clock.on_root(json.at("end_ns")),
          .wire_ns = json.at("wire_ns")};
}

TimelineStep step_of(const Json& json, const RankClock& clock) {
  const auto reducer = json.at("reducer").get<uint32_t>();
  TimelineStep step{.name = (reducer == 0 ? "" : "reducer " + std::to_string(reducer) + ", ") +
                            "step " + std::to_string(json.at("step").get<uint64_t>()),
                    .begin_ns = clock.on_root(json.at("begin_ns")),
                    .last_gradient_ns = clock.on_root(json.at("last_gradient_ns")),
                    .end_ns = clock.on_root(json.at("end_ns"))};
  for (const Json& bucket : json.at("buckets"))
    if (bucket.at("bytes") != 0) step.buckets.push_back(bucket_of(bucket, clock));
  return step;
}

double ms_between(int64_t begin_ns, int64_t end_ns) {
  return static_cast<double>(end_ns - begin_ns) * 1e-6;
}

struct StepOfRank {
  int rank = 0;
  const TimelineStep* step = nullptr;

  double step_ms() const { return ms_between(step->begin_ns, step->end_ns); }
  double exposed_ms() const { return ms_between(step->last_gradient_ns, step->end_ns); }
};

// Of the ranks that have the step. At least one has.
StepOfRank slowest_rank(const Timeline& timeline, const std::string& name) {
  StepOfRank slowest;
  for (const TimelineRank& rank : timeline.ranks)
    for (const TimelineStep& step : rank.steps) {
      const StepOfRank candidate{rank.rank, &step};
      if (step.name == name && (slowest.step == nullptr || candidate.step_ms() > slowest.step_ms()))
        slowest = candidate;
    }
  return slowest;
}

}  // namespace

StepLines parse_step_lines(const std::string& text, const std::string& file) {
  StepLines lines;
  RankClock clock;
  int64_t last_ns = 0;
  std::istringstream stream(text);
  std::string line;
  for (size_t number = 1; std::getline(stream, line); ++number) {
    try {
      const Json json = Json::parse(line);
      if (number == 1) {
        if (json.at("noria_trace") != 1)
          throw usage_error(file + ":1: is of another version of noria");
        lines.ranks = json.at("ranks");
        lines.group = json.at("group");
        lines.rank.rank = json.at("rank");
        lines.rank.host = json.at("host");
        clock = {.offset_ns = json.at("clock_offset_ns"),
                 .error_ns = json.at("clock_error_ns"),
                 .measured_ns = json.at("clock_measured_ns")};
        continue;
      }
      lines.rank.steps.push_back(step_of(json, clock));
      last_ns = json.at("end_ns");
    } catch (const Json::exception&) {
      throw usage_error(file + ":" + std::to_string(number) +
                        ": is not what NORIA_TRACE makes a rank write");
    }
  }
  if (lines.ranks == 0) throw usage_error(file + ": is empty; NORIA_TRACE writes a line at least");
  lines.rank.clock_error_ns = clock.error_at(last_ns);
  return lines;
}

Timeline join_ranks(std::vector<StepLines> ranks) {
  std::sort(ranks.begin(), ranks.end(),
            [](const StepLines& a, const StepLines& b) { return a.rank.rank < b.rank.rank; });
  Timeline timeline;
  for (StepLines& lines : ranks) {
    if (lines.ranks != ranks.front().ranks)
      throw usage_error("rank " + std::to_string(lines.rank.rank) + " is one of " +
                        std::to_string(lines.ranks) + ", rank " +
                        std::to_string(ranks.front().rank.rank) + " one of " +
                        std::to_string(ranks.front().ranks) + ": give the files of one job");
    if (lines.group != ranks.front().group)
      throw usage_error("rank " + std::to_string(lines.rank.rank) +
                        " is of another group than rank " +
                        std::to_string(ranks.front().rank.rank) +
                        ": give the files of one communicator, of one run");
    if (!timeline.ranks.empty() && timeline.ranks.back().rank == lines.rank.rank)
      throw usage_error("two files are of rank " + std::to_string(lines.rank.rank) +
                        ": give one of each rank");
    timeline.ranks.push_back(std::move(lines.rank));
  }
  timeline.title = "Steps of " + std::to_string(timeline.ranks.size()) + " of " +
                   std::to_string(ranks.empty() ? 0 : ranks.front().ranks) + " ranks";
  return timeline;
}

void require_steps(const Timeline& timeline) {
  for (const TimelineRank& rank : timeline.ranks)
    if (!rank.steps.empty()) return;
  throw usage_error(
      "no step was recorded in these files: a reducer's steps are, single collectives are not; "
      "those of a process's further communicators are in files with .commN in the name, those of "
      "a split's with .splitN.colorN");
}

std::string step_table(const Timeline& timeline) {
  std::string text = "# " + timeline.title + "; of each step, the rank that took longest\n" +
                     "#            step    rank    step ms  backward ms   comm ms  exposed ms\n";
  std::vector<double> steps, exposed;
  const auto rank = std::find_if(timeline.ranks.begin(), timeline.ranks.end(),
                                 [](const TimelineRank& one) { return !one.steps.empty(); });
  if (rank == timeline.ranks.end()) return text;
  for (const TimelineStep& first : rank->steps) {
    const StepOfRank slowest = slowest_rank(timeline, first.name);
    int64_t wire_ns = 0;
    for (const TimelineBucket& bucket : slowest.step->buckets) wire_ns += bucket.wire_ns;
    steps.push_back(slowest.step_ms());
    exposed.push_back(slowest.exposed_ms());
    text += format_text("%17s  %6d  %9.3f  %11.3f  %8.3f  %10.3f\n", first.name.c_str(),
                        slowest.rank, steps.back(), steps.back() - exposed.back(),
                        static_cast<double>(wire_ns) * 1e-6, exposed.back());
  }
  return text + format_text("# median: step %.3f ms, exposed %.3f ms; p99 %.3f and %.3f ms\n",
                            median(steps), median(exposed), percentile(steps, 99),
                            percentile(exposed, 99));
}

}  // namespace noria::perf
