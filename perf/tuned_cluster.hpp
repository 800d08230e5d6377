// A cluster as a user describes it, the tables that count on it, and what NCCL does there with
// noria's tuner and without.
//
// The choice is the plugin's own: the same rows are kept, the same index is made, and the same
// choose() is asked; only NCCL's costs are those of its model (plugin/tuner/nccl_model.hpp).
// A user's NCCL_ALGO and NCCL_PROTO are not looked at.
//
// Threads: immutable once made; any thread.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "plugin/tuner/nccl_model.hpp"

namespace noria::perf {

struct ClusterFlags {
  uint64_t nodes = 0, gpus = 8, nics = 8;
  std::string link = "ib400", gpu = "h100", cpu = "intel", nccl = "2.30.7";
  bool has_collnet = false, tears_lines = false;
  std::vector<std::string> tables;
};
void add_cluster_flags(CLI::App& app, ClusterFlags* flags);
// Of --link: one with a rate; a bare number is InfiniBand's. Throws ToolError (usage).
plugin::tuner::Link link_of(const std::string& text);

// What is chosen, how long it is thought to take, and who thinks so.
struct Chosen {
  plugin::tuner::Algorithm algorithm{};
  plugin::tuner::Protocol protocol{};
  uint8_t channels = 0;  // 0: NCCL decides
  double us = 0;
  const plugin::tuner::Row* row = nullptr;  // whose prediction `us` is; null: the model's
};
std::string text_of(const Chosen& chosen);  // "NVLSTree with Simple"
class TunedCluster;
nlohmann::ordered_json json_of(const TunedCluster& cluster, const Chosen& chosen);

// Of all rows of all tables: why they are not the choice, or that they fit.
struct Fitting {
  size_t all = 0;
  size_t other_collective = 0, other_hardware = 0, other_communicator = 0, other_size = 0;
  std::vector<const plugin::tuner::Row*> rows;  // those that fit, in order
};

struct Explained {
  plugin::tuner::CostTable before;  // NCCL's, with the constants that it starts with
  plugin::tuner::CostTable after;   // what the tuner leaves
  plugin::tuner::Decision decision;
  Chosen nccl;  // without the tuner
  Chosen ours;
};

class TunedCluster {
 public:
  // Reads the tables: of --table, or else those that the plugin reads. Throws ToolError (usage)
  // that names flag or file.
  static TunedCluster make(const ClusterFlags& flags);
  // The same with another number of nodes.
  TunedCluster of_nodes(uint64_t nodes) const;

  Explained explain(plugin::tuner::Collective collective, uint64_t bytes) const;
  Fitting fitting(plugin::tuner::Collective collective, uint64_t bytes) const;

  const plugin::tuner::NcclModel& model() const { return nccl_; }
  const plugin::tuner::Hardware& hardware() const { return hardware_; }
  bool has_table() const { return !files_.empty(); }
  // "ours.csv:12"
  std::string place_of(const plugin::tuner::Row& row) const;
  // Who predicts its time: a place, or "NCCL's model".
  std::string source_of(const Chosen& chosen) const;
  // GB/s of the bus, as nccl-tests counts them.
  double bus_gbs(plugin::tuner::Collective collective, uint64_t bytes, double us) const;
  std::string text() const;  // "16 nodes of 8 GPUs, ..."

 private:
  struct File {
    std::string path;
    size_t rows;  // of table_, one file's after the other's
  };
  void make_models();

  plugin::tuner::Cluster cluster_;
  plugin::tuner::Hardware hardware_;
  std::vector<File> files_;
  plugin::tuner::Table all_;    // rows of all files
  plugin::tuner::Table table_;  // those for this hardware
  std::vector<size_t> places_;  // of table_'s rows in all_
  plugin::tuner::Index index_;
  plugin::tuner::NcclModel nccl_, tuned_;
};

}  // namespace noria::perf
