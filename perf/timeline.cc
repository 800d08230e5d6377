#include "perf/timeline.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace noria::perf {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kStepLane = 0;
constexpr int kBackwardLane = 1;
constexpr int kExposedLane = 2;
constexpr int kBucketLane = 3;  // and those after it, where buckets overlap

double micros(int64_t ns) { return static_cast<double>(ns) * 1e-3; }

int64_t begin_of(const Timeline& timeline) {
  int64_t first = INT64_MAX;
  for (const TimelineRank& rank : timeline.ranks)
    for (const TimelineStep& step : rank.steps) first = std::min(first, step.begin_ns);
  return first;
}

class Writer {
 public:
  explicit Writer(int64_t zero_ns) : zero_ns_(zero_ns) {}

  void name(const char* what, int rank, int lane, const std::string& name) {
    events_.push_back(
        {{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", lane}, {"args", {{"name", name}}}});
  }
  void slice(int rank, int lane, const std::string& name, int64_t begin_ns, int64_t end_ns,
             Json args) {
    events_.push_back({{"ph", "X"},
                       {"name", name},
                       {"pid", rank},
                       {"tid", lane},
                       {"ts", micros(begin_ns - zero_ns_)},
                       {"dur", micros(std::max<int64_t>(end_ns - begin_ns, 0))},
                       {"args", std::move(args)}});
  }
  std::string text(Json other) const {
    return Json{
               {"displayTimeUnit", "ms"}, {"otherData", std::move(other)}, {"traceEvents", events_}}
               .dump() +
           "\n";
  }

 private:
  const int64_t zero_ns_;
  Json events_ = Json::array();
};

void write_backward(Writer& writer, int rank, const TimelineStep& step) {
  if (step.gradients.empty())
    writer.slice(rank, kBackwardLane, "backward", step.begin_ns, step.last_gradient_ns,
                 Json::object());
  int64_t before = step.begin_ns;
  for (const TimelineGradient& gradient : step.gradients) {
    writer.slice(rank, kBackwardLane, gradient.name, before, gradient.ready_ns,
                 {{"numel", gradient.numel}});
    before = gradient.ready_ns;
  }
}

// Returns how many lanes it took.
int write_buckets(Writer& writer, int rank, const TimelineStep& step) {
  std::vector<int64_t> lane_ends;
  for (const TimelineBucket& bucket : step.buckets) {
    const auto free = std::find_if(lane_ends.begin(), lane_ends.end(),
                                   [&](int64_t end) { return end <= bucket.start_ns; });
    const auto lane = static_cast<int>(free - lane_ends.begin());
    if (free == lane_ends.end()) lane_ends.push_back(0);
    lane_ends[static_cast<size_t>(lane)] = bucket.end_ns;
    Json args{{"bytes", bucket.bytes},
              {"tensors", bucket.tensors},
              {"full_after_start_us", micros(bucket.ready_ns - bucket.start_ns)}};
    if (bucket.first_ns != 0) {
      args["first_gradient_before_start_us"] = micros(bucket.start_ns - bucket.first_ns);
      args["queued_before_start_us"] = micros(bucket.start_ns - bucket.queued_ns);
    }
    writer.slice(rank, kBucketLane + lane, bucket.name, bucket.start_ns, bucket.end_ns,
                 std::move(args));
  }
  return static_cast<int>(lane_ends.size());
}

void name_lanes(Writer& writer, const TimelineRank& rank, int lanes) {
  writer.name("process_name", rank.rank, 0,
              "rank " + std::to_string(rank.rank) + (rank.host.empty() ? "" : " on " + rank.host));
  writer.name("thread_name", rank.rank, kStepLane, "step");
  writer.name("thread_name", rank.rank, kBackwardLane, "backward");
  writer.name("thread_name", rank.rank, kExposedLane, "exposed");
  for (int lane = 0; lane < lanes; ++lane)
    writer.name("thread_name", rank.rank, kBucketLane + lane, "buckets");
}

}  // namespace

std::string chrome_trace(const Timeline& timeline) {
  Writer writer(begin_of(timeline));
  Json clocks = Json::object();
  for (const TimelineRank& rank : timeline.ranks) {
    clocks["rank " + std::to_string(rank.rank)] =
        "clock within " + std::to_string(rank.clock_error_ns) + " ns of rank 0's";
    int lanes = 1;
    for (const TimelineStep& step : rank.steps) {
      writer.slice(rank.rank, kStepLane, step.name, step.begin_ns, step.end_ns, Json::object());
      write_backward(writer, rank.rank, step);
      writer.slice(rank.rank, kExposedLane, "exposed", step.last_gradient_ns, step.end_ns,
                   Json::object());
      lanes = std::max(lanes, write_buckets(writer, rank.rank, step));
    }
    name_lanes(writer, rank, lanes);
  }
  return writer.text(std::move(clocks));
}

}  // namespace noria::perf
