// noria_tune regret: how much slower a table's choices are than the best that was measured.

#include <cstdio>

#include "perf/command_line.hpp"
#include "perf/model_choice.hpp"
#include "perf/regret.hpp"
#include "perf/stats.hpp"
#include "perf/tune_commands.hpp"
#include "perf/tune_logs.hpp"

namespace noria::perf {
namespace {

constexpr const char* kHelp =
    "Compares choices at every size at which a sweep measured two or more of them: the best, what "
    "noria's tuner chooses, and what NCCL does. By the table of --table, which should know nothing "
    "of these logs; without it each size is decided by a table fitted to all others.\n"
    "  noria_tune regret default.log ring.log tree.log --table others.csv\n"
    "Exit: 0 never slower than NCCL by more than max_regret, 1 somewhere, 2 usage.";

namespace tuner = plugin::tuner;

// More than this and a choice was not the best.
constexpr double kSlow = 0.05;

void print(const Comparison& one) {
  std::printf("%-36s %12llu  %-16s %9.1f  %-16s %+6.1f %%  %-16s %+6.1f %%\n",
              text_of_communicator(one.communicator).c_str(),
              static_cast<unsigned long long>(one.bytes), one.best.name.c_str(), one.best.us,
              one.ours.name.c_str(), 100 * one.regret(), one.of_nccl.name.c_str(),
              100 * one.regret_of_nccl());
}

Exit print_summary(const std::vector<Comparison>& all, double max_regret) {
  std::vector<double> ours, of_nccl;
  size_t slow = 0, slow_of_nccl = 0, worse = 0;
  for (const Comparison& one : all) {
    ours.push_back(one.regret());
    of_nccl.push_back(one.regret_of_nccl());
    slow += one.regret() > kSlow ? 1 : 0;
    slow_of_nccl += one.regret_of_nccl() > kSlow ? 1 : 0;
    worse += one.over_nccl() > max_regret ? 1 : 0;
  }
  std::printf(
      "%zu sizes; slower than the best by more than 5 %%: ours at %zu, NCCL's at %zu; mean "
      "ours %.1f %%, NCCL's %.1f %%; largest ours %.1f %%, NCCL's %.1f %%\n",
      all.size(), slow, slow_of_nccl, 100 * mean(ours), 100 * mean(of_nccl), 100 * largest(ours),
      100 * largest(of_nccl));
  std::printf("slower than NCCL's by more than max_regret (%g): at %zu\n", max_regret, worse);
  return worse == 0 ? Exit::ok : Exit::wrong_result;
}

}  // namespace

int tune_regret(int argc, char** argv) {
  LogFlags flags;
  std::string path;
  tuner::Cluster usual{.nics = 8, .link_gbit = 400};
  CLI::App app(kHelp, "noria_tune regret");
  add_log_flags(app, flags);
  app.add_option("--table", path, "the table that chooses")->check(file_name());
  app.add_option("--nics", usual.nics, "NICs of a node, for NCCL's model")
      ->check(whole_number(1, 64))
      ->capture_default_str();
  app.add_option("--gbit", usual.link_gbit, "Gb/s of one of them, likewise")
      ->check(whole_number(1, 100'000))
      ->capture_default_str();
  if (parse_command_line(app, argc, argv)) return 0;

  Measured measured = measured_of(flags);
  tell_left_out(measured);
  tuner::Table table;
  if (!path.empty()) {
    auto read = tuner::read_table(path);
    if (!read) throw usage_error(read.failure());
    table = std::move(*read);
  }
  for (const Curve& curve : measured.curves)
    if (const auto gpu = gpu_of(curve.gpu)) usual.gpu = *gpu;
  close_choices(usual, Open::half, &measured.curves);
  // What NCCL chose itself costs what it was measured to: the table that is fitted knows it.
  std::vector<Curve> closed = measured.curves;
  close_choices(usual, Open::all, &closed);
  const std::vector<Comparison> all =
      compare_choices(measured.curves, usual, [&](const CurveKey& communicator, uint64_t bytes) {
        return path.empty() ? table_without(closed, communicator, bytes, table.max_regret) : table;
      });
  if (all.empty())
    throw usage_error(flags.logs.front() +
                      ": no size at which two choices were measured on one "
                      "communicator");
  std::printf("%-36s %12s  %-16s %9s  %-16s %8s  %-16s %8s\n", "communicator", "bytes", "best",
              "us", "ours", "slower", "NCCL's", "slower");
  for (const Comparison& one : all) print(one);
  return static_cast<int>(print_summary(all, table.max_regret));
}

}  // namespace noria::perf
