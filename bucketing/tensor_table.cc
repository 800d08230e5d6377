#include "bucketing/tensor_table.hpp"

#include "base/value_text.hpp"
#include "bucketing/kernels.hpp"

namespace noria::bucketing {
namespace {

// FNV-1a: the ranks compare lists that were meant to be equal; nobody forges them.
constexpr uint64_t kHashSeed = 0xcbf29ce484222325;
constexpr uint64_t kHashPrime = 0x100000001b3;

uint64_t hash_more(uint64_t hash, std::string_view text) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * kHashPrime;
  return hash;
}

}  // namespace

Outcome<uint32_t> TensorTable::add(std::string_view name, noria_dtype dtype, uint64_t numel) {
  if (name.empty() || name.size() > kMaxName)
    return Failure{NORIA_E_ARG, "a tensor's name must have 1 to " + std::to_string(kMaxName) +
                                    " bytes; this one has " + std::to_string(name.size())};
  const std::string quoted = "tensor '" + printable(std::string(name)) + "'";
  if (dtype_bytes(dtype) == 0)
    return Failure{NORIA_E_ARG, quoted + ": " + std::to_string(dtype) + " is not a dtype"};
  if (!is_reducible(dtype))
    return Failure{
        NORIA_E_UNSUPPORTED,
        quoted + ": " + dtype_name(dtype) +
            " cannot be reduced; float32, float64, float16, bfloat16, int32 and int64 can"};
  if (numel > (kMaxBytes - bytes_) / dtype_bytes(dtype))
    return Failure{NORIA_E_ARG, quoted + ": " + std::to_string(numel) +
                                    " elements are more than an address space holds"};
  const auto id = size();
  const auto [at, is_new] = ids_.try_emplace(std::string(name), id);
  if (!is_new)
    return Failure{NORIA_E_ARG, quoted + " was registered before, with id " +
                                    std::to_string(at->second) + ": names must differ"};
  tensors_.push_back({.name = std::string(name), .dtype = dtype, .numel = numel});
  bytes_ += numel * dtype_bytes(dtype);
  return id;
}

std::optional<uint32_t> TensorTable::find(std::string_view name) const {
  const auto at = ids_.find(std::string(name));
  return at == ids_.end() ? std::nullopt : std::optional<uint32_t>(at->second);
}

std::string TensorTable::describe(uint32_t id) const {
  const Tensor& tensor = tensors_[id];
  return "'" + printable(tensor.name) + "', " + dtype_name(tensor.dtype) + ", " +
         std::to_string(tensor.numel) + (tensor.numel == 1 ? " element" : " elements");
}

uint64_t TensorTable::hash(uint32_t first, uint32_t count) const {
  uint64_t hash = kHashSeed;
  for (uint32_t id = first; id < first + count; ++id) {
    hash = hash_more(hash, tensors_[id].name);  // two names may be told alike
    hash = hash_more(hash, describe(id));
    hash = hash_more(hash, std::string_view("\0", 1));  // 'a', then 'b' is not 'ab'
  }
  return hash;
}

std::vector<PlanTensor> plan_tensors(const TensorTable& tensors) {
  std::vector<PlanTensor> planned;
  planned.reserve(tensors.size());
  for (uint32_t id = 0; id < tensors.size(); ++id)
    planned.push_back({.numel = tensors[id].numel, .dtype = tensors[id].dtype});
  return planned;
}

}  // namespace noria::bucketing
