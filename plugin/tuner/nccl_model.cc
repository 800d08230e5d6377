#include "plugin/tuner/nccl_model.hpp"

#include <algorithm>
#include <bit>

namespace noria::plugin::tuner {
namespace {

// Of NVLink's rate that multicast reaches; from Volta on.
constexpr std::array<double, 4> kNvlsEfficiency{0, 0, 0.85, 0.74};

// Of a tree's bandwidth, by protocol and powers of two from 64 bytes on.
constexpr size_t kCorrections = 24;
constexpr std::array<std::array<double, kCorrections>, 3> kTreeCorrection{{
    {1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1, 1},
    {1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1, 1},
    {.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5,
     .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9, .9},
}};

// Of a value from 1 on.
double floor_log2(uint64_t value) { return 63 - std::countl_zero(value); }

// Computes the lines of one cluster.
class Maker {
 public:
  using Line = NcclModel::Line;

  Maker(const Cluster& cluster, const Graphs& graphs, const abi::TunerConstants& constants)
      : cluster_(cluster), graphs_(graphs), constants_(constants) {}

  Line line(Collective collective, Algorithm algorithm, Protocol protocol) const {
    if (!is_used(collective, algorithm, protocol)) return {};
    const double gbs =
        bus_gbs(collective, algorithm, protocol) * operation_part(collective, algorithm);
    if (!(gbs > 0)) return {};
    return {latency_us(collective, algorithm, protocol), gbs};
  }

 private:
  static bool is_gather(Collective collective) {
    return collective == Collective::all_gather || collective == Collective::reduce_scatter;
  }
  double ranks() const { return static_cast<double>(cluster_.ranks()); }
  double nodes() const { return static_cast<double>(cluster_.nodes); }
  double per_node() const { return static_cast<double>(cluster_.ranks_per_node); }
  size_t gpu() const { return static_cast<size_t>(cluster_.gpu); }
  // Of the constants: 1, 2, and 3 or more nodes.
  size_t scale() const { return static_cast<size_t>(std::min<uint64_t>(cluster_.nodes, 3) - 1); }

  bool is_used(Collective collective, Algorithm algorithm, Protocol protocol) const {
    if (!is_possible(collective, algorithm) || !is_possible(algorithm, protocol)) return false;
    if (graphs_.ring.channels == 0) return false;
    if (protocol == Protocol::ll128 && !cluster_.has_ll128) return false;
    switch (algorithm) {
      case Algorithm::ring:
      case Algorithm::tree: return true;
      // The switches reduce, so there must be some. The halves of an all-reduce want a NIC for each
      // GPU on top.
      case Algorithm::collnet_chain: return graphs_.collnet.channels > 0;
      case Algorithm::collnet_direct:
        return graphs_.collnet.channels > 0 && (!is_gather(collective) || has_nic_each());
      case Algorithm::nvls:
        if (graphs_.nvls.channels < 2) return false;
        return cluster_.nodes == 1 ||
               (cluster_.has_collnet && (!is_gather(collective) || has_nic_each()));
      case Algorithm::nvls_tree: return graphs_.nvls.channels >= 2 && cluster_.nodes > 1;
      case Algorithm::pat: return cluster_.ranks_per_node == 1;
    }
    return false;
  }
  bool has_nic_each() const { return cluster_.nics >= cluster_.ranks_per_node; }

  // ---- bandwidth: of the bus, all channels together ---------------------------------------------

  double bus_gbs(Collective collective, Algorithm algorithm, Protocol protocol) const {
    switch (algorithm) {
      case Algorithm::ring: return ring_gbs(protocol);
      case Algorithm::tree: return tree_gbs(protocol);
      case Algorithm::collnet_direct: return collnet_direct_gbs(collective);
      case Algorithm::collnet_chain: return graphs_.collnet.channels * graphs_.collnet.intra_gbs;
      case Algorithm::nvls:
      case Algorithm::nvls_tree: return nvls_gbs(collective, algorithm);
      case Algorithm::pat: return 0.75 * all_channels_gbs();
    }
    return 0;
  }

  // Of two nodes NCCL looks at what a channel carries inside a node.
  double all_channels_gbs() const {
    const Graph& graph = graphs_.ring;
    return graph.channels * (cluster_.nodes <= 2 ? graph.intra_gbs : graph.inter_gbs);
  }

  // Inside one node by the GPU, between nodes by who made the processor: NCCL's rows are so.
  double ll_most_gbs() const {
    const size_t row = cluster_.nodes == 1 ? gpu() : cluster_.cpu == Cpu::amd ? 1 : 0;
    return constants_.ll_max_bws[row][scale()];
  }

  double ring_gbs(Protocol protocol) const {
    const double all = all_channels_gbs();
    if (protocol == Protocol::ll) return std::min(ll_most_gbs(), all * 0.5);
    if (protocol == Protocol::ll128)
      return std::min(all * 0.92,
                      graphs_.ring.channels * constants_.ring_ll128_bws[gpu()][scale()]);
    return all;
  }

  double tree_gbs(Protocol protocol) const {
    const uint32_t channels = graphs_.ring.channels;
    double gbs =
        std::min(all_channels_gbs() * 0.92, channels * constants_.tree_bws[gpu()][scale()]);
    if (protocol == Protocol::ll) gbs = std::min(gbs / 3.8, ll_most_gbs());
    if (protocol == Protocol::ll128)
      gbs = std::min(gbs * (cluster_.nodes == 1 ? 7.0 / 9 : 120.0 / 128),
                     channels * constants_.tree_ll128_bws[gpu()][scale()]);
    // One GPU receives and sends for both halves of the tree.
    return cluster_.ranks_per_node == 1 ? gbs * 0.85 : gbs;
  }

  double nvls_gbs(Collective collective, Algorithm algorithm) const {
    const Graph& graph = graphs_.nvls;
    double intra = graph.intra_gbs * kNvlsEfficiency[gpu()] * (graph.channels - 1) / graph.channels;
    intra *= is_gather(collective) ? (per_node() - 1) / per_node() : 2;  // else two at a time
    if (algorithm == Algorithm::nvls) return graph.channels * std::min(intra, graph.inter_gbs);
    const double inter = graph.inter_gbs * (cluster_.nodes <= 2 ? 2 : 1);
    return graph.channels * std::min({intra, inter, constants_.nvls_tree_bws[gpu()][scale()]});
  }

  double collnet_direct_gbs(Collective collective) const {
    const Graph& graph = graphs_.collnet;
    if (is_gather(collective)) return per_node() * std::min(graph.intra_gbs, graph.inter_gbs * 0.9);
    // GPUs without a NIC of their own cost half of what they would have to share.
    const double share = per_node() / graph.channels;
    const double gbs = graph.channels * graph.intra_gbs / ((share + 1) / 2);
    return cluster_.gpu >= Gpu::hopper ? gbs * 0.85 : gbs;
  }

  // What of the bus bandwidth is the operation's.
  double operation_part(Collective collective, Algorithm algorithm) const {
    const bool is_ring_like = algorithm == Algorithm::ring || algorithm == Algorithm::nvls ||
                              algorithm == Algorithm::nvls_tree;
    if (is_gather(collective) && algorithm != Algorithm::ring) return 1;
    return is_ring_like ? ranks() / steps(collective) : 0.5;
  }

  double steps(Collective collective) const {
    if (collective == Collective::all_reduce) return 2 * (ranks() - 1);
    return is_gather(collective) ? ranks() - 1 : ranks();
  }

  // ---- latency ----------------------------------------------------------------------------------

  enum Hop : uint8_t { nvlink, pci, net };
  double hop_us(Hop hop, Algorithm algorithm, Protocol protocol) const {
    return constants_
        .hw_latencies[hop][static_cast<size_t>(algorithm)][static_cast<size_t>(protocol)];
  }

  double latency_us(Collective collective, Algorithm algorithm, Protocol protocol) const {
    const double base =
        constants_.base_latencies[static_cast<size_t>(algorithm)][static_cast<size_t>(protocol)];
    const double intra = hop_us(nvlink, algorithm, protocol);
    // With one GPU a node nothing hides the network; NCCL takes the tree's then.
    const double inter =
        hop_us(net, cluster_.ranks_per_node == 1 ? Algorithm::tree : algorithm, protocol);
    const double others = per_node() - 1;
    const double depth = floor_log2(cluster_.nodes);
    switch (algorithm) {
      case Algorithm::ring: return base + ring_us(collective, protocol, intra, inter);
      case Algorithm::tree: return base + 2 * (others * intra + depth * inter);
      // 0.4 us: what each further GPU waits for the one before it.
      case Algorithm::collnet_direct:
        return base + 2 * (std::min(others, 1.0) * intra + others * 0.4) + inter;
      case Algorithm::collnet_chain: return base + 2 * others * intra + inter;
      case Algorithm::nvls: return intra + (cluster_.nodes > 1 ? inter : 0);  // without the base
      case Algorithm::nvls_tree: return base + intra + 2 * depth * inter;
      case Algorithm::pat: return base + depth * inter / 3.5 + ranks() * 2.8;
    }
    return base;
  }

  double ring_us(Collective collective, Protocol protocol, double intra, double inter) const {
    if (collective == Collective::broadcast || collective == Collective::reduce)
      return pipeline_us(protocol);
    if (cluster_.nodes == 1) return steps(collective) * intra;
    // Each step is a call of the network's, also where the bytes stay inside.
    const double overhead =
        (cluster_.cpu == Cpu::amd ? 2.0 : 1.0) * (protocol == Protocol::simple ? 3 : 1);
    const double crossings = (collective == Collective::all_reduce ? 2 : 1) * (nodes() - 1);
    return (steps(collective) - crossings) * std::max(intra, overhead) + crossings * inter;
  }

  // Where all channels visit GPUs in the same order, the length of the ring does not count. So it
  // is inside a node, and with one NIC.
  double pipeline_us(Protocol protocol) const {
    const Hop hop = cluster_.nodes == 1 ? nvlink : net;
    if (cluster_.nodes == 1 || cluster_.nics == 1) return hop_us(hop, Algorithm::ring, protocol);
    const Algorithm algorithm = protocol == Protocol::simple ? Algorithm::tree : Algorithm::ring;
    return ranks() * hop_us(hop, algorithm, protocol);
  }

  const Cluster& cluster_;
  const Graphs& graphs_;
  const abi::TunerConstants& constants_;
};

// NCCL corrects Tree below 512 MiB, and NVLSTree on Blackwell with x86 processors below 1 GiB.
double correction(const Cluster& cluster, Algorithm algorithm, Protocol protocol, uint64_t bytes) {
  if (bytes < 64) return 1;
  const auto power = static_cast<size_t>(floor_log2(bytes / 64));
  const bool is_tree = algorithm == Algorithm::tree && power + 1 < kCorrections;
  const bool is_nvls_tree = algorithm == Algorithm::nvls_tree && power < kCorrections &&
                            cluster.gpu == Gpu::blackwell && cluster.cpu != Cpu::arm;
  return is_tree || is_nvls_tree ? kTreeCorrection[static_cast<size_t>(protocol)][power] : 1;
}

}  // namespace

NcclModel NcclModel::make(const Cluster& cluster, const abi::TunerConstants& constants) {
  NcclModel model;
  model.cluster_ = cluster;
  model.graphs_ = find_graphs(cluster);
  const Maker maker(cluster, model.graphs_, constants);
  for (size_t collective = 0; collective < kCollectives.size(); ++collective)
    for (size_t cell = 0; cell < kCells; ++cell)
      model.lines_[collective][cell] =
          maker.line(static_cast<Collective>(collective), algorithm_of(cell), protocol_of(cell));
  return model;
}

double NcclModel::us(Collective collective, Algorithm algorithm, Protocol protocol,
                     uint64_t bytes) const {
  const Line& straight = line(collective, algorithm, protocol);
  if (straight.gbs == 0) return abi::kIgnoredCost;
  const double gbs = straight.gbs * correction(cluster_, algorithm, protocol, bytes);
  double latency = straight.latency_us;
  // A ring of several nodes levels off: from 64 bytes a rank and channel on.
  if (algorithm == Algorithm::ring && protocol == Protocol::simple && cluster_.nodes > 1 &&
      collective == Collective::all_reduce && bytes / (graphs_.channels * cluster_.ranks()) >= 64)
    latency *= cluster_.gpu >= Gpu::ampere ? 1.4 : 1.9;
  return latency + static_cast<double>(bytes) / (1000 * gbs);
}

CostTable NcclModel::costs(Collective collective, uint64_t bytes) const {
  CostTable table;
  for (size_t cell = 0; cell < kCells; ++cell)
    table.us[cell] =
        static_cast<float>(us(collective, algorithm_of(cell), protocol_of(cell), bytes));
  return table;
}

}  // namespace noria::plugin::tuner
