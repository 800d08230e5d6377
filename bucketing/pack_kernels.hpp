// The pack kernels as the host runs them: by name, tile by tile, to the bit what a device writes.
//
// For tests, for what stands in for a device, and as what a device is compared with; and how what
// launches a kernel finds its name and its arguments.
//
// Threads: any thread; no state.
#pragma once

#include <noria/bucketing.h>

#include <string>
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

enum class PackWay { pack, unpack };

// The kernel that reads and writes these, of whatever dtype where it neither casts nor divides.
inline std::string pack_kernel_name(PackWay way, noria_dtype from, noria_dtype to, float divisor) {
  const auto word = [](noria_dtype dtype) -> std::string {
    switch (dtype) {
      case NORIA_FLOAT16: return "f16";
      case NORIA_FLOAT32: return "f32";
      case NORIA_FLOAT64: return "f64";
      case NORIA_BFLOAT16: return "bf16";
      default: return "?";  // which no kernel casts or divides
    }
  };
  return (way == PackWay::pack ? "noria_pack_" : "noria_unpack_") +
         (from == to && divisor == 1 ? "bytes" : word(from) + "_" + word(to));
}

// All but where things are.
inline PackArgs pack_args(float divisor, uint32_t element_bytes) {
  return {.tiles = nullptr,
          .pointers = nullptr,
          .bucket = nullptr,
          .divisor = divisor,
          .inverse = is_exact_divisor(divisor) ? 1 / divisor : 0,
          .element_bytes = element_bytes};
}

}  // namespace noria::bucketing
