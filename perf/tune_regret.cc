// noria_tune regret: how much slower a table's choices are than the best that was measured.

#include <cstdio>

#include "perf/command_line.hpp"
#include "perf/format_text.hpp"
#include "perf/json_text.hpp"
#include "perf/model_choice.hpp"
#include "perf/regret.hpp"
#include "perf/stats.hpp"
#include "perf/tune_commands.hpp"
#include "perf/tune_logs.hpp"
#include "perf/tuned_cluster.hpp"

namespace noria::perf {
namespace {

constexpr const char* kHelp =
    "Compares choices at every size at which a sweep measured two or more of them: the best, what "
    "noria's tuner chooses, and what NCCL does. By the table of --table, which should know nothing "
    "of these logs; without it each size is decided by a table fitted to all others.\n"
    "  noria_tune regret default.log ring.log tree.log --table others.csv\n"
    "Exit: 0 never slower than NCCL by more than max_regret, 1 somewhere, 2 usage.";

namespace tuner = plugin::tuner;
using Json = nlohmann::ordered_json;

// More than this and a choice was not the best.
constexpr double kSlow = 0.05;

void print(const ChoiceComparison& one) {
  std::printf("%-36s %12llu  %-16s %9.1f  %-16s %+6.1f %%  %-16s %+6.1f %%\n",
              text_of_communicator(one.communicator).c_str(),
              static_cast<unsigned long long>(one.bytes), one.best.name.c_str(), one.best.us,
              one.ours.name.c_str(), 100 * one.regret(), one.of_nccl.name.c_str(),
              100 * one.regret_of_nccl());
}

// What is known of the machine that was measured: a GPU that no log names is the model's.
tuner::Hardware hardware_of(const tuner::Cluster& usual, const tuner::Link& link,
                            const std::vector<Curve>& curves) {
  tuner::Hardware hardware{.link = link, .nics = usual.nics, .gpu = usual.gpu};
  for (const Curve& curve : curves)
    if (uint64_t version = 0; tuner::parse_nccl_version(curve.nccl_version, &version))
      hardware.nccl_version = version;
  return hardware;
}

// As the plugin does: rows for other hardware are left out, and it says so.
tuner::Table table_for(const tuner::Hardware& hardware, const std::string& path) {
  auto table = tuner::read_table(path);
  if (!table) throw usage_error(table.failure());
  if (const size_t others = keep_rows_for(hardware, &*table); others != 0)
    std::fprintf(stderr, "noria_tune: %s: %zu of %zu rows are not for %s: left out\n",
                 printable(path).c_str(), others, others + table->rows.size(),
                 text_of(hardware).c_str());
  return *std::move(table);
}

struct Summary {
  std::vector<double> ours, of_nccl, noise;
  size_t slow = 0, slow_of_nccl = 0, worse = 0;

  Exit exit() const { return worse == 0 ? Exit::ok : Exit::wrong_result; }
};

Summary summary_of(const std::vector<ChoiceComparison>& all) {
  Summary made;
  for (const ChoiceComparison& one : all) {
    made.ours.push_back(one.regret());
    made.of_nccl.push_back(one.regret_of_nccl());
    made.slow += one.regret() > kSlow ? 1 : 0;
    made.slow_of_nccl += one.regret_of_nccl() > kSlow ? 1 : 0;
    made.noise.push_back(one.max_regret);
    made.worse += one.over_nccl() > one.max_regret ? 1 : 0;
  }
  return made;
}

void print(const std::vector<ChoiceComparison>& all, const Summary& summary) {
  std::printf("%-36s %12s  %-16s %9s  %-16s %8s  %-16s %8s\n", "communicator", "bytes", "best",
              "us", "ours", "slower", "NCCL's", "slower");
  for (const ChoiceComparison& one : all) print(one);
  std::printf(
      "%zu sizes; slower than the best by more than 5 %%: ours at %zu, NCCL's at %zu; mean "
      "ours %.1f %%, NCCL's %.1f %%; largest ours %.1f %%, NCCL's %.1f %%\n",
      all.size(), summary.slow, summary.slow_of_nccl, 100 * mean(summary.ours),
      100 * mean(summary.of_nccl), 100 * largest(summary.ours), 100 * largest(summary.of_nccl));
  const double least = percentile(summary.noise, 0), most = largest(summary.noise);
  std::printf(
      "slower than NCCL's by more than max_regret (%s): at %zu\n",
      (format_text("%g", least) + (most > least ? format_text(" to %g", most) : "")).c_str(),
      summary.worse);
}

Json json_of(const TimedChoice& choice) { return {{"choice", choice.name}, {"us", choice.us}}; }

Json json_of(const std::vector<ChoiceComparison>& all, const Summary& summary) {
  Json sizes = Json::array();
  for (const ChoiceComparison& one : all)
    sizes.push_back({{"collective", tuner::name_of(one.communicator.collective)},
                     {"nodes", one.communicator.nodes},
                     {"ranks_per_node", one.communicator.ranks_per_node},
                     {"bytes", one.bytes},
                     {"best", json_of(one.best)},
                     {"noria", json_of(one.ours)},
                     {"nccl", json_of(one.of_nccl)},
                     {"max_regret", one.max_regret}});
  return {{"sizes", sizes},
          {"noria_slow", summary.slow},
          {"nccl_slow", summary.slow_of_nccl},
          {"slower_than_nccl", summary.worse}};
}

}  // namespace

int tune_regret(int argc, char** argv) {
  LogFlags flags;
  std::string path, link_text = "ib400";
  tuner::Cluster usual{.nics = 8};
  CLI::App app(kHelp, "noria_tune regret");
  add_log_flags(app, flags);
  app.add_option("--table", path, "the table that chooses")->check(file_name());
  app.add_option("--nics", usual.nics, "NICs of a node, for NCCL's model and the rows of --table")
      ->check(whole_number(1, 64))
      ->capture_default_str();
  app.add_option("--link", link_text, "Gb/s of one of them, likewise: 400, ib400 or eth100")
      ->capture_default_str();
  bool is_json = false;
  app.add_flag("--json", is_json, "print JSON");
  if (parse_command_line(app, argc, argv)) return 0;
  const tuner::Link link = link_of(link_text);
  usual.link_gbit = link.gbit;

  Measured measured = measured_of(flags);
  tell_left_out(measured);
  for (const Curve& curve : measured.curves)
    if (const auto gpu = gpu_of(curve.gpu)) usual.gpu = *gpu;
  tuner::Table table;
  if (!path.empty()) table = table_for(hardware_of(usual, link, measured.curves), path);
  close_choices(usual, Open::half, &measured.curves);
  // What NCCL chose itself costs what it was measured to: the table that is fitted knows it.
  std::vector<Curve> closed = measured.curves;
  close_choices(usual, Open::all, &closed);
  const std::vector<ChoiceComparison> all =
      compare_choices(measured.curves, usual, [&](const CurveKey& communicator, uint64_t bytes) {
        return path.empty() ? table_without(closed, communicator, bytes) : table;
      });
  if (all.empty())
    throw usage_error(flags.logs.front() +
                      ": no size at which two choices were measured on one "
                      "communicator");
  const Summary summary = summary_of(all);
  if (is_json)
    std::printf("%s\n", json_text(json_of(all, summary)).c_str());
  else
    print(all, summary);
  return static_cast<int>(summary.exit());
}

}  // namespace noria::perf
