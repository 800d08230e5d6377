#include "perf/collective_bench.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "base/clock.hpp"
#include "perf/elements.hpp"
#include "perf/machine.hpp"
#include "perf/nccl_tests_json.hpp"
#include "perf/stats.hpp"
#include "perf/verify.hpp"

namespace noria::perf {
namespace {

// One row's shape; the same on all ranks.
struct Cell {
  noria_dtype dtype;
  noria_op op;
  uint64_t count;  // as the call takes it
  uint64_t whole;  // elements of the larger buffer
  uint64_t bytes() const { return whole * dtype_row(dtype).bytes; }
};

// Where a half of a row finds its buffers.
struct Placed {
  std::byte* in;
  std::byte* out;
};

class Bench {
 public:
  Bench(const CollectiveKind& kind, const BenchOptions& options, Communicator& comm,
        BenchMemory& memory)
      : kind_(kind), options_(options), comm_(comm), memory_(memory) {}

  Row measure(const Cell& cell) {
    Row row{.bytes = cell.bytes(),
            .count = cell.count,
            .type = dtype_row(cell.dtype).name,
            .op = kind_.reduces() ? op_name(cell.op) : "none"};
    row.out_of_place = measure_half(cell, {memory_.in(), memory_.out()});
    // In place a block lies where it is in the whole.
    const uint64_t at = first_of_block(cell) * dtype_row(cell.dtype).bytes;
    row.in_place = measure_half(cell, {memory_.out() + (kind_.in == Extent::block ? at : 0),
                                       memory_.out() + (kind_.out == Extent::block ? at : 0)});
    return row;
  }

  uint64_t wrong_here() const { return wrong_here_; }

 private:
  // Of this rank's block, in the whole.
  uint64_t first_of_block(const Cell& cell) const {
    return kind_.has_blocks() ? cell.count * static_cast<uint64_t>(comm_.rank()) : 0;
  }

  void call(const Cell& cell, const Placed& at, noria_work** work) {
    require(kind_.call(comm_.get(), at.in, at.out, cell.count, cell.dtype, cell.op,
                       memory_.stream(), work),
            kind_.collective);
  }

  // Of a gather an element depends on its index in the whole, which says whose block it is of.
  void fill_in(const Cell& cell, const Placed& at, const DataSpec& spec) const {
    const uint64_t first = kind_.reduces() ? 0 : first_of_block(cell);
    const uint64_t count = kind_.reduces() ? cell.whole : cell.count;
    const int rank = kind_.reduces() ? comm_.rank() : 0;
    memory_.fill(at.in, count * dtype_row(cell.dtype).bytes,
                 [&](std::byte* to) { perf::fill(to, first, count, rank, spec); });
  }

  Measurement measure_half(const Cell& cell, const Placed& at) {
    fill_in(cell, at, spec_of(cell, 0));
    for (int i = 0; i < options_.warmups; ++i) call(cell, at, nullptr);
    comm_.barrier();
    const double cpu_before = process_cpu_seconds();
    std::vector<double> singles;
    const double elapsed_us = memory_.timed([&] {
      if (options_.blocking)
        singles = time_blocking(cell, at);
      else
        call_all(cell, at);
    });
    const double cpu = process_cpu_seconds() - cpu_before;

    const std::vector<double> sums = comm_.sum({elapsed_us / options_.iterations, cpu});
    singles = singles.empty() ? singles : comm_.largest(std::move(singles));
    Measurement m;
    m.time_us = sums[0] / comm_.size();
    const double gigabytes = static_cast<double>(cell.bytes()) * 1e-9;
    m.algbw = m.time_us > 0 ? gigabytes / (m.time_us * 1e-6) : 0;
    m.busbw = m.algbw * kind_.bus_factor(comm_.size());
    m.p50_us = median(singles);
    m.p99_us = percentile(singles, 99);
    m.max_us = largest(singles);
    m.cpu_s_per_gb = cell.whole > 0 ? sums[1] / (gigabytes * options_.iterations) : 0;
    if (options_.checks > 0) m.wrong = check(cell, at);
    return m;
  }

  std::vector<double> time_blocking(const Cell& cell, const Placed& at) {
    std::vector<double> singles;
    singles.reserve(static_cast<size_t>(options_.iterations));
    for (int i = 0; i < options_.iterations; ++i)
      singles.push_back(memory_.timed_inside([&] { call(cell, at, nullptr); }));
    return singles;
  }

  // All calls are made, then waited for: single times are not known.
  void call_all(const Cell& cell, const Placed& at) {
    std::vector<Work> works;
    works.reserve(static_cast<size_t>(options_.iterations));
    for (int i = 0; i < options_.iterations; ++i) {
      noria_work* work = nullptr;
      call(cell, at, &work);
      works.emplace_back(work);
    }
    for (const Work& work : works) require(noria_work_wait(work.get(), 0), kind_.collective);
  }

  // Even rounds hold exact data, where a single bit shows; odd ones use every bit.
  DataSpec spec_of(const Cell& cell, uint32_t round) const {
    return {.dtype = cell.dtype,
            .op = kind_.reduces() ? cell.op : NORIA_MAX,  // of one value: that value, bit for bit
            .ranks = kind_.reduces() ? comm_.size() : 1,
            .round = round,
            .exact = round % 2 == 0};
  }

  uint64_t check(const Cell& cell, const Placed& at) {
    const uint64_t first = kind_.out == Extent::block ? first_of_block(cell) : 0;
    const uint64_t count = kind_.out == Extent::block ? cell.count : cell.whole;

    uint64_t wrong = 0;
    for (int i = 0; i < options_.checks; ++i) {
      const DataSpec spec = spec_of(cell, static_cast<uint32_t>(i));
      fill_in(cell, at, spec);
      call(cell, at, nullptr);
      wrong += memory_.look_at(
          at.out, count * dtype_row(cell.dtype).bytes,
          [&](const std::byte* result) { return count_wrong(result, first, count, spec); });
    }
    wrong_here_ += wrong;
    return static_cast<uint64_t>(comm_.sum({static_cast<double>(wrong)})[0]);
  }

  const CollectiveKind& kind_;
  const BenchOptions& options_;
  Communicator& comm_;
  BenchMemory& memory_;
  uint64_t wrong_here_ = 0;
};

std::string header_of(const CollectiveKind& kind, const BenchOptions& options,
                      const std::vector<DeviceLine>& devices, const noria_comm_info& info) {
  const Sweep& sweep = options.sweep;
  std::array<char, 1024> text{};
  std::snprintf(
      text.data(), text.size(),
      "# noria version %d.%d.%d, library %u\n"
      "# Collective test starting: %s\n"
      "# nThread 1 nGpus 1 minBytes %llu maxBytes %llu step: %llu(%s) warmup iters: %d iters: "
      "%d agg iters: 1 validation: %d graph: 0\n#\n# Using devices\n",
      NORIA_VERSION_MAJOR, NORIA_VERSION_MINOR, NORIA_VERSION_PATCH, noria_version(), kind.tool,
      static_cast<unsigned long long>(sweep.min_bytes),
      static_cast<unsigned long long>(sweep.max_bytes),
      static_cast<unsigned long long>(sweep.step_factor != 0 ? sweep.step_factor
                                                             : sweep.step_bytes),
      sweep.step_factor != 0 ? "factor" : "bytes", options.warmups, options.iterations,
      options.checks);
  std::string header = text.data();
  for (const DeviceLine& line : devices) {
    std::snprintf(text.data(), text.size(), "#  Rank %2d Group  0 Pid %6d on %10s device  0 %s\n",
                  line.rank, line.pid, line.host.c_str(), line.device.c_str());
    header += text.data();
  }
  header += "#\n";
  if (options.is_on_device())
    header += "# backend: NCCL, on GPUs\n";
  else if (info.size > 1)
    header +=
        std::string("# fetch: ") + (fetches_by_reads(info) ? "one-sided reads" : "messages") + "\n";
  if (info.notice[0] != '\0') header += std::string("# ") + info.notice + "\n";
  return header;
}

std::vector<DeviceLine> device_lines(Communicator& comm, const std::string& device) {
  std::array<char, 64> host{};
  ::gethostname(host.data(), host.size() - 1);
  const std::vector<std::string> pids = comm.gather(std::to_string(::getpid()));
  const std::vector<std::string> hosts = comm.gather(host.data());
  const std::vector<std::string> devices = comm.gather(device);
  std::vector<DeviceLine> lines;
  for (size_t i = 0; i < pids.size(); ++i)
    lines.push_back({static_cast<int>(i), std::atoi(pids[i].c_str()), hosts[i], devices[i]});
  return lines;
}

Cell cell_of(const CollectiveKind& kind, noria_dtype dtype, noria_op op, uint64_t size,
             uint64_t ranks) {
  const uint64_t bytes = dtype_row(dtype).bytes, count = size / bytes;
  if (!kind.has_blocks()) return {dtype, op, count, count};
  const uint64_t unit = 16 / bytes, block = count / ranks / unit * unit;
  return {dtype, op, block, block * ranks};
}

std::vector<Cell> cells_of(const CollectiveKind& kind, const BenchOptions& options, int ranks) {
  std::vector<Cell> cells;
  const std::vector<noria_op> ops = kind.reduces() ? options.ops : std::vector<noria_op>{NORIA_SUM};
  for (const noria_dtype dtype : options.dtypes)
    for (const noria_op op : ops)
      for (const uint64_t size : sizes_of(options.sweep)) {
        if (op == NORIA_AVG && is_integer(dtype)) continue;  // noria refuses averages of integers
        cells.push_back(cell_of(kind, dtype, op, size, static_cast<uint64_t>(ranks)));
      }
  return cells;
}

}  // namespace

Exit run_bench(const CollectiveKind& kind, const BenchOptions& options, Communicator& comm,
               BenchMemory& memory, const std::string& device, const std::string& note) {
  const std::string start_time = time_text();
  const noria_comm_info info = comm.info();
  const std::vector<DeviceLine> devices = device_lines(comm, device.empty() ? info.device : device);
  const bool writes = comm.rank() == 0;
  const bool tabulates = writes && !options.json_to_stdout;
  if (tabulates) {
    std::fputs((header_of(kind, options, devices, info) + note + "#\n" + table_header()).c_str(),
               stdout);
    std::fflush(stdout);
  }
  Bench bench(kind, options, comm, memory);
  std::vector<Row> rows;
  for (const Cell& cell : cells_of(kind, options, comm.size())) {
    rows.push_back(bench.measure(cell));
    if (!tabulates) continue;
    std::fputs(table_row(rows.back()).c_str(), stdout);
    std::fflush(stdout);
  }
  if (tabulates)
    std::fputs((table_footer(rows) + details_table(rows) +
                "# Collective test concluded: " + kind.tool + "\n#\n")
                   .c_str(),
               stdout);
  std::string json;
  if (writes)
    json = nccl_tests_json(
        {kind.tool, options, devices, comm.info(), rows, start_time, noria_version()});
  comm.barrier();  // a rank that leaves early looks like a lost one, as one that cannot write would
  if (writes && options.json_to_stdout) std::fputs(json.c_str(), stdout);
  if (writes && !options.json_file.empty()) write_file(options.json_file, json);
  return bench.wrong_here() > 0 || wrong_elements(rows) > 0 ? Exit::wrong_result : Exit::ok;
}

}  // namespace noria::perf
