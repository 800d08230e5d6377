// choice_time: how long a decision of the tuner takes, by the length of its table.
//
// The plugin's own choose(), on a table whose rows lie one behind the other, at sizes that jump all
// over it. NCCL's costs are written anew before each, as NCCL does, and that is in the time.

#include <cstdio>
#include <random>

#include "base/clock.hpp"
#include "perf/command_line.hpp"
#include "perf/exit_codes.hpp"
#include "perf/stats.hpp"
#include "plugin/tuner/nccl_model.hpp"

namespace noria::perf {
namespace {

namespace tuner = plugin::tuner;

constexpr const char* kName = "choice_time";
constexpr const char* kHelp =
    "Measures how long the tuner takes to choose, by the length of its table: ns of one decision, "
    "median and slowest of the rounds, in turn.\n"
    "Exit: 0 all right, 2 usage.";

constexpr size_t kDecisions = 500'000;  // of a round
constexpr size_t kSizes = 1 << 14;      // more than a predictor of branches remembers

class Bench {
 public:
  explicit Bench(size_t rows) {
    for (uint64_t i = 0; i < rows; ++i) {
      tuner::Row row;
      row.bytes = {(i + 1) << 10, ((i + 2) << 10) - 1};
      row.algorithm = i % 2 == 0 ? tuner::Algorithm::ring : tuner::Algorithm::tree;
      row.is_predicted = true;
      row.fixed_us = row.us_per_mib = 1;
      table_.rows.push_back(row);
    }
    const tuner::Cluster cluster{.nodes = 2, .ranks_per_node = 8, .nics = 8, .link_gbit = 400};
    index_ = tuner::Index::make(table_, {.ranks = cluster.ranks(), .nodes = cluster.nodes});
    costs_ = tuner::NcclModel::make(cluster).costs(tuner::Collective::all_reduce, 1 << 20);
    std::mt19937_64 random(7);
    for (size_t i = 0; i < kSizes; ++i) sizes_.push_back((1 + random() % rows) << 10);
  }

  size_t rows() const { return table_.rows.size(); }

  void run() {
    size_t ours = 0;
    const Nanoseconds begin = now_ns();
    for (size_t i = 0; i < kDecisions; ++i) {
      tuner::CostTable costs = costs_;
      const tuner::Decision decision = tuner::choose(table_, index_, tuner::Collective::all_reduce,
                                                     sizes_[i % kSizes], costs.costs());
      ours += decision.is_ours() ? 1 : 0;
    }
    const auto ns = static_cast<double>(now_ns() - begin);
    // So that no decision is left out because nobody looks at it.
    if (ours != kDecisions) throw ToolError(Exit::wrong_result, "a decision found no row");
    ns_.push_back(ns / kDecisions);
  }

  const std::vector<double>& ns() const { return ns_; }

 private:
  tuner::Table table_;
  tuner::Index index_;
  tuner::CostTable costs_;
  std::vector<uint64_t> sizes_;
  std::vector<double> ns_;
};

int body(int argc, char** argv) {
  size_t rounds = 5;
  CLI::App app(kHelp, kName);
  app.add_option("--rounds", rounds, "rounds, of which the median counts")
      ->check(whole_number(1, 1000))
      ->capture_default_str();
  if (parse_command_line(app, argc, argv)) return 0;

  std::vector<Bench> benches;
  for (const size_t rows : {10, 100, 1000, 10'000}) benches.emplace_back(rows);
  for (size_t round = 0; round < rounds; ++round)
    for (Bench& bench : benches) bench.run();
  std::printf("%8s %12s %12s\n", "rows", "median ns", "slowest ns");
  for (const Bench& bench : benches)
    std::printf("%8zu %12.1f %12.1f\n", bench.rows(), median(bench.ns()), largest(bench.ns()));
  return 0;
}

}  // namespace
}  // namespace noria::perf

int main(int argc, char** argv) {
  return noria::perf::run_tool(noria::perf::kName, &noria::perf::body, argc, argv);
}
