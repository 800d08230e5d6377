// pack_check: whether a GPU packs gradients as the host does, and how fast.

#include <array>
#include <cstdio>

#include "bucketing/pack_image.hpp"
#include "perf/command_line.hpp"
#include "perf/pack_bits.hpp"
#include "perf/pack_speed.hpp"

namespace noria::perf {
namespace {

constexpr const char* kName = "pack_check";
constexpr double kGoal = 0.85;  // of a copy's speed

constexpr const char* kHelp =
    "Runs the pack kernels on a GPU: compares what they write with the same on the host, bit for "
    "bit, and times them beside copies on the device of as many bytes, for a model's gradients in "
    "its default buckets. The ratio is 1 where packing is as fast as copying; the goal is 0.85.\n"
    "Exit: 0 all right, 1 wrong bits, 2 usage, 3 no GPU, or noria was built without nvcc, 4 the "
    "device did not end its work.\n"
    "GB is 10^9 bytes, of those read and those written.";

struct Options {
  int device = 0;
  int rounds = 20;
  std::vector<std::string> traces{"resnet50", "gpt2"};
};

Exit check_bits(CudaLane& lane) {
  uint64_t wrong_cases = 0, cases = 0;
  for (const PackCase& which : pack_cases()) {
    ++cases;
    const uint64_t wrong = count_wrong_bytes(lane, which);
    if (wrong == 0) continue;
    ++wrong_cases;
    std::printf("wrong: %s: %llu bytes differ from the host's\n", describe(which).c_str(),
                static_cast<unsigned long long>(wrong));
  }
  std::printf("bits: %llu of %llu kinds of packing and unpacking are the host's, bit for bit\n\n",
              static_cast<unsigned long long>(cases - wrong_cases),
              static_cast<unsigned long long>(cases));
  return wrong_cases == 0 ? Exit::ok : Exit::wrong_result;
}

struct Kind {
  const char* name;
  noria_dtype wire;
  bucketing::PackScale scale;
};
constexpr std::array<Kind, 4> kKinds{{{"as it is", NORIA_FLOAT32, {}},
                                      {"divided by 3", NORIA_FLOAT32, {.before = 3}},
                                      {"in bfloat16", NORIA_BFLOAT16, {}},
                                      {"in float16, / 4 twice", NORIA_FLOAT16, {4, 4}}}};

void show_speed(CudaLane& lane, const Trace& trace, int rounds) {
  for (const Kind& kind : kKinds) {
    const PackSpeed speed = measure_packing(lane, trace, kind.wire, kind.scale, rounds);
    const double gigabytes = static_cast<double>(speed.traffic) * 1e-9;
    std::printf(
        "%-16s %-22s %7.1f %7llu  %8.1f %8.1f %6.2f  %8.1f %8.1f %6.2f%s\n", trace.name.c_str(),
        kind.name, static_cast<double>(speed.bytes) * 1e-6,
        static_cast<unsigned long long>(speed.buckets), speed.pack_us,
        gigabytes / (speed.pack_us * 1e-6), speed.pack_ratio(), speed.unpack_us,
        gigabytes / (speed.unpack_us * 1e-6), speed.unpack_ratio(),
        speed.pack_ratio() < kGoal || speed.unpack_ratio() < kGoal ? "  below the goal" : "");
    std::fflush(stdout);
  }
}

int body(int argc, char** argv) {
  Options options;
  CLI::App app(kHelp, kName);
  app.add_option("--device", options.device, "ordinal of the GPU (0)")
      ->check(whole_number(0, 1023));
  app.add_option("--trace", options.traces,
                 "models or JSON files, several with commas (resnet50,gpt2); see overlap_perf")
      ->delimiter(',');
  app.add_option("-n,--iters", options.rounds, "timed rounds; the median counts (20)")
      ->check(whole_number(1, 100000));
  if (parse_command_line(app, argc, argv)) return 0;
  std::vector<Trace> traces;
  for (const std::string& name : options.traces) traces.push_back(load_trace(name));
  if (!bucketing::kHasPackImage && params_of_environment().cuda.empty())
    throw ToolError(Exit::environment,
                    "noria was built without nvcc, so that there are no kernels to check: build it "
                    "where CMake finds nvcc (-DNORIA_NVCC=<path>)");

  CudaLane lane(params_of_environment().cuda, options.device);
  std::printf("%s\n", lane.device().name().c_str());
  const Exit bits = check_bits(lane);
  std::printf("%-16s %-22s %7s %7s  %8s %8s %6s  %8s %8s %6s\n", "model", "packed", "MB", "buckets",
              "pack us", "GB/s", "ratio", "unpack us", "GB/s", "ratio");
  for (const Trace& trace : traces) show_speed(lane, trace, options.rounds);
  return static_cast<int>(bits);
}

}  // namespace
}  // namespace noria::perf

int main(int argc, char** argv) {
  return noria::perf::run_tool(noria::perf::kName, &noria::perf::body, argc, argv);
}
