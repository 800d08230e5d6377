// The kernels of pack_kernels.def: one block a tile.
#include "bucketing/pack_tile.hpp"

namespace noria::bucketing {

#define NORIA_PACK_KERNEL(function, Way, From, To)                               \
  extern "C" __global__ void __launch_bounds__(kPackThreads)                     \
      function(const __grid_constant__ PackArgs args) {                          \
    Way<From, To>::run(args, args.tiles[blockIdx.x], {threadIdx.x, blockDim.x}); \
  }
#include "bucketing/pack_kernels.def"
#undef NORIA_PACK_KERNEL

}  // namespace noria::bucketing
