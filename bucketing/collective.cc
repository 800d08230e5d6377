#include "bucketing/collective.hpp"

#include <algorithm>

#include "base/fingerprint.hpp"
#include "bucketing/kernels.hpp"

namespace noria::bucketing {
namespace {

uint64_t fingerprint_of(const Collective& collective) {
  Fingerprint fingerprint;
  fingerprint.add(static_cast<uint64_t>(collective.kind));
  fingerprint.add(static_cast<uint64_t>(collective.root));
  fingerprint.add(collective.parts.size());
  for (const Part& part : collective.parts) {
    fingerprint.add(part.count);
    fingerprint.add(static_cast<uint64_t>(part.dtype));
    fingerprint.add(static_cast<uint64_t>(part.op));
    fingerprint.add(static_cast<uint64_t>(part.phases));
    for (const uint64_t edge : part.edges) fingerprint.add(edge);
    fingerprint.add(part.input_divisor);
    fingerprint.add(part.wide != nullptr);
  }
  return fingerprint.value();
}

}  // namespace

bool is_ready(const Collective& collective) {
  if (collective.pending == nullptr) return true;
  for (size_t i = 0; i < collective.segments.size(); ++i)
    // acquire: pairs with the release of whoever counted the segment down; its bytes are there.
    if (collective.pending[i].load(std::memory_order_acquire) != 0) return false;
  return true;
}

bool owes_nothing(const Collective& collective) {
  // acquire: pairs with the release of whoever waits; what it gave is there.
  return collective.is_waited_for != nullptr
             ? collective.is_waited_for->load(std::memory_order_acquire)
             : is_ready(collective);
}

const char* name_of(const Collective& collective) {
  if (collective.pending != nullptr) return "the step";
  switch (collective.kind) {
    case Kind::all_reduce: return "an all-reduce";
    case Kind::broadcast: return "a broadcast";
    case Kind::barrier: return "a barrier";
    case Kind::reduce_scatter: return "a reduce-scatter";
    case Kind::all_gather: return "an all-gather";
  }
  return "a collective";
}

uint32_t split_divisor(uint32_t ranks) {
  uint32_t divisor = 1;
  while (uint64_t{divisor} * divisor < ranks) divisor *= 2;
  return divisor;
}

void prepare(Collective& collective, uint32_t ranks) {
  std::vector<PartShape> shapes;
  shapes.reserve(collective.parts.size());
  for (const Part& part : collective.parts)
    shapes.push_back(
        {.count = part.count, .element_bytes = dtype_bytes(part.dtype), .edges = part.edges});
  collective.segments = cut_segments(shapes, ranks);
  collective.fingerprint = fingerprint_of(collective);
  collective.has_single_phase =
      std::any_of(collective.parts.begin(), collective.parts.end(),
                  [](const Part& part) { return part.phases != Phases::both; });
}

}  // namespace noria::bucketing
