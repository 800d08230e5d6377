// The pack kernels as the host runs them: by name, tile by tile, to the bit what a device writes.
//
// For tests, for what stands in for a device, and as what a device is compared with.
//
// Threads: any thread; no state.
#pragma once

#include <string_view>

#include "bucketing/pack_tile.hpp"

namespace noria::bucketing {

struct PackKernel {
  std::string_view name;
  TileSides (*sides)(const PackArgs& args, const PackTile& tile);
  void (*run)(const PackArgs& args, const PackTile& tile, Lane lane);
};

inline constexpr PackKernel kPackKernels[] = {
#define NORIA_PACK_KERNEL(function, Way, From, To) \
  {#function, &Way<From, To>::sides, &Way<From, To>::run},
#include "bucketing/pack_kernels.def"
#undef NORIA_PACK_KERNEL
};

// NULL: there is none of this name.
constexpr const PackKernel* find_pack_kernel(std::string_view name) {
  for (const PackKernel& kernel : kPackKernels)
    if (kernel.name == name) return &kernel;
  return nullptr;
}

}  // namespace noria::bucketing
