#include "perf/tuned_cluster.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/own_folder.hpp"
#include "perf/command_line.hpp"
#include "perf/tune_curves.hpp"
#include "plugin/tuner/nccl_constants.hpp"

namespace noria::perf {

namespace tuner = plugin::tuner;

namespace {

struct Product {
  std::string_view name;
  tuner::Gpu gpu;
};
constexpr Product kProducts[]{{"v100", tuner::Gpu::volta},      {"a100", tuner::Gpu::ampere},
                              {"h100", tuner::Gpu::hopper},     {"h200", tuner::Gpu::hopper},
                              {"b200", tuner::Gpu::blackwell},  {"b300", tuner::Gpu::blackwell},
                              {"gb200", tuner::Gpu::blackwell}, {"gb300", tuner::Gpu::blackwell}};

[[noreturn]] void refuse(const char* flag, const std::string& value, const std::string& accepts) {
  throw usage_error(std::string(flag) + ": '" + value + "' is not accepted; it takes " + accepts);
}

tuner::Gpu asked_gpu(const std::string& text) {
  const std::string lower = CLI::detail::to_lower(text);
  for (const Product& product : kProducts)
    if (product.name == lower) return product.gpu;
  if (const auto gpu = tuner::find_word<tuner::Gpu>(text)) return *gpu;
  std::string names;
  for (const Product& product : kProducts) names += std::string(product.name) + ", ";
  refuse("--gpu", text, names + tuner::choices_text<tuner::Gpu>());
}

tuner::Cpu cpu_of(const std::string& text) {
  const auto* const found = std::find(tuner::kCpus.begin(), tuner::kCpus.end(), text);
  if (found == tuner::kCpus.end()) refuse("--cpu", text, "intel, amd or arm");
  return static_cast<tuner::Cpu>(found - tuner::kCpus.begin());
}

std::vector<std::string> tables_of(const ClusterFlags& flags) {
  if (!flags.tables.empty()) return flags.tables;
  const Params params = params_of_environment();
  if (!params.tuner) return {};
  std::vector<std::string> paths;
  if (!params.tuner_table.empty()) paths.push_back(params.tuner_table);
  // In the build tree and where the tree is installed.
  const std::string self = own_folder(reinterpret_cast<const void*>(&add_cluster_flags));
  for (const char* step : {"../lib/", "../" NORIA_LIBDIR "/"}) {
    const auto shipped = tuner::tables_in(self + step + tuner::kTablesFolder);
    if (!shipped) throw usage_error(shipped.failure());
    paths.insert(paths.end(), shipped->begin(), shipped->end());
    if (!shipped->empty()) break;
  }
  return paths;
}

}  // namespace

void add_cluster_flags(CLI::App& app, ClusterFlags* flags) {
  app.add_option("--nodes", flags->nodes, "nodes")->required()->check(whole_number(1, 1'000'000));
  app.add_option("--gpus", flags->gpus, "GPUs of a node, a rank each")
      ->check(whole_number(1, 1024))
      ->capture_default_str();
  app.add_option("--nics", flags->nics, "NICs of a node")
      ->check(whole_number(1, 1024))
      ->capture_default_str();
  app.add_option("--link", flags->link, "Gb/s of one NIC: 400, ib400 or eth100")
      ->capture_default_str();
  app.add_option("--gpu", flags->gpu, "h100, b200, ..., or a generation")->capture_default_str();
  app.add_option("--cpu", flags->cpu, "whose processors: intel, amd or arm")->capture_default_str();
  app.add_option("--nccl", flags->nccl, "its version, for rows that want one")
      ->capture_default_str();
  app.add_flag("--collnet", flags->has_collnet, "switches reduce (SHARP), and NCCL uses them");
  app.add_flag("--no-ll128", flags->tears_lines, "the network may tear a line of 128 bytes");
  app.add_option("--table", flags->tables,
                 "a table; of several the first row that fits counts. Else those that the plugin "
                 "reads: NORIA_TUNER_TABLE's, and those that come with noria")
      ->check(file_name());
}

tuner::Link link_of(const std::string& text) {
  tuner::Link link;
  const bool is_bare = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  if (!tuner::parse_link(is_bare ? "ib" + text : text, &link) || link.gbit == 0)
    refuse("--link", text, "Gb/s of one NIC, as 400, ib400 or eth100");
  return link;
}

std::string text_of(const Chosen& chosen) {
  return std::string(name_of(chosen.algorithm)) + " with " + std::string(name_of(chosen.protocol));
}

nlohmann::ordered_json json_of(const TunedCluster& cluster, const Chosen& chosen) {
  return {{"algorithm", tuner::name_of(chosen.algorithm)},
          {"protocol", tuner::name_of(chosen.protocol)},
          {"channels", chosen.channels},
          {"us", chosen.us},
          {"us_source", cluster.source_of(chosen)}};
}

TunedCluster TunedCluster::make(const ClusterFlags& flags) {
  TunedCluster made;
  const tuner::Link link = link_of(flags.link);
  made.cluster_ = {.nodes = flags.nodes,
                   .ranks_per_node = flags.gpus,
                   .nics = flags.nics,
                   .link_gbit = link.gbit,
                   .gpu = asked_gpu(flags.gpu),
                   .cpu = cpu_of(flags.cpu),
                   .has_collnet = flags.has_collnet,
                   .has_ll128 = !flags.tears_lines};
  if (made.cluster_.ranks() < 2)
    throw usage_error("--nodes 1 --gpus 1 is one rank, which has nobody to talk to");
  made.hardware_ = {.link = link, .nics = flags.nics, .gpu = made.cluster_.gpu};
  if (!tuner::parse_nccl_version(flags.nccl, &made.hardware_.nccl_version))
    refuse("--nccl", flags.nccl, "a version as 2.30 or 2.30.7");
  for (const std::string& path : tables_of(flags)) {
    auto table = tuner::read_table(path);
    if (!table) throw usage_error(table.failure());
    made.files_.push_back({path, table->rows.size()});
    made.all_.rows.insert(made.all_.rows.end(), table->rows.begin(), table->rows.end());
    // As the plugin has it: constants are the user's; those that come with noria have none.
    keep_rows_for(made.hardware_, &*table);
    if (made.files_.size() == 1) made.table_.constants = std::move(table->constants);
  }
  for (size_t i = 0; i < made.all_.rows.size(); ++i) {
    if (!is_for(made.all_.rows[i], made.hardware_)) continue;
    made.table_.rows.push_back(made.all_.rows[i]);
    made.places_.push_back(i);
  }
  made.make_models();
  return made;
}

TunedCluster TunedCluster::of_nodes(uint64_t nodes) const {
  TunedCluster made = *this;
  made.cluster_.nodes = nodes;
  made.make_models();
  return made;
}

void TunedCluster::make_models() {
  plugin::abi::TunerConstants constants = tuner::nccl_constants();
  nccl_ = tuner::NcclModel::make(cluster_, constants);
  tuner::apply(table_.constants, &constants);
  tuned_ = tuner::NcclModel::make(cluster_, constants);
  index_ = tuner::Index::make(table_, {.ranks = cluster_.ranks(), .nodes = cluster_.nodes});
}

Explained TunedCluster::explain(tuner::Collective collective, uint64_t bytes) const {
  Explained explained;
  explained.before = nccl_.costs(collective, bytes);
  explained.after = tuned_.costs(collective, bytes);
  explained.decision = tuner::choose(table_, index_, collective, bytes, explained.after.costs());
  const tuner::Decision& decision = explained.decision;
  const auto chosen = [&](tuner::CostTable& costs, const tuner::NcclModel& model) {
    const size_t place = tuner::least_of(costs.costs());
    Chosen made{tuner::algorithm_of(place), tuner::protocol_of(place)};
    for (const tuner::Row* const row : {decision.row, decision.row_of_nccl})
      if (row != nullptr && row->cell() == place && row->is_predicted) made.row = row;
    made.us = made.row != nullptr ? made.row->predicted_us(bytes)
                                  : model.us(collective, made.algorithm, made.protocol, bytes);
    return made;
  };
  explained.nccl = chosen(explained.before, nccl_);
  explained.ours = chosen(explained.after, tuned_);
  if (decision.is_ours()) explained.ours.channels = decision.row->channels;
  return explained;
}

Fitting TunedCluster::fitting(tuner::Collective collective, uint64_t bytes) const {
  Fitting found;
  found.all = all_.rows.size();
  const tuner::Facts facts{.ranks = cluster_.ranks(), .nodes = cluster_.nodes};
  for (const tuner::Row& row : all_.rows) {
    if (row.collective != collective)
      ++found.other_collective;
    else if (!is_for(row, hardware_))
      ++found.other_hardware;
    else if (!is_for(row, facts))
      ++found.other_communicator;
    else if (!row.bytes.has(bytes))
      ++found.other_size;
    else
      found.rows.push_back(&row);
  }
  return found;
}

std::string TunedCluster::place_of(const tuner::Row& row) const {
  const bool is_kept = !table_.rows.empty() && &row >= table_.rows.data() &&
                       &row < table_.rows.data() + table_.rows.size();
  size_t place = is_kept ? places_[static_cast<size_t>(&row - table_.rows.data())]
                         : static_cast<size_t>(&row - all_.rows.data());
  for (const File& file : files_) {
    if (place < file.rows) return file.path + ":" + std::to_string(row.line);
    place -= file.rows;
  }
  return "?";
}

std::string TunedCluster::source_of(const Chosen& chosen) const {
  return chosen.row != nullptr ? place_of(*chosen.row) : "NCCL's model";
}

double TunedCluster::bus_gbs(tuner::Collective collective, uint64_t bytes, double us) const {
  const CurveKey key{
      .collective = collective, .nodes = cluster_.nodes, .ranks_per_node = cluster_.ranks_per_node};
  return perf::bus_gbs(key, bytes, us);
}

std::string TunedCluster::text() const {
  return std::to_string(cluster_.nodes) + (cluster_.nodes == 1 ? " node of " : " nodes of ") +
         std::to_string(cluster_.ranks_per_node) + " GPUs, " + text_of(hardware_) + ", " +
         std::string(tuner::kCpus[static_cast<size_t>(cluster_.cpu)]) +
         (cluster_.has_collnet ? ", switches that reduce" : "") +
         (cluster_.has_ll128 ? "" : ", no LL128");
}

}  // namespace noria::perf
