#include "bucketing/kernels.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

// Highway includes this file once for each instruction set and picks the best at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bucketing/kernels.cc"
#include <hwy/foreach_target.h>
// foreach_target.h comes first.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace noria::bucketing {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// ---- how a dtype is loaded into lanes to compute in, and stored ---------------------------------

template <class T>
struct Plain {
  using Memory = T;
  using Tag = hn::ScalableTag<T>;
  static HWY_INLINE auto load(const T* from) { return hn::LoadU(Tag(), from); }
  static HWY_INLINE void store(hn::Vec<Tag> v, T* to) { hn::StoreU(v, Tag(), to); }
};

struct WideTags {
  using Tag = hn::ScalableTag<float>;
  using Bits = hn::RebindToUnsigned<Tag>;
  using Ints = hn::RebindToSigned<Tag>;
  using Narrow = hn::Rebind<uint16_t, Tag>;

  static HWY_INLINE auto load_bits(const uint16_t* from) {
    return hn::PromoteTo(Bits(), hn::LoadU(Narrow(), from));
  }
  // Lanes hold at most 16 bits.
  static HWY_INLINE void store_bits(hn::Vec<Bits> v, uint16_t* to) {
    hn::StoreU(hn::DemoteTo(Narrow(), hn::BitCast(Ints(), v)), Narrow(), to);
  }
};

struct BFloat16 : WideTags {
  using Memory = uint16_t;
  static HWY_INLINE auto load(const uint16_t* from) {
    return hn::BitCast(Tag(), hn::ShiftLeft<16>(load_bits(from)));
  }
  static HWY_INLINE void store(hn::Vec<Tag> v, uint16_t* to) {
    const Bits bits;
    const auto b = hn::BitCast(bits, v);
    // Half a unit less one, and one more where the kept part is odd: ties go to even.
    const auto odd = hn::And(hn::ShiftRight<16>(b), hn::Set(bits, 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(b, hn::Add(odd, hn::Set(bits, 0x7FFF))));
    // Rounding could carry a NaN over into a zero: keep its top and make it quiet instead.
    const auto nan = hn::Or(hn::ShiftRight<16>(b), hn::Set(bits, 0x40));
    store_bits(hn::IfThenElse(hn::RebindMask(bits, hn::IsNaN(v)), nan, rounded), to);
  }
};

// Below AVX2, x86 has no conversions of f16, and Highway's emulation there truncates and knows no
// infinities. These are exact: nearest even, subnormals, infinities, NaN; and do not depend on
// whether the process flushes subnormals to zero.
#if HWY_TARGET == HWY_SSSE3 || HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_SCALAR || \
    HWY_TARGET == HWY_EMU128
struct Float16 : WideTags {
  using Memory = uint16_t;
  static HWY_INLINE auto load(const uint16_t* from) {
    const Bits bits;
    const auto half = load_bits(from);
    const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(bits, 0x8000)));
    const auto magnitude = hn::And(half, hn::Set(bits, 0x7FFF));
    const auto rebias = hn::Set(bits, (127 - 15) << 23);
    const auto normal = hn::Add(hn::ShiftLeft<13>(magnitude), rebias);
    const auto special = hn::Add(normal, rebias);  // exponent 31 becomes 255
    const auto tiny = hn::BitCast(
        bits,
        hn::Mul(hn::ConvertTo(Tag(), hn::BitCast(Ints(), magnitude)), hn::Set(Tag(), 0x1p-24F)));
    const auto ints = hn::BitCast(Ints(), magnitude);
    const auto is_tiny = hn::RebindMask(bits, hn::Lt(ints, hn::Set(Ints(), 0x400)));
    const auto is_special = hn::RebindMask(bits, hn::Gt(ints, hn::Set(Ints(), 0x7BFF)));
    const auto value = hn::IfThenElse(is_tiny, tiny, hn::IfThenElse(is_special, special, normal));
    return hn::BitCast(Tag(), hn::Or(value, sign));
  }
  static HWY_INLINE void store(hn::Vec<Tag> v, uint16_t* to) {
    const Bits bits;
    const auto b = hn::BitCast(bits, v);
    const auto sign = hn::ShiftRight<16>(hn::And(b, hn::Set(bits, 0x80000000U)));
    const auto magnitude = hn::And(b, hn::Set(bits, 0x7FFFFFFF));
    const auto ints = hn::BitCast(Ints(), magnitude);

    const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(bits, 1));
    const auto rounded = hn::Add(magnitude, hn::Add(odd, hn::Set(bits, 0xFFF)));
    const auto normal = hn::ShiftRight<13>(hn::Sub(rounded, hn::Set(bits, (127 - 15) << 23)));
    // Added to 0.5, whose last place is that of the smallest f16, the sum rounds as it must and its
    // low bits are the result.
    const auto half = hn::Set(Tag(), 0.5F);
    const auto tiny = hn::Sub(hn::BitCast(bits, hn::Add(hn::BitCast(Tag(), magnitude), half)),
                              hn::BitCast(bits, half));
    const auto nan =
        hn::Or(hn::And(hn::ShiftRight<13>(magnitude), hn::Set(bits, 0x3FF)), hn::Set(bits, 0x7E00));

    const auto is_tiny = hn::RebindMask(bits, hn::Lt(ints, hn::Set(Ints(), (127 - 14) << 23)));
    // 65520 and more round to infinity.
    const auto is_huge = hn::RebindMask(bits, hn::Gt(ints, hn::Set(Ints(), 0x477FEFFF)));
    const auto is_nan = hn::RebindMask(bits, hn::Gt(ints, hn::Set(Ints(), 0x7F800000)));
    auto value = hn::IfThenElse(is_tiny, tiny, normal);
    value = hn::IfThenElse(is_huge, hn::Set(bits, 0x7C00), value);
    value = hn::IfThenElse(is_nan, nan, value);
    store_bits(hn::Or(value, sign), to);
  }
};
#else
struct Float16 : WideTags {
  using Memory = uint16_t;
  using Half = hn::Rebind<hwy::float16_t, Tag>;
  static HWY_INLINE auto load(const uint16_t* from) {
    return hn::PromoteTo(Tag(), hn::BitCast(Half(), hn::LoadU(Narrow(), from)));
  }
  static HWY_INLINE void store(hn::Vec<Tag> v, uint16_t* to) {
    hn::StoreU(hn::BitCast(Narrow(), hn::DemoteTo(Half(), v)), Narrow(), to);
  }
};
#endif

// ---- operations --------------------------------------------------------------------------------

struct Sum {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Add(a, b);
  }
};

struct Prod {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Mul(a, b);
  }
};

// The larger of two, or the smaller.
template <bool kMax>
struct Extreme {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    const hn::DFromV<V> d;
    const auto take_a = kMax ? hn::Gt(a, b) : hn::Gt(b, a);
    if constexpr (hwy::IsFloat<hn::TFromD<decltype(d)>>()) {
      // A NaN in b loses no comparison, so it is taken; one in a must be asked for.
      return hn::IfThenElse(hn::Or(take_a, hn::IsNaN(a)), a, b);
    } else {
      return hn::IfThenElse(take_a, a, b);
    }
  }
};

struct Divide {
  float divisor;
  float inverse;  // exact if the divisor is a power of two, else 0: divide

  template <class V>
  HWY_INLINE V operator()(V v) const {
    const hn::DFromV<V> d;
    using T = hn::TFromD<decltype(d)>;
    if (divisor == 1) return v;
    return inverse != 0 ? hn::Mul(v, hn::Set(d, static_cast<T>(inverse)))
                        : hn::Div(v, hn::Set(d, static_cast<T>(divisor)));
  }
};

Divide divide_by(float divisor) {
  int exponent = 0;
  return {divisor, std::frexp(divisor, &exponent) == 0.5F ? 1 / divisor : 0};
}

struct AddDivide {
  Divide by;

  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return by(hn::Add(a, b));
  }
};

struct AddScaled {
  Divide a, b, sum;

  template <class V>
  HWY_INLINE V operator()(V x, V y) const {
    return sum(hn::Add(a(x), b(y)));
  }
};

AddScaled scaled_by(const Divisors& divisors) {
  return {divide_by(divisors.a), divide_by(divisors.b), divide_by(divisors.sum)};
}

// ---- loops -------------------------------------------------------------------------------------

// b may be of another type, if it has the same lanes.
template <class Codec, class OwnCodec = Codec, class Op>
void loop(Op op, void* out, const void* a, const void* b, size_t count) {
  using T = typename Codec::Memory;
  using Own = typename OwnCodec::Memory;
  const size_t lanes = hn::Lanes(typename Codec::Tag());
  auto* to = static_cast<T*>(out);
  const auto* x = static_cast<const T*>(a);
  const auto* y = static_cast<const Own*>(b);

  // Four vectors a turn: enough independent loads to keep the memory system busy.
  size_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    const auto v0 = op(Codec::load(x + i), OwnCodec::load(y + i));
    const auto v1 = op(Codec::load(x + i + lanes), OwnCodec::load(y + i + lanes));
    const auto v2 = op(Codec::load(x + i + 2 * lanes), OwnCodec::load(y + i + 2 * lanes));
    const auto v3 = op(Codec::load(x + i + 3 * lanes), OwnCodec::load(y + i + 3 * lanes));
    Codec::store(v0, to + i);
    Codec::store(v1, to + i + lanes);
    Codec::store(v2, to + i + 2 * lanes);
    Codec::store(v3, to + i + 3 * lanes);
  }
  for (; i + lanes <= count; i += lanes)
    Codec::store(op(Codec::load(x + i), OwnCodec::load(y + i)), to + i);
  if (i == count) return;

  constexpr size_t kMaxLanes = hn::MaxLanes(typename Codec::Tag());
  T tail_x[kMaxLanes] = {};
  Own tail_y[kMaxLanes] = {};
  const size_t bytes = (count - i) * sizeof(T);
  std::memcpy(tail_x, x + i, bytes);
  std::memcpy(tail_y, y + i, (count - i) * sizeof(Own));
  Codec::store(op(Codec::load(tail_x), OwnCodec::load(tail_y)), tail_x);
  std::memcpy(to + i, tail_x, bytes);
}

template <class ToCodec, class FromCodec, class Op>
void convert(Op op, void* out, const void* in, size_t count) {
  using To = typename ToCodec::Memory;
  using From = typename FromCodec::Memory;
  const size_t lanes = hn::Lanes(typename ToCodec::Tag());
  auto* to = static_cast<To*>(out);
  const auto* from = static_cast<const From*>(in);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) ToCodec::store(op(FromCodec::load(from + i)), to + i);
  if (i == count) return;

  constexpr size_t kMaxLanes = hn::MaxLanes(typename ToCodec::Tag());
  From tail[kMaxLanes] = {};
  To tail_out[kMaxLanes];
  std::memcpy(tail, from + i, (count - i) * sizeof(From));
  ToCodec::store(op(FromCodec::load(tail)), tail_out);
  std::memcpy(to + i, tail_out, (count - i) * sizeof(To));
}

template <class Codec>
void reduce_as(noria_op op, void* out, const void* a, const void* b, size_t count) {
  switch (op) {
    case NORIA_SUM:
    case NORIA_AVG: return loop<Codec>(Sum(), out, a, b, count);
    case NORIA_PROD: return loop<Codec>(Prod(), out, a, b, count);
    case NORIA_MAX: return loop<Codec>(Extreme<true>(), out, a, b, count);
    case NORIA_MIN: return loop<Codec>(Extreme<false>(), out, a, b, count);
    default: NORIA_CHECK(false, "not an operation");
  }
}

void reduce_any(noria_dtype dtype, noria_op op, void* out, const void* a, const void* b,
                size_t count) {
  switch (dtype) {
    case NORIA_FLOAT32: return reduce_as<Plain<float>>(op, out, a, b, count);
    case NORIA_FLOAT64: return reduce_as<Plain<double>>(op, out, a, b, count);
    case NORIA_FLOAT16: return reduce_as<Float16>(op, out, a, b, count);
    case NORIA_BFLOAT16: return reduce_as<BFloat16>(op, out, a, b, count);
    case NORIA_INT32: return reduce_as<Plain<int32_t>>(op, out, a, b, count);
    case NORIA_INT64: return reduce_as<Plain<int64_t>>(op, out, a, b, count);
    default: NORIA_CHECK(false, "a dtype that is not reduced");
  }
}

template <class Op>
void loop_floats(Op op, noria_dtype dtype, void* out, const void* a, const void* b, size_t count) {
  switch (dtype) {
    case NORIA_FLOAT32: return loop<Plain<float>>(op, out, a, b, count);
    case NORIA_FLOAT64: return loop<Plain<double>>(op, out, a, b, count);
    case NORIA_FLOAT16: return loop<Float16>(op, out, a, b, count);
    case NORIA_BFLOAT16: return loop<BFloat16>(op, out, a, b, count);
    default: NORIA_CHECK(false, "an average of integers");
  }
}

void add_divide_any(noria_dtype dtype, void* out, const void* a, const void* b, size_t count,
                    uint32_t divisor) {
  loop_floats(AddDivide{divide_by(static_cast<float>(divisor))}, dtype, out, a, b, count);
}

void add_scaled_any(noria_dtype dtype, void* out, const void* a, const void* b, size_t count,
                    const Divisors& divisors) {
  loop_floats(scaled_by(divisors), dtype, out, a, b, count);
}

// Calls `use` with the codec of a dtype that float32 is rounded to.
template <class Use>
void with_narrow(noria_dtype narrow, Use use) {
  if (narrow == NORIA_FLOAT16) return use(Float16());
  NORIA_CHECK(narrow == NORIA_BFLOAT16, "not a narrow float");
  use(BFloat16());
}

void add_narrow_any(noria_dtype narrow, void* out, const void* a, const float* b, size_t count,
                    const Divisors& divisors) {
  with_narrow(narrow, [&](auto codec) HWY_ATTR {
    loop<decltype(codec), Plain<float>>(scaled_by(divisors), out, a, b, count);
  });
}

void to_narrow_any(noria_dtype narrow, void* out, const float* in, size_t count, float divisor) {
  with_narrow(narrow, [&](auto codec) HWY_ATTR {
    convert<decltype(codec), Plain<float>>(divide_by(divisor), out, in, count);
  });
}

void from_narrow_any(noria_dtype narrow, float* out, const void* in, size_t count) {
  with_narrow(narrow, [&](auto codec) HWY_ATTR {
    convert<Plain<float>, decltype(codec)>(divide_by(1), out, in, count);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace noria::bucketing
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace noria::bucketing {

HWY_EXPORT(reduce_any);
HWY_EXPORT(add_divide_any);
HWY_EXPORT(add_scaled_any);
HWY_EXPORT(add_narrow_any);
HWY_EXPORT(to_narrow_any);
HWY_EXPORT(from_narrow_any);

void reduce(noria_dtype dtype, noria_op op, void* out, const void* a, const void* b,
            uint64_t count) {
  HWY_DYNAMIC_DISPATCH(reduce_any)(dtype, op, out, a, b, count);
}

void add_divide(noria_dtype dtype, void* out, const void* a, const void* b, uint64_t count,
                uint32_t divisor) {
  HWY_DYNAMIC_DISPATCH(add_divide_any)(dtype, out, a, b, count, divisor);
}

void add_scaled(noria_dtype dtype, void* out, const void* a, const void* b, uint64_t count,
                const Divisors& divisors) {
  HWY_DYNAMIC_DISPATCH(add_scaled_any)(dtype, out, a, b, count, divisors);
}

void add_narrow(noria_dtype narrow, void* out, const void* a, const float* b, uint64_t count,
                const Divisors& divisors) {
  HWY_DYNAMIC_DISPATCH(add_narrow_any)(narrow, out, a, b, count, divisors);
}

void to_narrow(noria_dtype narrow, void* out, const float* in, uint64_t count, float divisor) {
  HWY_DYNAMIC_DISPATCH(to_narrow_any)(narrow, out, in, count, divisor);
}

void from_narrow(noria_dtype narrow, float* out, const void* in, uint64_t count) {
  HWY_DYNAMIC_DISPATCH(from_narrow_any)(narrow, out, in, count);
}

const char* dtype_name(noria_dtype dtype) {
  switch (dtype) {
    case NORIA_INT8: return "int8";
    case NORIA_UINT8: return "uint8";
    case NORIA_INT32: return "int32";
    case NORIA_UINT32: return "uint32";
    case NORIA_INT64: return "int64";
    case NORIA_UINT64: return "uint64";
    case NORIA_FLOAT16: return "float16";
    case NORIA_FLOAT32: return "float32";
    case NORIA_FLOAT64: return "float64";
    case NORIA_BFLOAT16: return "bfloat16";
    default: return "unknown dtype";
  }
}

const char* op_name(noria_op op) {
  switch (op) {
    case NORIA_SUM: return "sum";
    case NORIA_PROD: return "prod";
    case NORIA_MAX: return "max";
    case NORIA_MIN: return "min";
    case NORIA_AVG: return "avg";
    default: return "unknown op";
  }
}

bool is_reducible(noria_dtype dtype) {
  switch (dtype) {
    case NORIA_INT32:
    case NORIA_INT64:
    case NORIA_FLOAT16:
    case NORIA_FLOAT32:
    case NORIA_FLOAT64:
    case NORIA_BFLOAT16: return true;
    default: return false;
  }
}

bool is_integer(noria_dtype dtype) {
  return dtype_bytes(dtype) != 0 && dtype != NORIA_FLOAT16 && dtype != NORIA_FLOAT32 &&
         dtype != NORIA_FLOAT64 && dtype != NORIA_BFLOAT16;
}

}  // namespace noria::bucketing
#endif  // HWY_ONCE
