// noria_tune explain: which algorithm and protocol one operation gets on a cluster, and why.

#include <cstdio>

#include "perf/command_line.hpp"
#include "perf/format_text.hpp"
#include "perf/json_text.hpp"
#include "perf/tune_commands.hpp"
#include "perf/tuned_cluster.hpp"

namespace noria::perf {
namespace {

namespace tuner = plugin::tuner;
using Json = nlohmann::ordered_json;

constexpr const char* kHelp =
    "Says which algorithm and protocol an operation gets on a cluster, and why: what NCCL 2.30's "
    "own "
    "cost model chooses, what the tuner makes of it by a table, which row that was, and how long "
    "it is thought to take. It decides by the plugin's own code; the costs that NCCL would hand it "
    "are "
    "modelled, for nodes of GPUs behind one NVSwitch and NICs beside them.\n"
    "  noria_tune explain --nodes 16 --gpus 8 --bytes 25MiB --table ours.csv\n"
    "Exit: 0 all right, 2 usage, or a file that is no table.";

struct Question {
  tuner::Collective collective{};
  uint64_t bytes = 0;
};

const char* name_of(tuner::Reason reason) {
  switch (reason) {
    case tuner::Reason::no_row: return "no_row";
    case tuner::Reason::same: return "same";
    case tuner::Reason::too_small_gain: return "too_small_gain";
    case tuner::Reason::override: return "override";
  }
  return "?";
}

std::string why_no_row(const TunedCluster& cluster, const Fitting& fitting) {
  if (!cluster.has_table()) return "there is no table: NCCL chooses";
  if (!fitting.rows.empty())
    return format_text("what the %zu rows that fit choose NCCL does not use here: NCCL chooses",
                       fitting.rows.size());
  return format_text(
      "no row fits: of %zu, %zu are of other collectives, %zu for other hardware, %zu for other "
      "numbers of nodes or of ranks on them, %zu for other sizes; NCCL chooses",
      fitting.all, fitting.other_collective, fitting.other_hardware, fitting.other_communicator,
      fitting.other_size);
}

std::string why(const TunedCluster& cluster, const Question& question, const Explained& explained,
                const Fitting& fitting) {
  const tuner::Decision& decision = explained.decision;
  if (decision.reason == tuner::Reason::no_row) return why_no_row(cluster, fitting);
  const std::string place = cluster.place_of(*decision.row);
  if (decision.reason == tuner::Reason::same)
    return place + " is the first row that fits, and NCCL's own choice is the same";
  if (decision.reason == tuner::Reason::override)
    return place + " is the first row that fits and that NCCL can do";
  const tuner::Row* const other = decision.row_of_nccl;
  if (other == nullptr || !other->is_predicted || !decision.row->is_predicted)
    return place +
           " is the first row that fits, but is modelled, and no row predicts how long "
           "NCCL's own choice takes, which stands";
  return place +
         format_text(" is the first row that fits, but is not better by more than %g %%: %.1f us, ",
                     decision.row->max_regret * 100, decision.row->predicted_us(question.bytes)) +
         "and " + cluster.place_of(*other) +
         format_text(" predicts %.1f us for NCCL's own choice, which stands",
                     other->predicted_us(question.bytes));
}

Json cost_json(float us) { return us >= 0 ? Json(us) : Json(); }

Json graph_json(const tuner::Graph& graph) {
  return {
      {"channels", graph.channels}, {"intra_gbs", graph.intra_gbs}, {"inter_gbs", graph.inter_gbs}};
}

Json json_of(const TunedCluster& cluster, const Question& question, const Explained& explained) {
  const tuner::Cluster& facts = cluster.model().cluster();
  const tuner::Graphs& graphs = cluster.model().graphs();
  const Fitting fitting = cluster.fitting(question.collective, question.bytes);
  Json costs = Json::array();
  for (size_t cell = 0; cell < tuner::kCells; ++cell)
    costs.push_back({{"algorithm", tuner::name_of(tuner::algorithm_of(cell))},
                     {"protocol", tuner::name_of(tuner::protocol_of(cell))},
                     {"nccl_us", cost_json(explained.before.us[cell])},
                     {"noria_us", cost_json(explained.after.us[cell])}});
  Json rows = Json::array();
  for (const tuner::Row* const row : fitting.rows)
    rows.push_back({{"place", cluster.place_of(*row)}, {"text", text_of(*row)}});
  const tuner::Row* const row = explained.decision.row;
  return {{"collective", tuner::name_of(question.collective)},
          {"bytes", question.bytes},
          {"nodes", facts.nodes},
          {"ranks_per_node", facts.ranks_per_node},
          {"hardware", text_of(cluster.hardware())},
          {"ring", graph_json(graphs.ring)},
          {"nvls", graph_json(graphs.nvls)},
          {"costs", costs},
          {"nccl", json_of(cluster, explained.nccl)},
          {"noria", json_of(cluster, explained.ours)},
          {"reason", name_of(explained.decision.reason)},
          {"why", why(cluster, question, explained, fitting)},
          {"row", row != nullptr ? Json{{"place", cluster.place_of(*row)},
                                        {"provenance", row->provenance},
                                        {"text", text_of(*row)}}
                                 : Json()},
          {"rows", rows},
          {"rows_left_out",
           {{"other_collective", fitting.other_collective},
            {"other_hardware", fitting.other_hardware},
            {"other_communicator", fitting.other_communicator},
            {"other_size", fitting.other_size}}}};
}

std::string cost_text(float us) { return us >= 0 ? format_text("%.1f", us) : "-"; }

void print_costs(const Explained& explained) {
  std::printf("%-14s %-8s %14s %14s\n", "algorithm", "protocol", "NCCL us", "with noria us");
  for (size_t cell = 0; cell < tuner::kCells; ++cell) {
    const float before = explained.before.us[cell], after = explained.after.us[cell];
    if (before < 0 && after < 0) continue;
    std::printf("%-14s %-8s %14s %14s\n",
                std::string(tuner::name_of(tuner::algorithm_of(cell))).c_str(),
                std::string(tuner::name_of(tuner::protocol_of(cell))).c_str(),
                cost_text(before).c_str(), cost_text(after).c_str());
  }
}

void print_chosen(const char* who, const TunedCluster& cluster, const Question& question,
                  const Chosen& chosen) {
  const double gbs = cluster.bus_gbs(question.collective, question.bytes, chosen.us);
  const std::string channels =
      chosen.channels != 0 ? " over " + std::to_string(chosen.channels) + " channels" : "";
  std::printf("%s: %s%s, %.1f us, %.1f GB/s of the bus (%s)\n", who, text_of(chosen).c_str(),
              channels.c_str(), chosen.us, gbs, cluster.source_of(chosen).c_str());
}

void print(const TunedCluster& cluster, const Question& question, const Explained& explained) {
  const tuner::Graphs& graphs = cluster.model().graphs();
  const Fitting fitting = cluster.fitting(question.collective, question.bytes);
  std::printf("%s of %s bytes on %s\n", std::string(tuner::name_of(question.collective)).c_str(),
              detail::bytes_text(question.bytes, "bytes").c_str(), cluster.text().c_str());
  std::printf("NCCL's rings and trees: %s", text_of(graphs.ring).c_str());
  if (graphs.nvls.channels != 0) std::printf("; NVLS: %s", text_of(graphs.nvls).c_str());
  std::printf("\n\n");
  print_costs(explained);
  std::printf("\n");
  print_chosen("NCCL alone", cluster, question, explained.nccl);
  print_chosen("with noria", cluster, question, explained.ours);
  std::printf("why: %s\n", why(cluster, question, explained, fitting).c_str());
  for (const tuner::Row* const row : fitting.rows)
    std::printf("row %s: %s\n", cluster.place_of(*row).c_str(), text_of(*row).c_str());
}

}  // namespace

int tune_explain(int argc, char** argv) {
  ClusterFlags flags;
  std::string collective = "all_reduce";
  Question question;
  bool is_json = false;
  CLI::App app(kHelp, "noria_tune explain");
  add_cluster_flags(app, &flags);
  app.add_option("--bytes", question.bytes, "of the whole message, as nccl-tests counts it: 25MiB")
      ->required()
      ->transform(byte_size(1, uint64_t{1} << 50));
  app.add_option("--coll", collective, "the collective")->capture_default_str();
  app.add_flag("--json", is_json, "print JSON");
  if (parse_command_line(app, argc, argv)) return 0;

  question.collective = word_of<tuner::Collective>("--coll", collective);
  const TunedCluster cluster = TunedCluster::make(flags);
  const Explained explained = cluster.explain(question.collective, question.bytes);
  if (is_json)
    std::printf("%s\n", json_text(json_of(cluster, question, explained)).c_str());
  else
    print(cluster, question, explained);
  return 0;
}

}  // namespace noria::perf
