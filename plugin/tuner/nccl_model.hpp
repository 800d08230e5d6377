// NCCL's own cost model, version 2.30: how long it thinks each algorithm takes with each protocol,
// and by that what it chooses.
//
//   us = latency + bytes / (1000 * GB/s)
//
// A pure function of the cluster, NCCL's constants, the collective and its bytes, for one operation
// that is not grouped with others and no user's NCCL_ALGO, NCCL_PROTO or NCCL_NET_OVERHEAD. Derived
// anew from the behaviour of NCCL 2.30.7 (src/graph/tuning.cc); each rule says in nccl_model.cc
// what it is. The network's latency counts as 0, which NCCL's own transport and noria's tell it.
//
// - What NCCL does not use there costs abi::kIgnoredCost, as in the table that it gives a tuner.
// - More bytes never cost less, but for Tree, and NVLSTree on Blackwell: these have a correction by
//   powers of two, which makes some sizes slower than twice as much.
//
// Costs: make() computes 105 lines; costs() 21 multiplications. No allocation.
//
// Threads: pure; a model is immutable.
#pragma once

#include <array>
#include <cstdint>

#include "plugin/abi/tuner.hpp"
#include "plugin/tuner/decision.hpp"
#include "plugin/tuner/nccl_constants.hpp"
#include "plugin/tuner/nccl_graph.hpp"

namespace noria::plugin::tuner {

// NCCL's cost table, owned: by cell_of().
struct CostTable {
  std::array<float, kCells> us;

  CostTable() { us.fill(abi::kIgnoredCost); }
  float of(Algorithm algorithm, Protocol protocol) const {
    return us[cell_of(algorithm, protocol)];
  }
  Costs costs() { return {us.data(), kAlgorithms.size(), kProtocols.size()}; }
};

class NcclModel {
 public:
  // A straight line, before what depends on the size; 0 GB/s: NCCL does not use it.
  struct Line {
    double latency_us = 0;
    double gbs = 0;  // of the operation's bytes, not of the bus
  };

  static NcclModel make(const Cluster& cluster,
                        const abi::TunerConstants& constants = nccl_constants());

  // `bytes` as NCCL counts them: of all_gather and reduce_scatter over all ranks.
  CostTable costs(Collective collective, uint64_t bytes) const;
  double us(Collective collective, Algorithm algorithm, Protocol protocol, uint64_t bytes) const;

  const Line& line(Collective collective, Algorithm algorithm, Protocol protocol) const {
    return lines_[static_cast<size_t>(collective)][cell_of(algorithm, protocol)];
  }
  const Cluster& cluster() const { return cluster_; }
  const Graphs& graphs() const { return graphs_; }

 private:
  Cluster cluster_;
  Graphs graphs_;
  std::array<std::array<Line, kCells>, kCollectives.size()> lines_{};
};

}  // namespace noria::plugin::tuner
