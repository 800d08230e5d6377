#include "plugin/tuner/nccl_constants.hpp"

namespace noria::plugin::tuner {

// Rows are algorithms in NCCL's order, Tree to PAT; columns LL, LL128, Simple. Of bandwidths rows
// are GPU generations from Volta on, columns 1, 2, and 3 or more nodes.
abi::TunerConstants nccl_constants() {
  return {.base_latencies = {{6.8, 14, 8.4}, {6.6, 14, 8.4}, {}, {}, {}, {}, {8, 8, 8}},
          .hw_latencies =
              {
                  {{0.6, 1.25, 4},
                   {0.6, 1.9, 3.4},
                   {0, 0, 3.7},
                   {0, 0, 2.8},
                   {0, 0, 25},
                   {0, 0, 25},
                   {0, 0, 4}},
                  {{1, 1.9, 4}, {1, 2.5, 5.7}, {0, 0, 3.7}, {0, 0, 2.8}, {}, {}, {0, 0, 4}},
                  {{5, 8.5, 14},
                   {2.7, 4, 14},
                   {0, 0, 31},
                   {0, 0, 30},
                   {0, 0, 18},
                   {0, 0, 20.9},
                   {0, 0, 14}},
              },
          .ll_max_bws = {{39, 39, 20.4}, {87.7, 22.5, 19}, {141, 45, 35}, {282, 90, 70}},
          .ring_ll128_bws = {{20, 20, 20}, {20, 20, 20}, {36.7, 36.7, 36.7}, {40, 40, 40}},
          .tree_ll128_bws = {{20, 20, 20}, {20, 20, 20}, {36.7, 36.7, 29}, {55.6, 31.67, 20}},
          .tree_bws = {{26.5, 18.5, 10}, {24, 23.6, 17.8}, {38.7, 41.4, 36}, {70, 42.8, 24}},
          .nvls_tree_bws = {{26.5, 18.5, 10}, {24, 23.6, 17.8}, {0, 57.7, 45.5}, {0, 96, 80}}};
}

void apply(const std::vector<Constant>& changed, abi::TunerConstants* constants) {
  auto* const values = reinterpret_cast<double*>(constants);
  for (const Constant& constant : changed)
    if (constant.place < sizeof *constants / sizeof *values)
      values[constant.place] = constant.value;
}

}  // namespace noria::plugin::tuner
