#include "bucketing/ring_mismatch.hpp"

#include "bucketing/kernels.hpp"

namespace noria::bucketing {
namespace {

const char* kind_name(Kind kind) {
  switch (kind) {
    case Kind::all_reduce: return "all_reduce";
    case Kind::broadcast: return "broadcast";
    case Kind::barrier: return "barrier";
    case Kind::reduce_scatter: return "reduce_scatter";
    case Kind::all_gather: return "all_gather";
  }
  return "unknown collective";
}

// "all_reduce of 100 float32, sum"
std::string describe(const RingHeader& header) {
  std::string text = kind_name(header.kind);
  if (header.kind == Kind::barrier) return text;
  if (header.parts > 1) text = "a step of " + std::to_string(header.parts) + " parts";
  text += " of " + std::to_string(header.count) + ' ' + dtype_name(header.dtype);
  if (header.kind == Kind::broadcast) return text + " from rank " + std::to_string(header.root);
  if (header.kind == Kind::all_gather) return text;
  return text + ", " + op_name(header.op);
}

}  // namespace

RingHeader header_of(const LineCall& call) {
  RingHeader header;
  header.kind = call.kind;
  header.dtype = call.dtype;
  header.op = call.op;
  header.count = call.count;
  header.parts = call.kind == Kind::barrier ? 0 : 1;
  return header;
}

Failure calls_differ(const RingPlace& place, uint64_t number, const RingHeader& theirs,
                     const RingHeader& ours) {
  const bool is_order = theirs.kind != ours.kind || theirs.parts != ours.parts;
  const std::string their_call = describe(theirs), our_call = describe(ours);
  return {is_order ? NORIA_E_ORDER : NORIA_E_MISMATCH,
          "collective " + std::to_string(number) + " differs: rank " +
              std::to_string(place.left()) + " called " + their_call + ", rank " +
              std::to_string(place.rank) + " called " + our_call +
              // The header has no room for the parts of parts.
              (their_call == our_call ? ", cut into other counts or of another reducer" : "") +
              "; all ranks must call the same in the same order"};
}

}  // namespace noria::bucketing
