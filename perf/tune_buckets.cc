// noria_tune buckets: which bucket size and schedule a model's gradients want on a cluster.

#include <array>
#include <cstdio>

#include "base/value_text.hpp"
#include "perf/bucket_costs.hpp"
#include "perf/command_line.hpp"
#include "perf/json_text.hpp"
#include "perf/tune_commands.hpp"

namespace noria::perf {
namespace {

constexpr const char* kHelp =
    "Says what buckets of gradients cost on a cluster, and which bucket size and schedule let a "
    "step end first: the cost of an all-reduce by size, where the choice of algorithm and protocol "
    "changes, what 25 MiB cost by the number of nodes, and plans, as DDP cuts with several caps "
    "and as noria's planner cuts by a line through these costs. Times are predicted, by the tables "
    "where they predict and by NCCL's cost model else; a bucket starts when it is full and the one "
    "before it has arrived.\n"
    "  noria_tune buckets --trace gpt2 --nodes 64 --backward-ms 120 --table ours.csv\n"
    "Exit: 0 all right, 2 usage, or a file that is not what it should be.";

constexpr double kDefaultBackwardMs = 100;
constexpr uint64_t kUsualBucket = bucketing::kDefaultBucketBytes;
constexpr uint64_t kPeakBytes = 16_GiB;  // where latency no longer counts

constexpr std::array<uint64_t, 8> kSizes{1_MiB,  2_MiB,  5_MiB,   10_MiB,
                                         25_MiB, 50_MiB, 100_MiB, 200_MiB};

using Json = nlohmann::ordered_json;

double mib(uint64_t bytes) { return static_cast<double>(bytes) / 1_MiB; }

void print_costs(const TunedCluster& cluster) {
  const double peak = bus_gbs_of(cluster, kPeakBytes, all_reduce_of(cluster, kPeakBytes).us);
  std::printf("\nan all-reduce there\n%8s %10s %10s %9s  %s\n", "MiB", "us", "bus GB/s", "of most",
              "choice (who predicts it)");
  for (const uint64_t bytes : kSizes) {
    const Chosen chosen = all_reduce_of(cluster, bytes);
    const double gbs = bus_gbs_of(cluster, bytes, chosen.us);
    std::printf("%8g %10.1f %10.1f %7.0f %%  %s (%s)\n", mib(bytes), chosen.us, gbs,
                100 * gbs / peak, text_of(chosen).c_str(), cluster.source_of(chosen).c_str());
  }
  std::printf("\nfrom this size on, bytes\n");
  for (const Crossover& crossover : crossovers(cluster, 8, kPeakBytes))
    std::printf("%12llu  %s\n", static_cast<unsigned long long>(crossover.bytes),
                text_of(crossover.chosen).c_str());
}

// Powers of two up to the cluster's, and its own.
std::vector<uint64_t> numbers_of_nodes(const TunedCluster& cluster) {
  const uint64_t last = cluster.model().cluster().nodes;
  std::vector<uint64_t> numbers;
  for (uint64_t nodes = 1; nodes < last; nodes *= 2) numbers.push_back(nodes);
  numbers.push_back(last);
  std::erase_if(numbers, [&](uint64_t nodes) {
    return nodes * cluster.model().cluster().ranks_per_node < 2;
  });
  return numbers;
}

void print_nodes(const TunedCluster& cluster) {
  std::printf("\n25 MiB\n%8s %10s %10s  %s\n", "nodes", "us", "bus GB/s",
              "choice (who predicts it)");
  for (const uint64_t nodes : numbers_of_nodes(cluster)) {
    const TunedCluster scaled = cluster.of_nodes(nodes);
    const Chosen chosen = all_reduce_of(scaled, kUsualBucket);
    std::printf("%8llu %10.1f %10.1f  %s (%s)\n", static_cast<unsigned long long>(nodes), chosen.us,
                bus_gbs_of(scaled, kUsualBucket, chosen.us), text_of(chosen).c_str(),
                scaled.source_of(chosen).c_str());
  }
}

void print_curve(const TunedCluster& cluster) {
  const LinkCurve curve = curve_of(cluster);
  std::printf(
      "\nfor the planner: %.1f us and %.1f GB/s, through 4 and 64 MiB; at most %.0f %% off from 1 "
      "to "
      "100 MiB\n",
      curve.alpha_us, curve.bytes_per_us / 1e3, 100 * most_off(cluster, curve, 1_MiB, 100_MiB));
}

void print_plans(const std::vector<TimedPlan>& plans, double backward_ms) {
  std::printf("\n%-8s %8s %8s %12s %10s %11s\n", "plan", "cap MiB", "buckets", "largest MiB",
              "end ms", "exposed ms");
  for (const TimedPlan& plan : plans) {
    uint64_t largest = 0;
    for (const TimedBucket& bucket : plan.buckets) largest = std::max(largest, bucket.bytes);
    const std::string cap =
        plan.cap_bytes != 0 ? detail::number_text(mib(plan.cap_bytes)) : std::string("-");
    std::printf("%-8s %8s %8zu %12.1f %10.3f %11.3f\n", plan.name.c_str(), cap.c_str(),
                plan.buckets.size(), mib(largest), plan.end_ms, plan.end_ms - backward_ms);
  }
}

void print_schedule(const TimedPlan& plan) {
  std::printf(
      "\nschedule of %s\n%6s %12s %8s %10s %10s %10s  %s\n",
      (plan.name +
       (plan.cap_bytes != 0 ? " with " + detail::number_text(mib(plan.cap_bytes)) + " MiB" : ""))
          .c_str(),
      "bucket", "bytes", "tensors", "ready ms", "begin ms", "end ms", "choice");
  for (size_t i = 0; i < plan.buckets.size(); ++i) {
    const TimedBucket& bucket = plan.buckets[i];
    std::printf("%6zu %12llu %8zu %10.3f %10.3f %10.3f  %s\n", i,
                static_cast<unsigned long long>(bucket.bytes), bucket.tensors, bucket.ready_ms,
                bucket.begin_ms, bucket.end_ms, text_of(bucket.chosen).c_str());
  }
}

Json cost_json(const TunedCluster& cluster, uint64_t bytes) {
  const Chosen chosen = all_reduce_of(cluster, bytes);
  Json json = json_of(cluster, chosen);
  json["bus_gbs"] = bus_gbs_of(cluster, bytes, chosen.us);
  return json;
}

Json plan_json(const TunedCluster& cluster, const TimedPlan& plan) {
  Json buckets = Json::array();
  for (const TimedBucket& bucket : plan.buckets)
    buckets.push_back({{"bytes", bucket.bytes},
                       {"tensors", bucket.tensors},
                       {"ready_ms", bucket.ready_ms},
                       {"begin_ms", bucket.begin_ms},
                       {"end_ms", bucket.end_ms},
                       {"choice", json_of(cluster, bucket.chosen)}});
  return {{"plan", plan.name},
          {"cap_bytes", plan.cap_bytes},
          {"end_ms", plan.end_ms},
          {"buckets", buckets}};
}

Json json_of(const TunedCluster& cluster, const Trace& trace, double backward_ms,
             const std::vector<TimedPlan>& plans) {
  const LinkCurve curve = curve_of(cluster);
  Json json{{"trace", trace.name},
            {"gradients", trace.tensors.size()},
            {"bytes", trace.bytes()},
            {"backward_ms", backward_ms},
            {"cluster", cluster.text()},
            {"planner", {{"alpha_us", curve.alpha_us}, {"gbs", curve.bytes_per_us / 1e3}}}};
  for (const uint64_t bytes : kSizes) {
    json["all_reduce"].push_back(cost_json(cluster, bytes));
    json["all_reduce"].back()["bytes"] = bytes;
  }
  for (const Crossover& crossover : crossovers(cluster, 8, kPeakBytes))
    json["crossovers"].push_back(
        {{"bytes", crossover.bytes}, {"choice", json_of(cluster, crossover.chosen)}});
  for (const uint64_t nodes : numbers_of_nodes(cluster)) {
    json["nodes"].push_back(cost_json(cluster.of_nodes(nodes), kUsualBucket));
    json["nodes"].back()["nodes"] = nodes;
  }
  for (const TimedPlan& plan : plans) json["plans"].push_back(plan_json(cluster, plan));
  return json;
}

ReadyTimes times_of(const Trace& trace, double backward_ms) {
  if (backward_ms > 0) return ready_times(trace, backward_ms);
  const bool has_times = !trace.tensors.empty() && trace.tensors[0].ready_ms.has_value();
  return ready_times(trace, has_times ? std::nullopt : std::optional<double>(kDefaultBackwardMs));
}

}  // namespace

int tune_buckets(int argc, char** argv) {
  ClusterFlags flags;
  std::string trace_name;
  double backward_ms = 0;
  CLI::App app(kHelp, "noria_tune buckets");
  app.add_option("--trace", trace_name, "a model's name, or a file, as of overlap_perf")
      ->required();
  app.add_option("--backward-ms", backward_ms,
                 "how long the backward pass takes; else as the trace says, or 100")
      ->check(real_number(0.001, 1e7));
  add_cluster_flags(app, &flags);
  bool is_json = false;
  app.add_flag("--json", is_json, "print JSON, with the schedule of every plan");
  if (parse_command_line(app, argc, argv)) return 0;

  const Trace trace = load_trace(trace_name);
  const TunedCluster cluster = TunedCluster::make(flags);
  const ReadyTimes times = times_of(trace, backward_ms);
  const std::vector<TimedPlan> plans =
      timed_plans(cluster, trace, times, {5_MiB, 10_MiB, kUsualBucket, 50_MiB, 100_MiB, 200_MiB});
  if (is_json) {
    std::printf("%s\n", json_text(json_of(cluster, trace, times.backward_ms, plans)).c_str());
    return 0;
  }
  std::printf("%s: %zu gradients, %.1f MB, backward %.3f ms, on %s\n", trace.name.c_str(),
              trace.tensors.size(), static_cast<double>(trace.bytes()) / 1e6, times.backward_ms,
              cluster.text().c_str());
  print_costs(cluster);
  print_nodes(cluster);
  print_curve(cluster);
  print_plans(plans, times.backward_ms);
  print_schedule(plans.front());
  return 0;
}

}  // namespace noria::perf
