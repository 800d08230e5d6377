// TensorTable: what was registered, in order, and how it is told to people and to other ranks.
//
// add() refuses names that are empty, too long or taken, dtypes that cannot be reduced, and sizes
// past any address space. A description is the text that ranks compare: equal text, equal tensor.
//
// Threads: add() init only; the rest any thread afterwards.
#pragma once

#include <noria/bucketing.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "bucketing/failure.hpp"
#include "bucketing/plan.hpp"

namespace noria::bucketing {

struct Tensor {
  std::string name;
  noria_dtype dtype = NORIA_FLOAT32;
  uint64_t numel = 0;
};

class TensorTable {
 public:
  static constexpr size_t kMaxName = 4096;  // keeps texts and control messages small
  static constexpr uint64_t kMaxBytes = uint64_t{1} << 47;  // of all tensors: user address space

  Outcome<uint32_t> add(std::string_view name, noria_dtype dtype, uint64_t numel);

  std::optional<uint32_t> find(std::string_view name) const;
  uint32_t size() const { return static_cast<uint32_t>(tensors_.size()); }
  const Tensor& operator[](uint32_t id) const { return tensors_[id]; }
  uint64_t bytes() const { return bytes_; }

  // "'fc.weight', float32, 2048000 elements"
  std::string describe(uint32_t id) const;
  // Of the descriptions of [first, first + count).
  uint64_t hash(uint32_t first, uint32_t count) const;

 private:
  std::vector<Tensor> tensors_;
  std::unordered_map<std::string, uint32_t> ids_;
  uint64_t bytes_ = 0;
};

// As the planner takes them.
std::vector<PlanTensor> plan_tensors(const TensorTable& tensors);

}  // namespace noria::bucketing
