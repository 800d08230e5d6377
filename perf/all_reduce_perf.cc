// all_reduce_perf: time and bus bandwidth of noria_all_reduce, in the manner of nccl-tests.

#include "perf/collective_tool.hpp"

namespace noria::perf {
namespace {

noria_status call(noria_comm* comm, const void* in, void* out, uint64_t count, noria_dtype dtype,
                  noria_op op, const noria_stream* stream, noria_work** work) {
  return noria_all_reduce(comm, in, out, count, dtype, op, stream, work);
}

// Each rank sends and receives this many times the size.
double bus_factor(int ranks) { return 2.0 * (ranks - 1) / ranks; }

constexpr CollectiveKind kKind{.tool = "all_reduce_perf",
                               .collective = "all_reduce",
                               .call = &call,
                               .bus_factor = &bus_factor,
                               .in = Extent::whole,
                               .out = Extent::whole};

}  // namespace
}  // namespace noria::perf

int main(int argc, char** argv) {
  return noria::perf::run_collective_tool(noria::perf::kKind, argc, argv);
}
