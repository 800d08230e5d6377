// The floats that pack kernels read and write, and what is done to a value on its way.
//
// A format turns the bits of an element into a value to compute with, and back, rounding to nearest
// even. Every bit of a result is the one that bucketing/kernels.hpp gives, NaNs' included: a device
// has instructions for it but gives all NaNs one pattern, so these go the way of the host.
//
// For g++, clang and nvcc; no other header of the tree, since nvcc reads it.
//
// Threads: any thread; no state.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define NORIA_HOST_DEVICE __host__ __device__ __forceinline__
#define NORIA_UNROLL _Pragma("unroll")
#else
#define NORIA_HOST_DEVICE inline
#define NORIA_UNROLL
#endif

namespace noria::bucketing {

template <class To, class From>
NORIA_HOST_DEVICE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

template <class T>
NORIA_HOST_DEVICE bool is_nan(T value) {
  return value != value;  // NOLINT(misc-redundant-expression): NaNs alone differ from themselves
}
NORIA_HOST_DEVICE float quiet(float nan) {
  return bits_as<float>(bits_as<uint32_t>(nan) | 0x400000U);
}
NORIA_HOST_DEVICE double quiet(double nan) {
  return bits_as<double>(bits_as<uint64_t>(nan) | (uint64_t{1} << 51U));
}

// A word of two 16-bit floats: `nans` where the value is a NaN, else `rounded`. Without a branch.
NORIA_HOST_DEVICE uint32_t pair_of(float low, float high, uint32_t rounded, uint32_t nans) {
  const uint32_t mask = (is_nan(low) ? 0xFFFFU : 0U) | (is_nan(high) ? 0xFFFF0000U : 0U);
  return (rounded & ~mask) | (nans & mask);
}

// ---- formats -----------------------------------------------------------------------------------

struct F32 {
  using Bits = uint32_t;
  using Value = float;
  static NORIA_HOST_DEVICE Value value(Bits bits) { return bits_as<float>(bits); }
  static NORIA_HOST_DEVICE Bits bits(Value value) { return bits_as<uint32_t>(value); }
};

struct F64 {
  using Bits = uint64_t;
  using Value = double;
  static NORIA_HOST_DEVICE Value value(Bits bits) { return bits_as<double>(bits); }
  static NORIA_HOST_DEVICE Bits bits(Value value) { return bits_as<uint64_t>(value); }
};

struct Bf16 {
  using Bits = uint16_t;
  using Value = float;
  static NORIA_HOST_DEVICE Value value(Bits bits) {
    return bits_as<float>(static_cast<uint32_t>(bits) << 16U);
  }
  static NORIA_HOST_DEVICE Bits bits(Value value) {
    const auto wide = bits_as<uint32_t>(value);
    if (is_nan(value)) return static_cast<Bits>(of_nan(value));
    // Half a unit less one, and one more where the kept part is odd: ties go to even.
    return static_cast<Bits>((wide + 0x7FFFU + ((wide >> 16U) & 1U)) >> 16U);
  }
  // Two neighbours as they lie in a word.
  static NORIA_HOST_DEVICE uint32_t pair(Value low, Value high) {
#ifdef __CUDA_ARCH__
    uint32_t rounded;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(rounded) : "f"(high), "f"(low));
    return pair_of(low, high, rounded, of_nan(low) | (of_nan(high) << 16U));
#else
    return bits(low) | (static_cast<uint32_t>(bits(high)) << 16U);
#endif
  }

 private:
  // Rounding could carry a NaN over into a zero: its top is kept and made quiet instead.
  static NORIA_HOST_DEVICE uint32_t of_nan(Value nan) {
    return (bits_as<uint32_t>(nan) >> 16U) | 0x40U;
  }
};

struct F16 {
  using Bits = uint16_t;
  using Value = float;
  static NORIA_HOST_DEVICE Value value(Bits half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000U) << 16U;
    const uint32_t magnitude = half & 0x7FFFU;
    if (magnitude > 0x7C00U) return bits_as<float>(sign | 0x7FC00000U | (magnitude << 13U));
#ifdef __CUDA_ARCH__
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(half));
    return wide;
#else
    if (magnitude == 0x7C00U) return bits_as<float>(sign | 0x7F800000U);
    if (magnitude < 0x400U) {  // zero and subnormals: multiples of 2^-24
      const float tiny = static_cast<float>(magnitude) * 0x1p-24F;
      return bits_as<float>(sign | bits_as<uint32_t>(tiny));
    }
    return bits_as<float>(sign | ((magnitude << 13U) + ((127U - 15U) << 23U)));
#endif
  }
  static NORIA_HOST_DEVICE Bits bits(Value value) {
    if (is_nan(value)) return static_cast<Bits>(of_nan(value));
#ifdef __CUDA_ARCH__
    Bits rounded;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(rounded) : "f"(value));
    return rounded;
#else
    const auto wide = bits_as<uint32_t>(value);
    return static_cast<Bits>(((wide >> 16U) & 0x8000U) | of_magnitude(wide & 0x7FFFFFFFU));
#endif
  }
  static NORIA_HOST_DEVICE uint32_t pair(Value low, Value high) {
#ifdef __CUDA_ARCH__
    uint32_t rounded;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(rounded) : "f"(high), "f"(low));
    return pair_of(low, high, rounded, of_nan(low) | (of_nan(high) << 16U));
#else
    return bits(low) | (static_cast<uint32_t>(bits(high)) << 16U);
#endif
  }

 private:
  static NORIA_HOST_DEVICE uint32_t of_nan(Value nan) {
    const auto wide = bits_as<uint32_t>(nan);
    return ((wide >> 16U) & 0x8000U) | 0x7E00U | ((wide >> 13U) & 0x3FFU);
  }
  static NORIA_HOST_DEVICE uint32_t of_magnitude(uint32_t wide) {
    if (wide >= 0x477FF000U) return 0x7C00U;  // 65520 and more round to infinity
    if (wide < ((127U - 14U) << 23U)) {
      // Added to 0.5, whose last place is that of the smallest f16, the sum rounds as it must and
      // its low bits are the result.
      return bits_as<uint32_t>(bits_as<float>(wide) + 0.5F) - bits_as<uint32_t>(0.5F);
    }
    return (wide - ((127U - 15U) << 23U) + 0xFFFU + ((wide >> 13U) & 1U)) >> 13U;
  }
};

// ---- scales ------------------------------------------------------------------------------------
// kAhead is how many units a thread loads before it works on them: a division is long, so that the
// other threads' hide a load, and its code is large.

struct AsIs {
  static constexpr uint32_t kAhead = 4;

  template <class T>
  NORIA_HOST_DEVICE T operator()(T value) const {
    return value;
  }
};

// By an inverse that is exact.
struct Times {
  static constexpr uint32_t kAhead = 4;

  float inverse;

  template <class T>
  NORIA_HOST_DEVICE T operator()(T value) const {
    return is_nan(value) ? quiet(value) : value * static_cast<T>(inverse);
  }
};

struct Over {
  static constexpr uint32_t kAhead = 1;

  float divisor;

  template <class T>
  NORIA_HOST_DEVICE T operator()(T value) const {
    return is_nan(value) ? quiet(value) : value / static_cast<T>(divisor);
  }
};

}  // namespace noria::bucketing
