// The function table of a tuner plugin, in the layout of each version.
//
// A table is a data object that NCCL finds by its name, ncclTunerPlugin_v2 to _v6. The order of the
// members and their types are the ABI; a member that may be null says so. The cost table that NCCL
// hands over is typed float** and is one array, [algorithms][protocols], in microseconds.
//
// Threads: plain values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plugin/abi/result.hpp"

namespace noria::plugin::abi {

inline constexpr int kTunerAlgorithms = 7;  // 6 before NCCL 2.23
inline constexpr int kTunerProtocols = 3;
inline constexpr float kIgnoredCost = -1.0F;  // this algorithm with this protocol is not to be used

struct NvlDomains {
  int count;
  int least_ranks;
  int most_ranks;
};
static_assert(sizeof(NvlDomains) == 12);

// Of NCCL's own model. What a plugin leaves in it is what NCCL computes with.
struct TunerConstants {
  double base_latencies[kTunerAlgorithms][kTunerProtocols];
  double hw_latencies[3][kTunerAlgorithms][kTunerProtocols];  // NVLink, PCI, network
  double ll_max_bws[4][3];  // GPU generation, and 1, 2 or more nodes; so the rest
  double ring_ll128_bws[4][3];
  double tree_ll128_bws[4][3];
  double tree_bws[4][3];
  double nvls_tree_bws[4][3];
};
static_assert(sizeof(TunerConstants) == 1152);

struct TunerV2 {
  const char* name;
  Result (*init)(size_t ranks, size_t nodes, Logger, void** context);
  Result (*get_choice)(void* context, int collective, size_t bytes, int has_collnet, int has_nvls,
                       int pipelined, int* algorithm, int* protocol, int* channels);
  Result (*destroy)(void* context);
};
static_assert(sizeof(TunerV2) == 32);

struct TunerV3 {
  const char* name;
  Result (*init)(size_t ranks, size_t nodes, Logger, void** context);
  Result (*get_choice)(void* context, int collective, size_t bytes, int pipelined, float** costs,
                       int algorithms, int protocols, int* channels);
  Result (*destroy)(void* context);
};
static_assert(sizeof(TunerV3) == 32);

struct TunerV4 {
  const char* name;
  Result (*init)(size_t ranks, size_t nodes, Logger, void** context);
  Result (*get_choice)(void* context, int collective, size_t bytes, int pipelined, float** costs,
                       int algorithms, int protocols, int is_registered, int* channels);
  Result (*destroy)(void* context);
};
static_assert(sizeof(TunerV4) == 32);

struct TunerV5 {
  const char* name;
  Result (*init)(void** context, uint64_t communicator, size_t ranks, size_t nodes, Logger,
                 NvlDomains*, TunerConstants*);
  Result (*get_choice)(void* context, int collective, size_t bytes, int pipelined, float** costs,
                       int algorithms, int protocols, int is_registered, int* channels);
  Result (*finalize)(void* context);
};
static_assert(sizeof(TunerV5) == 32);

struct TunerV6 {
  const char* name;
  Result (*init)(void** context, uint64_t communicator, size_t ranks, size_t nodes, Logger,
                 NvlDomains*, TunerConstants*);
  Result (*get_choice)(void* context, int collective, size_t bytes, int pipelined, float** costs,
                       int algorithms, int protocols, int is_registered, int* channels);
  Result (*finalize)(void* context);
  Result (*get_chunk)(void* context, int collective, size_t bytes, int algorithm, int protocol,
                      int channels, size_t* chunk_bytes);  // may be null
};
static_assert(sizeof(TunerV6) == 40);

}  // namespace noria::plugin::abi
