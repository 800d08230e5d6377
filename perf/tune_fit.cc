// noria_tune fit: a table of the tuner's from measurements.

#include <algorithm>
#include <cstdio>

#include "perf/command_line.hpp"
#include "perf/json_text.hpp"
#include "perf/model_choice.hpp"
#include "perf/nccl_tests_json.hpp"
#include "perf/scaled_curves.hpp"
#include "perf/stats.hpp"
#include "perf/tune_commands.hpp"
#include "perf/tune_logs.hpp"
#include "perf/tuner_rows.hpp"

namespace noria::perf {
namespace {

constexpr const char* kHelp =
    "Makes a table by which noria's tuner chooses, from what nccl-tests measured: lines through "
    "the "
    "times of each choice, the fastest first at each size. It prints how well they fit: the "
    "relative error of sizes that were left out. A log of which a choice is not known (neither "
    "NCCL_ALGO and NCCL_PROTO nor NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=TUNING) gives no row, unless "
    "--algorithm and --protocol say it, or --nccl-model is to guess it.\n"
    "  noria_tune fit ring.log tree.log --nics 8 --link ib400 -o ours.csv\n"
    "Exit: 0 all right, 2 usage, or a log that is not to be trusted: nothing is written then.";

namespace tuner = plugin::tuner;

struct Flags {
  LogFlags of_logs;
  std::string nics, link, gpu, nccl = "*", provenance, out;
  ScaleTo scale;
  bool asks_model = false;
  bool is_json = false;
  std::optional<double> max_regret;
};

// A column of the table, by the table's own reader: the failure says what it takes.
tuner::Row read_column(const std::string& flag, const std::string& value, size_t column) {
  std::string line = "noria_table,1\nall_reduce";
  for (size_t i = 1; i < 8; ++i) line += "," + (i == column ? value : std::string("*"));
  auto table = tuner::parse_table(line + ",Ring,Simple,0,0,-,-,a flag\n", "");
  if (table && table->rows.size() == 1) return table->rows.front();
  const std::string why = table ? "takes one value" : table.failure();
  const size_t text = why.find('\'');
  throw usage_error(flag + ": " + (text == std::string::npos ? why : why.substr(text)));
}

bool crosses_network(const Measured& measured) {
  return std::any_of(measured.curves.begin(), measured.curves.end(),
                     [](const Curve& curve) { return curve.key.nodes > 1; });
}

// What the flags say; a flag that is not given says any. Before any log is read, so that a flag
// that is wrong is the first that is told.
RowsFor target_of(const Flags& flags) {
  const auto given = [](const std::string& value) { return value.empty() ? "*" : value; };
  RowsFor what;
  what.nics = read_column("--nics", given(flags.nics), 4).nics;
  what.link = read_column("--link", given(flags.link), 5).link;
  what.gpu = read_column("--gpu", given(flags.gpu), 6).gpu;
  what.nccl = read_column("--nccl", flags.nccl, 7).nccl;
  what.provenance = printable(flags.provenance);
  return what;
}

// What neither flags nor logs say is asked for, all at once.
void complete(const Flags& flags, const Measured& measured, RowsFor* what) {
  for (const Curve& curve : measured.curves)
    if (const auto known = gpu_of(curve.gpu); known && flags.gpu.empty()) what->gpu = known;
  std::string missing;
  const auto require = [&](bool is_known, const char* flag_and_example) {
    if (!is_known) missing += (missing.empty() ? "" : ", ") + std::string(flag_and_example);
  };
  const bool has_network = crosses_network(measured);
  require(!flags.nics.empty() || !has_network, "--nics as 8");
  require(!flags.link.empty() || !has_network, "--link as ib400");
  require(!flags.gpu.empty() || what->gpu, "--gpu as hopper");
  if (!missing.empty())
    throw usage_error("the logs do not say all that a row needs; give " + missing +
                      ", or * where the rows are for any");
}

// For NCCL's model: of a range of NICs the most.
tuner::Cluster cluster_of(const RowsFor& what, bool has_network) {
  constexpr uint64_t kUsualNics = 8;  // where no node has a network to cross
  tuner::Cluster cluster{.nics = what.nics.last == UINT64_MAX ? kUsualNics : what.nics.last};
  if (has_network && what.link.gbit == 0)
    throw usage_error("--link: NCCL's model wants a rate, as ib400");
  cluster.link_gbit = what.link.gbit;
  if (what.gpu) cluster.gpu = *what.gpu;
  return cluster;
}

bool gives_rows(const FittedCurve& curve) {
  return curve.curve.key.algorithm && curve.curve.key.protocol;
}

void print_summary(const std::vector<FittedCurve>& fitted) {
  std::vector<double> errors;
  for (const FittedCurve& curve : fitted) {
    std::printf("%s\n", printable(summary_of(curve)).c_str());
    if (curve.left_out) errors.push_back(*curve.left_out);
    if (!gives_rows(curve))
      std::printf("  gives no row: which algorithm and protocol NCCL chose is not known\n");
  }
  std::printf("%zu curves; median error of sizes left out: %.1f %%, of the worst curve %.1f %%\n",
              fitted.size(), 100 * median(errors), 100 * largest(errors));
}

void print_json(const std::vector<FittedCurve>& fitted, const std::string& out, size_t rows) {
  nlohmann::ordered_json curves = nlohmann::ordered_json::array();
  for (const FittedCurve& curve : fitted) {
    curves.push_back({{"curve", text_of(curve.curve.key)},
                      {"gives_rows", gives_rows(curve)},
                      {"sizes", means_of(curve.curve.times).size()},
                      {"lines", curve.pieces.size()},
                      {"median_error", curve.residual},
                      {"largest_error", curve.worst},
                      {"largest_error_bytes", curve.worst_bytes}});
    if (curve.left_out) curves.back()["median_error_left_out"] = *curve.left_out;
    for (const std::string& source : curve.curve.sources)
      curves.back()["sources"].push_back(printable(source));
  }
  const nlohmann::ordered_json all{{"curves", curves}, {"table", printable(out)}, {"rows", rows}};
  std::printf("%s\n", json_text(all).c_str());
}

void add_flags(CLI::App& app, Flags& flags) {
  add_log_flags(app, flags.of_logs);
  app.add_option("-o,--out", flags.out, "the table to write; without it the fit is printed alone")
      ->check(file_name());
  app.add_option("--nics", flags.nics, "NICs of a node, as 8 or 5-8");
  app.add_option("--link", flags.link, "their kind and Gb/s, as ib400");
  app.add_option("--gpu", flags.gpu, "the GPU, where the logs do not say it");
  app.add_option("--nccl", flags.nccl, "versions of NCCL that the rows are for")
      ->capture_default_str();
  app.add_option("--provenance", flags.provenance, "where and when, for each row");
  CLI::Option* const up_to = app.add_option(
      "--up-to-nodes", flags.scale.most_nodes,
      "rows for numbers of nodes that nobody measured, up to here: modelled, from the nearest that "
      "was, by what NCCL's model says of both");
  up_to->check(whole_number(2, 65536));
  app.add_option("--for-ranks-per-node", flags.scale.ranks_per_node,
                 "these rows are for nodes of so many ranks behind the same NICs")
      ->check(whole_number(1, 1024))
      ->needs(up_to);
  app.add_option("--measured-nics", flags.scale.measured_nics,
                 "NICs of a node that was measured, where --nics says others: the rows are "
                 "modelled then, all of them")
      ->check(whole_number(1, 1024))
      ->needs(up_to);
  app.add_flag("--nccl-model", flags.asks_model,
               "what NCCL chose where no log says it is what its own cost model would choose");
  app.add_option(
         "--max-regret", flags.max_regret,
         "of the table: a gain below it is noise; else 0.05, or what sizes left out are off "
         "by, where that is more")
      ->check(real_number(0, 1));
  app.add_flag("--json", flags.is_json, "print JSON: what was fitted, and how well");
}

}  // namespace

int tune_fit(int argc, char** argv) {
  Flags flags;
  CLI::App app(kHelp, "noria_tune fit");
  add_flags(app, flags);
  if (parse_command_line(app, argc, argv)) return 0;

  RowsFor target = target_of(flags);
  Measured measured = measured_of(flags.of_logs);
  const bool asks_model = flags.asks_model || flags.scale.most_nodes != 0;
  if (asks_model || !flags.out.empty()) complete(flags, measured, &target);
  Measured scaled;
  if (asks_model) {
    const tuner::Cluster wanted = cluster_of(target, crosses_network(measured));
    tuner::Cluster here = wanted;
    if (flags.scale.measured_nics != 0) here.nics = flags.scale.measured_nics;
    scaled.curves = scaled_curves(measured.curves, flags.scale, wanted);
    if (flags.asks_model) {
      close_choices(here, Open::all, &measured.curves);
      close_choices(wanted, Open::all, &scaled.curves);
    }
  }
  const std::vector<FittedCurve> fitted = fit_curves(&measured);
  tell_left_out(measured);
  if (flags.out.empty()) {
    flags.is_json ? print_json(fitted, "", 0) : print_summary(fitted);
    return 0;
  }
  std::vector<FittedCurve> all = fit_curves(&scaled);
  if (flags.scale.measured_nics == 0) all.insert(all.begin(), fitted.begin(), fitted.end());
  const std::vector<tuner::Row> rows = rows_of(all, target);
  if (fitted.empty())
    throw usage_error(flags.out + ": would have no row: no choice was measured at two sizes");
  if (rows.empty())
    throw usage_error(flags.out +
                      ": would have no row: which algorithm and protocol NCCL chose is "
                      "not known; measure with NCCL_ALGO and NCCL_PROTO, or give --algorithm and "
                      "--protocol");
  write_file(flags.out, table_text(fitted, rows, flags.max_regret.value_or(max_regret_of(fitted))));
  if (flags.is_json) {
    print_json(fitted, flags.out, rows.size());
    return 0;
  }
  print_summary(fitted);
  std::printf("%s: %zu rows\n", printable(flags.out).c_str(), rows.size());
  return 0;
}

}  // namespace noria::perf
