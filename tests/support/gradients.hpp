// A model's gradients for reducer tests: their values by rank, step, tensor and index, what a step
// must make of them, and the arrival orders in which they come.
//
// Threads: any thread.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bucketing/kernels.hpp"
#include "bucketing/tensor_table.hpp"
#include "tests/support/element_values.hpp"

namespace noria::test {

using bucketing::Tensor;
using Bytes = std::vector<char>;

// A multiple of 1/8 in [-2, 2), whole for integers; exact in every dtype.
inline double gradient_value(int32_t rank, uint64_t step, const Tensor& tensor, uint64_t index) {
  uint64_t x = index * 0x9e3779b97f4a7c15 + tensor.numel * 31 + step * 7 +
               static_cast<uint64_t>(rank) * 0xbf58476d1ce4e5b9;
  x ^= x >> 29;
  const auto eighths = static_cast<double>(x % 32) - 16;
  return bucketing::is_integer(tensor.dtype) ? eighths : eighths / 8;
}

inline Bytes gradient(int32_t rank, uint64_t step, const Tensor& tensor) {
  Bytes bytes(tensor.numel * bucketing::dtype_bytes(tensor.dtype));
  for (uint64_t i = 0; i < tensor.numel; ++i)
    set_element(tensor.dtype, bytes.data(), i, gradient_value(rank, step, tensor, i));
  return bytes;
}

// Against float64, within n eps sum|x|.
inline void expect_reduced(const void* result, const Tensor& tensor, uint64_t step, int32_t ranks,
                           noria_op op) {
  uint64_t wrong = 0, first = 0;
  for (uint64_t i = 0; i < tensor.numel; ++i) {
    double sum = 0, magnitude = 0;
    for (int32_t rank = 0; rank < ranks; ++rank) {
      const double value = gradient_value(rank, step, tensor, i);
      sum += value;
      magnitude += std::fabs(value);
    }
    const double divisor = op == NORIA_AVG ? ranks : 1;
    const double bound = ranks * epsilon_of(tensor.dtype) * magnitude / divisor;
    if (!(std::fabs(element(tensor.dtype, result, i) - sum / divisor) <= bound) && wrong++ == 0)
      first = i;
  }
  EXPECT_EQ(wrong, 0u) << tensor.name << " first at element " << first << " in step " << step;
}

inline std::vector<uint32_t> random_order(size_t tensors, uint64_t seed) {
  std::vector<uint32_t> order(tensors);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(seed));
  return order;
}

// Sizes around nothing, one, lines, chunks and segments, in `dtypes` by turns.
inline std::vector<Tensor> awkward_model(const std::vector<noria_dtype>& dtypes) {
  std::vector<Tensor> model;
  for (const uint64_t numel : std::initializer_list<uint64_t>{0, 1, 31, 1000, 65'537, 3, 0, 140'001,
                                                              17, 8'191, 1, 0, 20'000})
    for (const noria_dtype dtype : dtypes)
      model.push_back({"t" + std::to_string(model.size()), dtype, numel});
  return model;
}

}  // namespace noria::test
