#include "bucketing/finite.hpp"

#include <algorithm>
#include <cstring>

namespace noria::bucketing {
namespace {

// Whatever the format, a value is not finite if all bits of its exponent are set.
template <class Bits>
bool is_finite(const std::byte* values, uint64_t count, Bits exponent) {
  // A block has no branch, so that the compiler makes vectors of it; between blocks it may end
  // early.
  constexpr uint64_t kBlock = 4096;
  for (uint64_t first = 0; first < count; first += kBlock) {
    Bits found = 0;
    const uint64_t end = std::min(count, first + kBlock);
    for (uint64_t i = first; i < end; ++i) {
      Bits bits = 0;
      std::memcpy(&bits, values + i * sizeof bits, sizeof bits);
      found |= static_cast<Bits>((bits & exponent) == exponent ? 1 : 0);
    }
    if (found != 0) return false;
  }
  return true;
}

}  // namespace

bool is_finite(noria_dtype dtype, const std::byte* values, uint64_t count) {
  switch (dtype) {
    case NORIA_FLOAT16: return is_finite<uint16_t>(values, count, 0x7c00);
    case NORIA_BFLOAT16: return is_finite<uint16_t>(values, count, 0x7f80);
    case NORIA_FLOAT32: return is_finite<uint32_t>(values, count, 0x7f800000);
    case NORIA_FLOAT64: return is_finite<uint64_t>(values, count, 0x7ff0000000000000);
    default: return true;
  }
}

}  // namespace noria::bucketing
