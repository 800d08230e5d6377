// The measuring loop of nccl-tests, shared by all_reduce_perf and the tools of its family.
//
// For each dtype, op and size: warm up, time, check; out of place, then in place. Every rank runs
// it; rank 0 writes. The time of a row is the mean over ranks, as nccl-tests has it by default;
// single calls count as the slowest rank saw them.
//
// Threads: one per rank.
#pragma once

#include <string>

#include "perf/bench_memory.hpp"
#include "perf/bench_options.hpp"
#include "perf/communicator.hpp"

namespace noria::perf {

// What a buffer of a rank holds: all of the data, or the block that is this rank's.
enum class Extent { whole, block };

// What differs between the tools of the family. Blocks are, as in nccl-tests, whole multiples of 16
// bytes; `count` is then that of a block, and the size of a row that of the whole.
struct CollectiveKind {
  const char* tool;
  const char* collective;  // without noria_
  noria_status (*call)(noria_comm* comm, const void* in, void* out, uint64_t count,
                       noria_dtype dtype, noria_op op, const noria_stream* stream,
                       noria_work** work);
  double (*bus_factor)(int ranks);  // busbw / algbw
  Extent in, out;

  constexpr bool has_blocks() const { return in == Extent::block || out == Extent::block; }
  // A gather moves data as it is.
  constexpr bool reduces() const { return in == Extent::whole; }
};

// Collective. `device` is what the table names beside this rank, empty: what the communicator goes
// by. Returns wrong_result if any rank saw a wrong element.
Exit run_bench(const CollectiveKind& kind, const BenchOptions& options, Communicator& comm,
               BenchMemory& memory, const std::string& device, const std::string& note);

}  // namespace noria::perf
