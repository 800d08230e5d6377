#include "plugin/tuner/nccl_graph.hpp"

#include <algorithm>
#include <span>

#include "base/value_text.hpp"

namespace noria::plugin::tuner {
namespace {

// What the search tries, in GB/s, and what bounds it.
struct Machine {
  double nvlink_gbs;  // of one GPU, all its links
  double pci_gbs;     // of one GPU
  std::span<const double> intra;
  std::span<const double> inter;
};

constexpr double kIntra[]{40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3};
constexpr double kInter[]{48, 30, 28, 24, 20, 18,  15,  12,   10,  9,
                          7,  6,  5,  4,  3,  2.4, 1.2, 0.24, 0.12};
constexpr double kHopperIntra[]{60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3};
constexpr double kHopperInter[]{48, 45, 42, 40, 30,  24,  22,   20,  17.5,
                                15, 12, 6,  3,  2.4, 1.2, 0.24, 0.12};
constexpr double kBlackwellIntra[]{90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18};
constexpr double kBlackwellInter[]{96,   48, 45.1, 42, 40, 30,  24,  22,   20,
                                   17.5, 15, 12,   6,  3,  2.4, 1.2, 0.24, 0.12};

// NVLink: links of a GPU times NCCL's GB/s of one. PCI Express: 16 lanes of generation 3 to 6.
Machine machine_of(Gpu gpu) {
  switch (gpu) {
    case Gpu::volta: return {6 * 20.0, 12, kIntra, kInter};
    case Gpu::ampere: return {12 * 20.0, 24, kIntra, kInter};
    case Gpu::hopper: return {18 * 20.6, 48, kHopperIntra, kHopperInter};
    case Gpu::blackwell: break;
  }
  return {18 * 40.1, 96, kBlackwellIntra, kBlackwellInter};
}

constexpr uint32_t kMostSearched = 32;  // channels
constexpr uint32_t kMostChannels = 64;

// The first that is tried and fits.
double speed_below(std::span<const double> tried, double limit) {
  const auto found =
      std::find_if(tried.begin(), tried.end(), [&](double speed) { return speed <= limit; });
  return found != tried.end() ? *found : tried.back();
}

uint32_t channels_of(double total, double each) {
  return static_cast<uint32_t>(std::clamp(total / each, 1.0, double{kMostSearched}));
}

// A few fast channels become twice as many of half the speed.
Graph duplicated(Graph graph, Gpu gpu) {
  const bool is_enough = gpu >= Gpu::hopper && graph.intra_gbs < 50 && graph.channels > 4;
  if (graph.intra_gbs < 25 || is_enough || graph.channels * 2 > kMostSearched) return graph;
  return {graph.channels * 2, graph.intra_gbs / 2, graph.inter_gbs / 2};
}

// Between nodes, of all NICs that the GPUs can feed.
Graph network_graph(const Cluster& cluster, const Machine& machine) {
  const double nic = cluster.link_gbit / 8.0;
  const double speed = speed_below(machine.inter, std::min(nic, machine.pci_gbs));
  const double fed = static_cast<double>(cluster.ranks_per_node) * machine.pci_gbs;
  const double carried = static_cast<double>(cluster.nics) * speed;
  return {channels_of(std::min(carried, fed), speed), speed, speed};
}

Graph ring_graph(const Cluster& cluster, const Machine& machine) {
  if (cluster.nodes > 1) return network_graph(cluster, machine);
  const double speed = machine.intra.front();
  return {channels_of(machine.nvlink_gbs, speed), speed, speed};
}

// Each GPU is the head of one channel, which all of its NVLinks serve.
Graph nvls_graph(const Cluster& cluster, const Machine& machine) {
  if (cluster.gpu < Gpu::hopper || cluster.ranks_per_node < 2) return {};
  const auto heads = static_cast<double>(cluster.ranks_per_node);
  const uint32_t channels = channels_of(heads, 1);
  const double switched = machine.nvlink_gbs / heads;
  if (cluster.nodes == 1)
    return {channels, speed_below(machine.intra, switched), machine.intra.front()};
  const Graph network = network_graph(cluster, machine);
  const double share = network.channels * network.inter_gbs / heads;
  const double inter = speed_below(machine.inter, share);
  return {channels, std::min(inter, speed_below(machine.inter, switched)), inter};
}

}  // namespace

Graphs find_graphs(const Cluster& cluster) {
  Graphs found;
  if (cluster.ranks() < 2 || (cluster.nodes > 1 && (cluster.nics == 0 || cluster.link_gbit == 0)))
    return found;
  const Machine machine = machine_of(cluster.gpu);
  const Graph ring = ring_graph(cluster, machine);
  found.ring = duplicated(ring, cluster.gpu);
  found.nvls = nvls_graph(cluster, machine);
  if (cluster.nodes > 1 && cluster.has_collnet) found.collnet = ring;
  found.channels = std::min(found.ring.channels * 2, kMostChannels);
  if (cluster.gpu >= Gpu::hopper && cluster.nodes > 1 && found.ring.intra_gbs > 45 &&
      found.channels < 16)
    found.channels *= 2;
  return found;
}

std::string text_of(const Graph& graph) {
  return std::to_string(graph.channels) + " channels of " + detail::number_text(graph.intra_gbs) +
         "/" + detail::number_text(graph.inter_gbs) + " GB/s";
}

}  // namespace noria::plugin::tuner
