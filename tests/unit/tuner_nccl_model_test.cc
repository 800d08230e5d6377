#include "plugin/tuner/nccl_model.hpp"

#include <gtest/gtest.h>

#include "base/units.hpp"

namespace noria::plugin::tuner {
namespace {

Cluster h100(uint64_t nodes, uint64_t nics = 8) {
  return {.nodes = nodes, .ranks_per_node = 8, .nics = nics, .link_gbit = 400};
}

Cluster one_gpu_a_node(uint64_t nodes) {
  return {.nodes = nodes, .ranks_per_node = 1, .nics = 1, .link_gbit = 400};
}

struct Choice {
  Algorithm algorithm;
  Protocol protocol;
  friend bool operator==(const Choice&, const Choice&) = default;
};
Choice choice_of(const NcclModel& model, Collective collective, uint64_t bytes) {
  CostTable table = model.costs(collective, bytes);
  const size_t least = least_of(table.costs());
  return {algorithm_of(least), protocol_of(least)};
}

TEST(Nccl_graph, Of_H100_nodes_is_what_public_logs_show) {
  const Graphs one = find_graphs(h100(1));
  EXPECT_EQ(text_of(one.ring), "12 channels of 30/30 GB/s");
  EXPECT_EQ(text_of(one.nvls), "8 channels of 40/60 GB/s");
  EXPECT_EQ(one.channels, 24u);
  const Graphs two = find_graphs(h100(2));
  EXPECT_EQ(text_of(two.ring), "8 channels of 48/48 GB/s");
  EXPECT_EQ(two.channels, 16u);
  // One NIC: its channel is doubled, and what it carries halved.
  const Graphs slow = find_graphs(h100(2, 1));
  EXPECT_EQ(text_of(slow.ring), "2 channels of 24/24 GB/s");
  EXPECT_EQ(text_of(slow.nvls), "8 channels of 6/6 GB/s");
  EXPECT_EQ(slow.channels, 4u);
}

TEST(Nccl_graph, Of_a_GPU_is_bounded_by_what_it_can_feed) {
  Cluster cluster = h100(2);
  cluster.ranks_per_node = 2;
  EXPECT_EQ(text_of(find_graphs(cluster).ring), "4 channels of 24/24 GB/s");
  cluster.gpu = Gpu::ampere;  // 24 GB/s a GPU
  EXPECT_EQ(text_of(find_graphs(cluster).ring), "2 channels of 24/24 GB/s");
  cluster = h100(2);
  cluster.gpu = Gpu::blackwell;
  cluster.link_gbit = 800;
  EXPECT_EQ(text_of(find_graphs(cluster).ring), "16 channels of 48/48 GB/s");
  // Few channels of more than 45 GB/s are set up twice more from Hopper on.
  cluster.nics = 2;
  cluster.link_gbit = 400;
  cluster.ranks_per_node = 1;
  EXPECT_EQ(find_graphs(cluster).channels, 8u);
}

TEST(Nccl_graph, Is_none_where_there_is_nothing_to_do_or_no_way) {
  EXPECT_EQ(find_graphs({}).ring.channels, 0u);
  EXPECT_EQ(find_graphs(h100(2, 0)).ring.channels, 0u);
  for (const float cost : NcclModel::make({}).costs(Collective::all_reduce, 8).us)
    EXPECT_EQ(cost, abi::kIgnoredCost);
}

// By hand, from the tables of constants: 16 ranks, 30 steps of which 2 cross, 8 channels of 48.
TEST(Nccl_model, Of_an_all_reduce_on_two_nodes_is_as_by_hand) {
  const NcclModel model = NcclModel::make(h100(2));
  const auto line = [&](Algorithm algorithm, Protocol protocol) {
    return model.line(Collective::all_reduce, algorithm, protocol);
  };
  const auto us = [&](Algorithm algorithm, Protocol protocol) {
    return model.us(Collective::all_reduce, algorithm, protocol, 25_MiB);
  };
  EXPECT_NEAR(line(Algorithm::ring, Protocol::simple).gbs, 8 * 48 * 16 / 30.0, 1e-9);
  EXPECT_NEAR(line(Algorithm::ring, Protocol::simple).latency_us, 8.4 + 28 * 3.4 + 2 * 14, 1e-9);
  EXPECT_NEAR(us(Algorithm::ring, Protocol::simple), 1.4 * 131.6 + 128, 1e-9);
  EXPECT_NEAR(line(Algorithm::ring, Protocol::ll).gbs, 39 * 16 / 30.0, 1e-9);
  EXPECT_NEAR(line(Algorithm::ring, Protocol::ll).latency_us, 6.6 + 28 * 1 + 2 * 2.7, 1e-9);
  EXPECT_NEAR(line(Algorithm::ring, Protocol::ll128).gbs, 8 * 36.7 * 16 / 30, 1e-9);
  EXPECT_NEAR(us(Algorithm::ring, Protocol::ll128), 14 + 28 * 1.9 + 2 * 4 + 167.4114, 1e-3);
  EXPECT_NEAR(line(Algorithm::tree, Protocol::ll).latency_us, 6.8 + 2 * (7 * 0.6 + 5), 1e-9);
  // 25 MiB are between 64 B * 2^18 and 2^19: 0.7 of Simple, 0.9 of LL128.
  EXPECT_NEAR(us(Algorithm::tree, Protocol::simple),
              8.4 + 2 * (7 * 4 + 14) + 26214.4 / (8 * 41.4 / 2 * 0.7), 1e-9);
  EXPECT_NEAR(us(Algorithm::tree, Protocol::ll128),
              14 + 2 * (7 * 1.25 + 8.5) + 26214.4 / (8 * 36.7 / 2 * 0.9), 1e-9);
  EXPECT_NEAR(us(Algorithm::nvls_tree, Protocol::simple),
              25 + 2 * 20.9 + 26214.4 / (8 * 57.7 * 16 / 30), 1e-9);
}

TEST(Nccl_model, Gives_what_clusters_were_seen_to_choose_and_to_reach) {
  // NVIDIA/nccl-tests#309: 8 B in 24.7 us on two nodes, NVLSTree at the top end with 469 GB/s of
  // the bus; four nodes 366; one node 476 to 480 with NVLS.
  const NcclModel two = NcclModel::make(h100(2));
  EXPECT_EQ(choice_of(two, Collective::all_reduce, 8), (Choice{Algorithm::tree, Protocol::ll}));
  EXPECT_NEAR(two.us(Collective::all_reduce, Algorithm::tree, Protocol::ll, 8), 24.7, 1);
  EXPECT_EQ(choice_of(two, Collective::all_reduce, 1_GiB),
            (Choice{Algorithm::nvls_tree, Protocol::simple}));
  const auto bus_gbs = [](uint64_t nodes, Algorithm algorithm) {
    const NcclModel model = NcclModel::make(h100(nodes));
    const double ranks = static_cast<double>(nodes) * 8;
    return model.line(Collective::all_reduce, algorithm, Protocol::simple).gbs * 2 * (ranks - 1) /
           ranks;
  };
  EXPECT_NEAR(bus_gbs(2, Algorithm::nvls_tree), 461.6, 1e-6);
  EXPECT_NEAR(bus_gbs(4, Algorithm::nvls_tree), 364, 1e-6);
  EXPECT_NEAR(bus_gbs(1, Algorithm::nvls), 476, 1e-6);
  EXPECT_NEAR(bus_gbs(1, Algorithm::ring), 360, 1e-6);
}

TEST(Nccl_model, Caps_LL_between_nodes_by_the_processor_and_inside_one_by_the_GPU) {
  const auto ll = [](Cluster cluster, Cpu cpu) {
    cluster.cpu = cpu;
    const double ranks = static_cast<double>(cluster.ranks());
    return NcclModel::make(cluster)
               .line(Collective::all_reduce, Algorithm::ring, Protocol::ll)
               .gbs *
           2 * (ranks - 1) / ranks;
  };
  EXPECT_NEAR(ll(h100(4), Cpu::intel), 20.4, 1e-9);
  EXPECT_NEAR(ll(h100(4), Cpu::arm), 20.4, 1e-9);
  EXPECT_NEAR(ll(h100(4), Cpu::amd), 19, 1e-9);
  EXPECT_NEAR(ll(h100(2), Cpu::amd), 22.5, 1e-9);
  EXPECT_NEAR(ll(h100(1), Cpu::amd), 141, 1e-9);
  // A table may say otherwise: llMaxBws, row 0, 3 nodes and more.
  abi::TunerConstants constants = nccl_constants();
  apply({{.place = 21 + 63 + 2, .value = 35}}, &constants);
  EXPECT_NEAR(NcclModel::make(h100(4), constants)
                  .line(Collective::all_reduce, Algorithm::ring, Protocol::ll)
                  .gbs,
              35 * 32 / 62.0, 1e-9);
}

TEST(Nccl_model, Uses_what_the_collective_and_the_cluster_have) {
  const auto used = [](const Cluster& cluster, Collective collective) {
    std::string text;
    const CostTable table = NcclModel::make(cluster).costs(collective, 1_MiB);
    for (size_t i = 0; i < kAlgorithms.size(); ++i)
      for (size_t j = 0; j < kProtocols.size(); ++j)
        if (table.us[i * kProtocols.size() + j] >= 0)
          text += std::string(kAlgorithms[i]) + "/" + std::string(kProtocols[j]) + " ";
    return text;
  };
  const std::string rings = "Ring/LL Ring/LL128 Ring/Simple ";
  const std::string trees = "Tree/LL Tree/LL128 Tree/Simple ";
  Cluster cluster = h100(1);
  EXPECT_EQ(used(cluster, Collective::all_reduce), trees + rings + "NVLS/Simple ");
  EXPECT_EQ(used(cluster, Collective::all_gather), rings + "NVLS/Simple ");
  EXPECT_EQ(used(cluster, Collective::broadcast), rings);
  cluster = h100(2);
  EXPECT_EQ(used(cluster, Collective::all_reduce), trees + rings + "NVLSTree/Simple ");
  EXPECT_EQ(used(cluster, Collective::reduce_scatter), rings);
  cluster.has_collnet = true;
  EXPECT_EQ(
      used(cluster, Collective::all_reduce),
      trees + rings + "CollNetDirect/Simple CollNetChain/Simple NVLS/Simple NVLSTree/Simple ");
  EXPECT_EQ(used(cluster, Collective::all_gather), rings + "CollNetDirect/Simple NVLS/Simple ");
  // A NIC for each GPU is wanted for the halves.
  cluster.nics = 4;
  EXPECT_EQ(used(cluster, Collective::all_gather), rings);
  cluster = one_gpu_a_node(4);
  EXPECT_EQ(used(cluster, Collective::all_gather), rings + "PAT/Simple ");
  EXPECT_EQ(used(cluster, Collective::all_reduce), trees + rings);
  cluster.has_ll128 = false;
  EXPECT_EQ(used(cluster, Collective::reduce), "Ring/LL Ring/Simple ");
  cluster = h100(1);
  cluster.gpu = Gpu::ampere;
  EXPECT_EQ(used(cluster, Collective::all_reduce), trees + rings);
}

TEST(Nccl_model, Of_the_other_algorithms_is_as_by_hand) {
  Cluster cluster = h100(4);
  cluster.has_collnet = true;
  const NcclModel model = NcclModel::make(cluster);
  const auto line = [&](Collective collective, Algorithm algorithm) {
    return model.line(collective, algorithm, Protocol::simple);
  };
  const auto direct = line(Collective::all_reduce, Algorithm::collnet_direct);
  EXPECT_NEAR(direct.gbs, 8 * 48 * 0.85 / 2, 1e-9);
  EXPECT_NEAR(direct.latency_us, 2 * (3.7 + 7 * 0.4) + 31, 1e-9);
  const auto chain = line(Collective::all_reduce, Algorithm::collnet_chain);
  EXPECT_NEAR(chain.gbs, 8 * 48 / 2.0, 1e-9);
  EXPECT_NEAR(chain.latency_us, 2 * 7 * 2.8 + 30, 1e-9);
  const auto nvls = line(Collective::all_reduce, Algorithm::nvls);
  EXPECT_NEAR(nvls.gbs, 8 * 48 * 32 / 62.0, 1e-9);
  EXPECT_NEAR(nvls.latency_us, 25 + 18, 1e-9);
  const auto gather = line(Collective::all_gather, Algorithm::nvls);
  EXPECT_NEAR(gather.gbs, 8 * 45 * 0.85 * 7 / 8 * 7 / 8, 1e-9);
  EXPECT_NEAR(line(Collective::all_gather, Algorithm::collnet_direct).gbs, 8 * 48 * 0.9, 1e-9);
  // The network's hop is the tree's where a node has one GPU: 14 us.
  const NcclModel thin = NcclModel::make(one_gpu_a_node(4));
  const auto pat = thin.line(Collective::all_gather, Algorithm::pat, Protocol::simple);
  EXPECT_NEAR(pat.gbs, 48 * 0.75, 1e-9);
  EXPECT_NEAR(pat.latency_us, 8 + 2 * 14 / 3.5 + 4 * 2.8, 1e-9);
  const auto ring = thin.line(Collective::all_gather, Algorithm::ring, Protocol::ll);
  EXPECT_NEAR(ring.latency_us, 6.6 + 3 * 5, 1e-9);
  EXPECT_NEAR(thin.line(Collective::all_reduce, Algorithm::tree, Protocol::simple).gbs,
              48 * 0.92 / 2 * 0.85, 1e-9);
}

TEST(Nccl_model, Of_a_pipeline_counts_the_ranks_only_where_channels_take_different_ways) {
  const auto latency = [](const Cluster& cluster, Protocol protocol) {
    return NcclModel::make(cluster)
        .line(Collective::broadcast, Algorithm::ring, protocol)
        .latency_us;
  };
  EXPECT_NEAR(latency(h100(1), Protocol::simple), 8.4 + 3.4, 1e-9);
  EXPECT_NEAR(latency(h100(2, 1), Protocol::ll), 6.6 + 2.7, 1e-9);
  EXPECT_NEAR(latency(h100(2), Protocol::ll), 6.6 + 16 * 2.7, 1e-9);
  EXPECT_NEAR(latency(h100(2), Protocol::simple), 8.4 + 16 * 14, 1e-9);
}

TEST(Nccl_model, Corrects_NVLS_trees_on_Blackwell_with_x86_alone) {
  Cluster cluster = h100(4);
  const auto us = [&] {
    return NcclModel::make(cluster).us(Collective::all_reduce, Algorithm::nvls_tree,
                                       Protocol::simple, 1_MiB);
  };
  const auto straight = [&] {
    const auto line = NcclModel::make(cluster).line(Collective::all_reduce, Algorithm::nvls_tree,
                                                    Protocol::simple);
    return line.latency_us + 1048.576 / line.gbs;
  };
  EXPECT_DOUBLE_EQ(us(), straight());
  cluster.gpu = Gpu::blackwell;
  EXPECT_GT(us(), straight());
  cluster.cpu = Cpu::arm;
  EXPECT_DOUBLE_EQ(us(), straight());
}

TEST(Nccl_model, Never_gives_a_negative_time_and_is_monotone_but_for_the_correction_of_trees) {
  for (const Gpu gpu : {Gpu::volta, Gpu::ampere, Gpu::hopper, Gpu::blackwell})
    for (const uint64_t nodes : {1, 2, 3, 64})
      for (const uint64_t per_node : {1, 2, 8})
        for (const bool has_collnet : {false, true}) {
          Cluster cluster = h100(nodes);
          cluster.ranks_per_node = per_node;
          cluster.gpu = gpu;
          cluster.has_collnet = has_collnet;
          if (cluster.ranks() < 2) continue;
          const NcclModel model = NcclModel::make(cluster);
          for (size_t collective = 0; collective < kCollectives.size(); ++collective) {
            CostTable before = model.costs(static_cast<Collective>(collective), 0);
            for (uint64_t bytes = 1; bytes <= 64_GiB; bytes *= 2) {
              CostTable now = model.costs(static_cast<Collective>(collective), bytes);
              EXPECT_NE(least_of(now.costs()), kNoPlace);
              for (size_t cell = 0; cell < kCells; ++cell) {
                ASSERT_EQ(now.us[cell] >= 0, before.us[cell] >= 0);
                ASSERT_TRUE(now.us[cell] > 0 || now.us[cell] == abi::kIgnoredCost);
                const auto algorithm = algorithm_of(cell);
                if (algorithm != Algorithm::tree && algorithm != Algorithm::nvls_tree) {
                  ASSERT_GE(now.us[cell], before.us[cell]);
                }
              }
              before = now;
            }
          }
        }
}

TEST(Nccl_constants, Of_a_place_past_the_end_are_left_out) {
  abi::TunerConstants constants = nccl_constants();
  apply({{.place = sizeof constants / sizeof(double), .value = 1}}, &constants);
  EXPECT_EQ(constants.nvls_tree_bws[3][2], 80);
}

}  // namespace
}  // namespace noria::plugin::tuner
