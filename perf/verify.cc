#include "perf/verify.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "perf/elements.hpp"
#include "perf/small_floats.hpp"

namespace noria::perf {
namespace {

// Elements are made and compared in blocks: long enough for vector loops, short enough for L1.
constexpr uint64_t kBlock = 512;

constexpr uint32_t mix(uint32_t h) {
  h ^= h >> 16;
  h *= 0x21f0aaadU;
  h ^= h >> 15;
  h *= 0x735a2d97U;
  return h ^ (h >> 15);
}

// One seed a rank and round; the index is mixed in per element.
constexpr uint32_t seed_of(int rank, uint32_t round) {
  return mix(static_cast<uint32_t>(rank) * 0x9e3779b1U + mix(round + 0x3c6ef372U));
}

constexpr uint32_t hash_of(uint32_t seed, uint64_t index) {
  return mix(seed ^
             (static_cast<uint32_t>(index) * 0x85ebca77U + static_cast<uint32_t>(index >> 32)));
}

// Above this many ranks products would leave the range of a half.
constexpr int kMostScaledFactors = 12;

// How the elements of a spec are drawn; decided once a call.
struct Drawing {
  bool powers = false;   // of two: products that are exact
  bool unit = false;     // of them only 1 and -1
  bool factors = false;  // between 0.5 and 2, all bits in use
  int bits = 1;          // of the integer k in k * 2^-bits
};

Drawing drawing_of(const DataSpec& spec) {
  const int significand = dtype_row(spec.dtype).significand_bits;
  Drawing drawing;
  if (spec.op == NORIA_PROD) {
    drawing.unit = spec.ranks > kMostScaledFactors;
    drawing.powers = spec.exact || drawing.unit;
    drawing.factors = !drawing.powers;
  }
  // A sum of n values of b bits needs b + ceil(log2 n) bits. More than 20 add nothing.
  const auto growth =
      static_cast<int>(std::bit_width(static_cast<unsigned>(std::max(spec.ranks, 1) - 1)));
  drawing.bits = spec.exact ? std::clamp(significand - growth, 1, 20) : significand;
  return drawing;
}

// The real number that an element stands for; never zero, so that a flipped sign shows too.
double real_of(uint32_t hash, const Drawing& drawing) {
  const double sign = (hash & 1U) != 0 ? -1.0 : 1.0;
  if (drawing.powers)
    return sign * (drawing.unit ? 1.0 : std::ldexp(1.0, static_cast<int>((hash >> 8) % 3U) - 1));
  const uint64_t wide = (static_cast<uint64_t>(mix(hash + 0x9e3779b9U)) << 31) ^ (hash >> 1);
  const int bits = drawing.bits;
  if (drawing.factors) {
    const uint64_t top = uint64_t{1} << (bits - 1);
    const double half = (hash & 2U) != 0 ? 0.5 : 1.0;
    return sign * half * std::ldexp(static_cast<double>(top | (wide & (top - 1))), 1 - bits);
  }
  const uint64_t k = ((wide & ((uint64_t{1} << (bits - 1)) - 1)) << 1) | 1U;
  return sign * std::ldexp(static_cast<double>(k), -bits);
}

// The same for exact sums, in steps that compilers turn into vectors.
void exact_block(float* out, uint64_t first, uint64_t count, uint32_t seed, int bits) {
  const float scale = std::ldexp(1.0F, -bits);
  const uint32_t mask = (1U << bits) - 1U;
  for (uint64_t i = 0; i < count; ++i) {
    const uint32_t hash = hash_of(seed, first + i);
    const auto k = static_cast<int32_t>(((hash >> 8) & mask) | 1U);
    const auto sign = static_cast<int32_t>(hash << 31) >> 31;
    out[i] = static_cast<float>((k ^ sign) - sign) * scale;
  }
}

template <class T>
T element_of(double value) {
  if constexpr (std::is_same_v<T, Float16>)
    return to_float16(static_cast<float>(value));
  else if constexpr (std::is_same_v<T, Bfloat16>)
    return to_bfloat16(static_cast<float>(value));
  else
    return static_cast<T>(value);
}

template <class T>
double double_of(T value) {
  if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, Bfloat16>)
    return static_cast<double>(to_float(value));
  else
    return static_cast<double>(value);
}

template <class T>
void make_block(T* out, uint64_t first, uint64_t count, int rank, const DataSpec& spec) {
  const uint32_t seed = seed_of(rank, spec.round);
  if constexpr (std::is_integral_v<T>) {
    for (uint64_t i = 0; i < count; ++i) {
      const uint32_t hash = hash_of(seed, first + i);
      out[i] = static_cast<T>(static_cast<int32_t>(hash % 2001U) - 1000);
    }
  } else {
    const Drawing drawing = drawing_of(spec);
    if (spec.exact && !drawing.powers) {
      std::array<float, kBlock> values;
      exact_block(values.data(), first, count, seed, drawing.bits);
      for (uint64_t i = 0; i < count; ++i) out[i] = element_of<T>(static_cast<double>(values[i]));
    } else {
      for (uint64_t i = 0; i < count; ++i)
        out[i] = element_of<T>(real_of(hash_of(seed, first + i), drawing));
    }
  }
}

template <class T>
uint64_t wrong_integers(const T* result, uint64_t first, uint64_t count, const DataSpec& spec) {
  using Wide = std::make_unsigned_t<T>;  // wraps as the reduction does
  std::array<T, kBlock> reference;
  std::array<T, kBlock> element;
  make_block(reference.data(), first, count, 0, spec);
  for (int rank = 1; rank < spec.ranks; ++rank) {
    make_block(element.data(), first, count, rank, spec);
    for (uint64_t i = 0; i < count; ++i) {
      const T a = reference[i];
      const T b = element[i];
      switch (spec.op) {
        case NORIA_PROD:
          reference[i] = static_cast<T>(static_cast<Wide>(a) * static_cast<Wide>(b));
          break;
        case NORIA_MAX: reference[i] = std::max(a, b); break;
        case NORIA_MIN: reference[i] = std::min(a, b); break;
        default: reference[i] = static_cast<T>(static_cast<Wide>(a) + static_cast<Wide>(b)); break;
      }
    }
  }
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < count; ++i) wrong += result[i] != reference[i] ? 1U : 0U;
  return wrong;
}

// The float64 reference of a block, and per element how far a result may be from it.
struct Reference {
  std::array<double, kBlock> value;
  std::array<double, kBlock> weight;  // sum|x|, or |product|
};

template <class T>
void reference_of(Reference& reference, uint64_t first, uint64_t count, const DataSpec& spec) {
  std::array<T, kBlock> element;
  for (int rank = 0; rank < spec.ranks; ++rank) {
    make_block(element.data(), first, count, rank, spec);
    for (uint64_t i = 0; i < count; ++i) {
      const double x = double_of(element[i]);
      double& value = reference.value[i];
      if (rank == 0) {
        value = x;
        reference.weight[i] = std::fabs(x);
        continue;
      }
      switch (spec.op) {
        case NORIA_PROD: value *= x; break;
        case NORIA_MAX: value = std::max(value, x); break;
        case NORIA_MIN: value = std::min(value, x); break;
        default: value += x; break;
      }
      reference.weight[i] += std::fabs(x);
    }
  }
  for (uint64_t i = 0; i < count; ++i) {
    if (spec.op == NORIA_PROD) reference.weight[i] = std::fabs(reference.value[i]);
    if (spec.op != NORIA_AVG) continue;
    reference.value[i] /= spec.ranks;
    reference.weight[i] /= spec.ranks;
  }
}

bool is_bitwise(const DataSpec& spec) {
  if (spec.op == NORIA_MAX || spec.op == NORIA_MIN) return true;
  if (spec.op == NORIA_AVG && !std::has_single_bit(static_cast<unsigned>(spec.ranks))) return false;
  return spec.exact || (spec.op == NORIA_PROD && drawing_of(spec).powers);
}

template <class T>
uint64_t wrong_floats(const T* result, uint64_t first, uint64_t count, const DataSpec& spec) {
  Reference reference;
  reference_of<T>(reference, first, count, spec);
  uint64_t wrong = 0;
  if (is_bitwise(spec)) {
    for (uint64_t i = 0; i < count; ++i) {
      const T expected = element_of<T>(reference.value[i]);
      // Bits, not values: -0 is not 0 here, and a NaN equals itself.
      // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison)
      wrong += std::memcmp(&expected, &result[i], sizeof(T)) != 0 ? 1U : 0U;
    }
    return wrong;
  }
  const double epsilon = std::ldexp(1.0, 1 - dtype_row(spec.dtype).significand_bits);
  const double factor = spec.ranks * epsilon;
  for (uint64_t i = 0; i < count; ++i) {
    const double error = std::fabs(double_of(result[i]) - reference.value[i]);
    wrong += error <= factor * reference.weight[i] ? 0U : 1U;  // NaN is wrong
  }
  return wrong;
}

// Calls visit(typed zero) with the C++ type of a dtype.
template <class Visit>
auto with_type(noria_dtype dtype, Visit&& visit) {
  switch (dtype) {
    case NORIA_INT8: return visit(int8_t{});
    case NORIA_UINT8: return visit(uint8_t{});
    case NORIA_INT32: return visit(int32_t{});
    case NORIA_UINT32: return visit(uint32_t{});
    case NORIA_INT64: return visit(int64_t{});
    case NORIA_UINT64: return visit(uint64_t{});
    case NORIA_FLOAT16: return visit(Float16{});
    case NORIA_FLOAT64: return visit(double{});
    case NORIA_BFLOAT16: return visit(Bfloat16{});
    default: return visit(float{});
  }
}

}  // namespace

void fill(void* out, uint64_t first, uint64_t count, int rank, const DataSpec& spec) {
  with_type(spec.dtype, [&]<class T>(T) {
    auto* to = static_cast<T*>(out);
    for (uint64_t done = 0; done < count; done += kBlock)
      make_block(to + done, first + done, std::min(kBlock, count - done), rank, spec);
  });
}

uint64_t count_wrong(const void* result, uint64_t first, uint64_t count, const DataSpec& spec) {
  return with_type(spec.dtype, [&]<class T>(T) {
    const auto* from = static_cast<const T*>(result);
    uint64_t wrong = 0;
    for (uint64_t done = 0; done < count; done += kBlock) {
      const uint64_t part = std::min(kBlock, count - done);
      if constexpr (std::is_integral_v<T>)
        wrong += wrong_integers(from + done, first + done, part, spec);
      else
        wrong += wrong_floats(from + done, first + done, part, spec);
    }
    return wrong;
  });
}

}  // namespace noria::perf
