#include "bucketing/tensor_shape.hpp"

#include "base/value_text.hpp"

namespace noria::bucketing {
namespace {

std::string list(std::span<const int64_t> values) {
  std::string text = "[";
  for (const int64_t value : values) text += (text.size() > 1 ? ", " : "") + std::to_string(value);
  return text + "]";
}

// False: more than 64 bits hold.
bool multiply(std::span<const int64_t> shape, uint64_t* product) {
  *product = 1;
  bool fits = true;
  for (const int64_t dimension : shape) {
    if (dimension == 0) {
      *product = 0;
      return true;
    }
    fits &= !__builtin_mul_overflow(*product, static_cast<uint64_t>(dimension), product);
  }
  return fits;
}

// Where a dimension has one index only, its stride is never used.
bool is_row_by_row(std::span<const int64_t> shape, std::span<const int64_t> strides) {
  uint64_t expected = 1;  // its product fits, as that of the shape does
  for (size_t d = shape.size(); d-- > 0;) {
    if (shape[d] != 1 && static_cast<uint64_t>(strides[d]) != expected) return false;
    expected *= static_cast<uint64_t>(shape[d]);
  }
  return true;
}

}  // namespace

Outcome<Ok> check_shape(const std::string& name, uint64_t numel, std::span<const int64_t> shape,
                        std::span<const int64_t> strides) {
  const auto refuse = [&](const std::string& why) {
    return Failure{NORIA_E_ARG,
                   "tensor '" + printable(name) + "' has shape " + list(shape) + ": " + why};
  };
  for (const int64_t dimension : shape)
    if (dimension < 0) return refuse("a dimension is 0 or more");
  uint64_t product = 0;
  if (!multiply(shape, &product) || product != numel)
    return refuse("that is not the number of its elements, " + std::to_string(numel));
  if (numel == 0 || strides.empty() || is_row_by_row(shape, strides)) return Ok{};
  return refuse("with strides " + list(strides) +
                " it is not contiguous: register and give a contiguous copy of the gradient");
}

}  // namespace noria::bucketing
