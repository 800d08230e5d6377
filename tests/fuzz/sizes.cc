// Sizes as people write them, and a command line of nccl-tests' flags, an argument a line.
#include "perf/sizes.hpp"

#include "perf/bench_options.hpp"
#include "perf/command_line.hpp"
#include "tests/fuzz/input.hpp"

namespace {

using namespace noria::perf;
using noria::fuzz::Input;

void check_size(const std::string& text) {
  const auto bytes = parse_size(text);
  if (!bytes) return;
  NORIA_CHECK(*bytes < uint64_t{1} << 62, "a size can be added to another");
  const auto again = parse_size(std::to_string(*bytes));
  NORIA_CHECK(again && (*bytes >= uint64_t{1} << 53 || *again == *bytes),
              "a size that is written is read again");
}

void check_sweep(const Sweep& sweep) {
  // Of a list that would fill the memory only the beginning matters here.
  const uint64_t step = std::max<uint64_t>(sweep.step_bytes, 1);
  if (sweep.step_factor < 2 && sweep.max_bytes > sweep.min_bytes &&
      (sweep.max_bytes - sweep.min_bytes) / step > 100000)
    return;
  const std::vector<uint64_t> sizes = sizes_of(sweep);
  if (sweep.min_bytes > sweep.max_bytes) {
    NORIA_CHECK(sizes.empty(), "no size is above the largest");
    return;
  }
  NORIA_CHECK(!sizes.empty() && sizes.front() == sweep.min_bytes, "the smallest size is visited");
  for (size_t i = 1; i < sizes.size(); ++i) NORIA_CHECK(sizes[i] > sizes[i - 1], "sizes rise");
  NORIA_CHECK(sizes.back() <= sweep.max_bytes, "the largest is a bound");
}

void check_command_line(const std::vector<std::string>& arguments) {
  std::vector<const char*> argv{"fuzz"};
  for (const std::string& argument : arguments) {
    if (argument.starts_with("-h") || argument.starts_with("--h")) return;  // prints a page
    argv.push_back(argument.c_str());
  }
  CLI::App app;
  BenchOptions options;
  add_bench_flags(app, options);
  try {
    if (parse_command_line(app, static_cast<int>(argv.size()), argv.data())) return;
    settle(options);
  } catch (const ToolError& error) {
    NORIA_CHECK(error.code() == Exit::usage, "a bad flag is the user's to mend");
    NORIA_CHECK(noria::fuzz::is_one_line(error.what()), "a refusal is one line");
    return;
  }
  NORIA_CHECK(options.iterations >= 1 && options.warmups >= 0 && options.checks >= 0 &&
                  options.local_ranks >= 0 && options.local_ranks <= 1024,
              "counts are inside their ranges");
  NORIA_CHECK(!options.dtypes.empty() && !options.ops.empty(), "there is something to run");
  check_sweep(options.sweep);
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  const auto parts = input.take_parts('\n');
  for (const std::string& part : parts) check_size(part);
  if (parts.size() < 16) check_command_line(parts);
  Input numbers(data, size);
  Sweep sweep{.min_bytes = numbers.take<uint64_t>() >> 2,
              .max_bytes = numbers.take<uint64_t>() >> 2,
              .step_bytes = numbers.take<uint64_t>() >> 2,
              .step_factor = numbers.take<uint16_t>()};
  check_sweep(sweep);
  return 0;
}
