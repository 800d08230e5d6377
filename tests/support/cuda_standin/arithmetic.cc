#include "tests/support/cuda_standin/arithmetic.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "bucketing/pack_floats.hpp"

namespace noria::standin {

namespace {

enum Dtype : int { kInt8, kUint8, kInt32, kUint32, kInt64, kUint64, kFloat16, kFloat32, kFloat64 };
constexpr int kBfloat16 = 9;
enum Op : int { kSum, kProd, kMax, kMin, kAvg };

// A wrapping integer, as the formats of bucketing/pack_floats.hpp.
template <class T>
struct Integer {
  using Bits = T;
  using Value = T;
  static Value value(Bits bits) { return bits; }
  static Bits bits(Value value) { return value; }
};

template <class Value>
Value combine(int op, Value a, Value b) {
  switch (op) {
    case kProd: return static_cast<Value>(a * b);
    case kMax: return std::max(a, b);
    case kMin: return std::min(a, b);
    default: return static_cast<Value>(a + b);
  }
}

template <class Format>
void reduce_as(int op, void* out, const std::vector<const std::byte*>& in, size_t count) {
  using Bits = typename Format::Bits;
  using Value = typename Format::Value;
  const auto addend = [&](const std::byte* from, size_t i) {
    Bits bits;
    memcpy(&bits, from + i * sizeof bits, sizeof bits);
    if constexpr (std::is_floating_point_v<Value>)
      if (op == kAvg)
        return Format::value(
            Format::bits(Format::value(bits) * (Value{1} / static_cast<Value>(in.size()))));
    return Format::value(bits);
  };
  for (size_t i = 0; i < count; ++i) {
    Value value = addend(in[0], i);
    for (size_t rank = 1; rank < in.size(); ++rank)
      value = Format::value(Format::bits(combine(op, value, addend(in[rank], i))));
    if constexpr (!std::is_floating_point_v<Value>)
      if (op == kAvg) value = static_cast<Value>(value / static_cast<Value>(in.size()));
    const Bits bits = Format::bits(value);
    memcpy(static_cast<std::byte*>(out) + i * sizeof bits, &bits, sizeof bits);
  }
}

}  // namespace

size_t dtype_bytes(int dtype) {
  switch (dtype) {
    case kInt8:
    case kUint8: return 1;
    case kFloat16:
    case kBfloat16: return 2;
    case kInt32:
    case kUint32:
    case kFloat32: return 4;
    case kInt64:
    case kUint64:
    case kFloat64: return 8;
    default: return 0;
  }
}

bool is_op(int op, int dtype) { return op >= kSum && op <= kAvg && dtype_bytes(dtype) != 0; }

void reduce(int dtype, int op, void* out, const std::vector<const std::byte*>& in, size_t count) {
  using namespace bucketing;
  switch (dtype) {
    case kInt8: return reduce_as<Integer<int8_t>>(op, out, in, count);
    case kUint8: return reduce_as<Integer<uint8_t>>(op, out, in, count);
    case kInt32: return reduce_as<Integer<int32_t>>(op, out, in, count);
    case kUint32: return reduce_as<Integer<uint32_t>>(op, out, in, count);
    case kInt64: return reduce_as<Integer<int64_t>>(op, out, in, count);
    case kUint64: return reduce_as<Integer<uint64_t>>(op, out, in, count);
    case kFloat16: return reduce_as<F16>(op, out, in, count);
    case kFloat32: return reduce_as<F32>(op, out, in, count);
    case kFloat64: return reduce_as<F64>(op, out, in, count);
    default: return reduce_as<Bf16>(op, out, in, count);
  }
}

}  // namespace noria::standin
