#include "perf/bench_options.hpp"

#include <algorithm>
#include <functional>
#include <memory>
#include <span>

#include "perf/command_line.hpp"
#include "perf/elements.hpp"
#include "perf/machine.hpp"

namespace noria::perf {
namespace {

constexpr uint64_t kMostBytes = uint64_t{1} << 40;

void add_list_flag(CLI::App& app, const char* flags, const std::vector<std::string>& names,
                   const std::function<void(size_t)>& choose, const char* what) {
  std::string choices;
  for (const std::string& name : names) choices += name + "|";
  choices += "all";
  app.add_option_function<std::string>(
         flags,
         [=](const std::string& text) {
           for (size_t i = 0; i < names.size(); ++i)
             if (text == names[i] || text == "all") choose(i);
         },
         what)
      ->check(CLI::Validator(
          [=](std::string& text) {
            const bool known =
                text == "all" || std::find(names.begin(), names.end(), text) != names.end();
            return known ? std::string() : "'" + text + "' is not accepted; it takes " + choices;
          },
          choices));
}

void add_op_flag(CLI::App& app, BenchOptions& options) {
  std::vector<std::string> ops;
  for (const OpRow& row : kOps) ops.emplace_back(row.name);
  add_list_flag(
      app, "-o,--op", ops,
      [&options, chosen = std::make_shared<bool>(false)](size_t i) {
        if (!*chosen) options.ops.clear();
        *chosen = true;
        options.ops.push_back(kOps[i].op);
      },
      "reduction (sum)");
}

}  // namespace

void add_bench_flags(CLI::App& app, BenchOptions& options, bool reduces) {
  app.add_option("-b,--minbytes", options.sweep.min_bytes, "smallest size (32M)")
      ->transform(byte_size(0, kMostBytes));
  app.add_option("-e,--maxbytes", options.sweep.max_bytes, "largest size (32M)")
      ->transform(byte_size(0, kMostBytes));
  app.add_option("-i,--stepbytes", options.sweep.step_bytes, "step between sizes (1M)")
      ->transform(byte_size(1, kMostBytes));
  app.add_option("-f,--stepfactor", options.sweep.step_factor,
                 "factor between sizes, instead of -i")
      ->check(whole_number(2, 1024));
  app.add_option("-n,--iters", options.iterations, "timed calls a size (20)")
      ->check(whole_number(1, 10000000));
  app.add_option("-w,--warmup_iters", options.warmups, "calls before them, not timed (5)")
      ->check(whole_number(0, 10000000));
  app.add_option(
         "-c,--check", options.checks,
         "checked calls a size (1); 0 checks nothing; from 2 on every second one uses all bits "
         "of the significand")
      ->check(whole_number(0, 1000000));
  std::vector<std::string> dtypes;
  for (const DtypeRow& row : reduces ? std::span<const DtypeRow>(kDtypes) : kAllDtypes)
    dtypes.emplace_back(row.name);
  add_list_flag(
      app, "-d,--datatype", dtypes,
      [&options, chosen = std::make_shared<bool>(false)](size_t i) {
        if (!*chosen) options.dtypes.clear();
        *chosen = true;
        options.dtypes.push_back(kAllDtypes[i].dtype);
      },
      "element type (float)");
  if (reduces) {
    add_op_flag(app, options);
  } else {
    app.add_option_function<std::string>(
           "-o,--op", [](const std::string&) {}, "refused: this collective reduces nothing")
        ->check(CLI::Validator(
            [](std::string&) {
              return std::string("this collective reduces nothing; leave it out");
            },
            ""));
  }
  app.add_option("-z,--blocking", options.blocking,
                 "1: each call waits for its result; 0: all calls are queued, then waited for (1)")
      ->check(whole_number(0, 1));
  app.add_option("-g,--ngpus", options.local_ranks,
                 "ranks of this machine to start (2; none in a job of a launcher)")
      ->check(whole_number(1, 1024));
  app.add_option("--backend", options.backend,
                 "host: memory of the host, over verbs; nccl: memory of a GPU a rank, through "
                 "NCCL, timed by CUDA's events; ranks share GPUs where there are fewer (host)")
      ->check(CLI::IsMember({"host", "nccl"}));
  app.add_option("-J,--output_file", options.json_file, "write nccl-tests' JSON to this file")
      ->check(file_name());
  app.add_flag("--json", options.json_to_stdout,
               "write that JSON to standard output, and no table");
}

void settle(const BenchOptions& options) {
  const Sweep& sweep = options.sweep;
  if (sweep.min_bytes > sweep.max_bytes)
    throw usage_error("-b " + std::to_string(sweep.min_bytes) + " is above -e " +
                      std::to_string(sweep.max_bytes) + "; it takes 0 to the value of -e");
  if (options.dtypes.size() == 1 && is_integer(options.dtypes[0]) &&
      options.ops == std::vector<noria_op>{NORIA_AVG})
    throw usage_error("-o avg: averages are of float, double, half and bfloat16 only");
}

std::string limit_to_memory(BenchOptions& options, int ranks_here) {
  Sweep& sweep = options.sweep;
  // Two buffers a rank, and as much again for the library and everybody else.
  const uint64_t most = available_memory_bytes() / 4 / static_cast<uint64_t>(ranks_here);
  if (sweep.max_bytes <= most) return "";
  if (sweep.min_bytes > most)
    throw ToolError(Exit::environment, "-b " + std::to_string(sweep.min_bytes) +
                                           ": this machine's free memory allows " +
                                           std::to_string(most) + " bytes for each of " +
                                           std::to_string(ranks_here) + " ranks");
  sweep.max_bytes = most;
  return "# Reducing maxBytes to " + std::to_string(most) + " due to memory limitation\n";
}

}  // namespace noria::perf
