// reduce_scatter_perf: time and bus bandwidth of noria_reduce_scatter, in the manner of nccl-tests.

#include "perf/collective_tool.hpp"

namespace noria::perf {
namespace {

noria_status call(noria_comm* comm, const void* in, void* out, uint64_t count, noria_dtype dtype,
                  noria_op op, const noria_stream* stream, noria_work** work) {
  return noria_reduce_scatter(comm, in, out, count, dtype, op, stream, work);
}

// Each rank sends and receives this many times the size, which is that of its input.
double bus_factor(int ranks) { return 1.0 * (ranks - 1) / ranks; }

constexpr CollectiveKind kKind{.tool = "reduce_scatter_perf",
                               .collective = "reduce_scatter",
                               .call = &call,
                               .bus_factor = &bus_factor,
                               .in = Extent::whole,
                               .out = Extent::block};

}  // namespace
}  // namespace noria::perf

int main(int argc, char** argv) {
  return noria::perf::run_collective_tool(noria::perf::kKind, argc, argv);
}
