#include "perf/timeline.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace noria::perf {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kStepLane = 0;
constexpr int kBackwardLane = 1;
constexpr int kBucketLane = 2;  // and those after it, where buckets overlap

class Writer {
 public:
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
                       {"ts", micros(begin_ns)},
                       {"dur", static_cast<double>(std::max<int64_t>(end_ns - begin_ns, 0)) * 1e-3},
                       {"args", std::move(args)}});
  }
  void move_by(int64_t offset_ns) { offset_ns_ = offset_ns; }
  std::string text() const {
    return Json{{"displayTimeUnit", "ms"}, {"traceEvents", events_}}.dump() + "\n";
  }

 private:
  double micros(int64_t ns) const { return static_cast<double>(ns + offset_ns_) * 1e-3; }

  Json events_ = Json::array();
  int64_t offset_ns_ = 0;
};

void write_backward(Writer& writer, const ReplayPlan& plan, int rank, const StepTimes& step) {
  int64_t before = step.begin_ns;
  for (size_t i = 0; i < step.ready_ns.size(); ++i) {
    const TraceTensor& tensor = plan.trace.tensors[plan.times.order[i]];
    writer.slice(rank, kBackwardLane, tensor.name, before, step.ready_ns[i],
                 {{"numel", tensor.numel}});
    before = step.ready_ns[i];
  }
}

// Returns how many lanes it took.
int write_transfers(Writer& writer, Mode mode, int rank, const StepTimes& step) {
  std::vector<int64_t> lane_ends;
  for (size_t i = 0; i < step.transfers.size(); ++i) {
    const Transfer& t = step.transfers[i];
    const auto free = std::find_if(lane_ends.begin(), lane_ends.end(),
                                   [&](int64_t end) { return end <= t.start_ns; });
    const auto lane = static_cast<int>(free - lane_ends.begin());
    if (free == lane_ends.end()) lane_ends.push_back(0);
    lane_ends[static_cast<size_t>(lane)] = t.end_ns;
    const std::string name =
        mode == Mode::bucketed ? "bucket " + std::to_string(i) : std::string("all gradients");
    writer.slice(rank, kBucketLane + lane, name, t.start_ns, t.end_ns,
                 {{"bytes", t.bytes},
                  {"tensors", t.tensors},
                  {"full_after_start_us", static_cast<double>(t.ready_ns - t.start_ns) * 1e-3}});
  }
  return static_cast<int>(lane_ends.size());
}

}  // namespace

std::string timeline_json(const ReplayPlan& plan, const std::vector<RankReport>& ranks) {
  Writer writer;
  int lanes = 1;
  int64_t next_ns = 0;
  const size_t modes = ranks.empty() ? 0 : ranks[0].modes.size();
  for (size_t m = 0; m < modes; ++m) {
    int64_t first = INT64_MAX, last = 0;
    for (const RankReport& rank : ranks) {
      first = std::min(first, rank.modes[m].last.begin_ns);
      last = std::max(last, rank.modes[m].last.end_ns);
    }
    writer.move_by(next_ns - first);
    for (size_t r = 0; r < ranks.size(); ++r) {
      const ModeResult& mode = ranks[r].modes[m];
      const auto rank = static_cast<int>(r);
      writer.slice(rank, kStepLane, mode_name(mode.mode), mode.last.begin_ns, mode.last.end_ns,
                   {{"backward_ms", plan.times.backward_ms}});
      write_backward(writer, plan, rank, mode.last);
      lanes = std::max(lanes, write_transfers(writer, mode.mode, rank, mode.last));
    }
    next_ns += (last - first) + (last - first) / 10;
  }
  for (size_t r = 0; r < ranks.size(); ++r) {
    const auto rank = static_cast<int>(r);
    writer.name("process_name", rank, 0, "rank " + std::to_string(r));
    writer.name("thread_name", rank, kStepLane, "step");
    writer.name("thread_name", rank, kBackwardLane, "backward (tensor ready)");
    for (int lane = 0; lane < lanes; ++lane)
      writer.name("thread_name", rank, kBucketLane + lane, "buckets");
  }
  return writer.text();
}

}  // namespace noria::perf
