// What one block of threads does of a pack or an unpack: a tile.
//
// A bucket's launch has one block a tile, and a tile lies within one tensor, so that any number of
// small tensors costs one launch.
//
// The same text runs on a device (pack_kernels.cu) and on the host, for tests and as the reference
// that a device is compared with; there one thread may be all threads.
//
// Pointers are aligned to their elements. The tensors and the bucket do not overlap.
//
// Threads: any thread; no state.
#pragma once

#include <cstdint>

#include "bucketing/pack_moves.hpp"

namespace noria::bucketing {

inline constexpr uint32_t kPackThreads = 256;  // of a block
// At 4 bytes each, two turns of a block: tiles enough for every processor of a device from buckets
// of some MiB on. A multiple of any unit, so that tiles of a tensor are aligned as its beginning.
inline constexpr uint32_t kTileElements = 8192;

// The elements [first, first + count) of a tensor; `at` is where the first of them lies in the
// bucket, in elements.
struct PackTile {
  uint32_t tensor;  // slot in the table of pointers
  uint32_t count;   // at most kTileElements
  uint64_t first;
  uint64_t at;
};
static_assert(sizeof(PackTile) == 24);

// The one parameter of every kernel. What it points to is a device's.
struct PackArgs {
  const PackTile* tiles;     // one a block
  const uint64_t* pointers;  // of tensors, by slot. 0: pack writes zeros, unpack nothing
  void* bucket;
  float divisor;           // of every value; 1 only where they are cast
  float inverse;           // 1 / divisor where that is exact, else 0
  uint32_t element_bytes;  // what Raw copies
};
static_assert(sizeof(PackArgs) == 40);

// Whether dividing by it is multiplying by its inverse: it is a power of two.
inline bool is_exact_divisor(float divisor) {
  return (bits_as<uint32_t>(divisor) & 0x7FFFFFU) == 0;
}

// Elements that are copied, whatever they are.
struct Raw {};

// A tile's memory, in and out. Without `in` zeros are written, without `out` nothing is done.
struct TileSides {
  const char* in;
  char* out;
  uint64_t in_bytes;
  uint64_t out_bytes;
};

namespace detail {

template <class Format>
NORIA_HOST_DEVICE uint64_t bytes_of(const PackArgs&, uint64_t elements) {
  return elements * sizeof(typename Format::Bits);
}
template <>
NORIA_HOST_DEVICE uint64_t bytes_of<Raw>(const PackArgs& args, uint64_t elements) {
  return elements * args.element_bytes;
}

template <class From, class To>
NORIA_HOST_DEVICE void move_tile(const PackArgs& args, const PackTile& tile, const TileSides& sides,
                                 Lane lane) {
  pack::assume_global(sides.out);
  pack::assume_global(sides.in);
  if constexpr (__is_same(From, Raw)) {
    return pack::copy(sides.in, sides.out, static_cast<uint32_t>(sides.out_bytes), lane);
  } else {
    if constexpr (!__is_same(From, To)) {
      if (args.divisor == 1)
        return pack::convert<From, To>(sides.in, sides.out, tile.count, lane, AsIs());
    }
    if (args.inverse != 0)
      return pack::convert<From, To>(sides.in, sides.out, tile.count, lane, Times{args.inverse});
    pack::convert<From, To>(sides.in, sides.out, tile.count, lane, Over{args.divisor});
  }
}

}  // namespace detail

// ---- the two ways ------------------------------------------------------------------------------

// From is what tensors hold, To what the bucket does.
template <class From, class To>
struct Pack {
  static NORIA_HOST_DEVICE TileSides sides(const PackArgs& args, const PackTile& tile) {
    const uint64_t tensor = args.pointers[tile.tensor];
    const char* in = reinterpret_cast<const char*>(tensor);
    if (in != nullptr) in += detail::bytes_of<From>(args, tile.first);
    return {in, static_cast<char*>(args.bucket) + detail::bytes_of<To>(args, tile.at),
            in == nullptr ? 0 : detail::bytes_of<From>(args, tile.count),
            detail::bytes_of<To>(args, tile.count)};
  }
  static NORIA_HOST_DEVICE void run(const PackArgs& args, const PackTile& tile, Lane lane) {
    const TileSides at = sides(args, tile);
    if (at.in == nullptr)
      return pack::write_zeros(at.out, static_cast<uint32_t>(at.out_bytes), lane);
    detail::move_tile<From, To>(args, tile, at, lane);
  }
};

// From is what the bucket holds, To what tensors do.
template <class From, class To>
struct Unpack {
  static NORIA_HOST_DEVICE TileSides sides(const PackArgs& args, const PackTile& tile) {
    const uint64_t tensor = args.pointers[tile.tensor];
    if (tensor == 0) return {nullptr, nullptr, 0, 0};
    return {static_cast<const char*>(args.bucket) + detail::bytes_of<From>(args, tile.at),
            reinterpret_cast<char*>(tensor) + detail::bytes_of<To>(args, tile.first),
            detail::bytes_of<From>(args, tile.count), detail::bytes_of<To>(args, tile.count)};
  }
  static NORIA_HOST_DEVICE void run(const PackArgs& args, const PackTile& tile, Lane lane) {
    const TileSides at = sides(args, tile);
    if (at.out != nullptr) detail::move_tile<From, To>(args, tile, at, lane);
  }
};

}  // namespace noria::bucketing
