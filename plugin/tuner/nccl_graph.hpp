// What NCCL's search over a node's topology finds, of which its cost model begins: how many
// channels, and what each carries.
//
// NCCL searches the machine it runs on. Here the answer is derived for the node that is usual: GPUs
// behind one NVSwitch, each NIC beside a GPU, all NICs alike. NCCL logs its own under
// NCCL_DEBUG_SUBSYS=GRAPH ("Pattern 4, ..., nChannels 8, bw 48.000000/48.000000"; 4 is the ring, 5
// NVLS): where that differs from text_of(), so do the costs.
//
// Sources: the speeds that the search tries and NVLink's rates are facts of NCCL 2.30.7
// (src/graph/search.cc, topo.h); public logs have 12 x 30 for one node of 8 H100 and 8 x 40 for
// NVLS on it (NVIDIA/nccl#1197), and 8 x 48 for two with 8 NICs of 400 Gb/s.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <string>

#include "plugin/tuner/words.hpp"

namespace noria::plugin::tuner {

enum class Cpu : uint8_t { intel, amd, arm };
inline constexpr std::array<std::string_view, 3> kCpus{"intel", "amd", "arm"};

// A communicator and the machines that it is on, which are alike.
struct Cluster {
  uint64_t nodes = 1;
  uint64_t ranks_per_node = 1;  // a GPU each
  uint64_t nics = 0;            // of a node
  uint32_t link_gbit = 0;       // of one NIC
  Gpu gpu = Gpu::hopper;
  Cpu cpu = Cpu::intel;      // of NCCL's caps for LL, and of the time that a network step costs
  bool has_collnet = false;  // switches that reduce (SHARP), and NCCL_COLLNET_ENABLE=1
  bool has_ll128 = true;     // every path keeps a line of 128 bytes whole

  uint64_t ranks() const { return nodes * ranks_per_node; }
};

// GB/s of one channel inside a node, and between nodes. No channels: it cannot be used.
struct Graph {
  uint32_t channels = 0;
  double intra_gbs = 0, inter_gbs = 0;
};

struct Graphs {
  Graph ring;  // and tree
  Graph nvls;  // and NVLS tree
  Graph collnet;
  uint32_t channels = 0;  // that NCCL sets up for rings: those of the graph, doubled
};

Graphs find_graphs(const Cluster& cluster);
// "8 channels of 48/48 GB/s"
std::string text_of(const Graph& graph);

}  // namespace noria::plugin::tuner
