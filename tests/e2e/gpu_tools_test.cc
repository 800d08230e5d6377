// The tools that use a GPU, on the stand-in for one: a rank a process, since its ranks are threads.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/e2e/tool_runs.hpp"
#include "tests/support/scratch_folder.hpp"

namespace noria::perf {
namespace {

// What NORIA_CUDA and NORIA_NCCL name is not there.
const Environment kNoGpu{{"NORIA_CUDA", "/nowhere/libcuda.so"}};

bool says(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

TEST(Pack_check, Compares_every_kernel_and_times_a_model) {
  const ToolEnd end = run_tool_to_end({"pack_check", "--trace", "resnet18", "-n", "1"});
  EXPECT_EQ(end.exit_code, 0) << end.out << end.err;
  EXPECT_TRUE(says(end.out, "bits: 26 of 26 kinds")) << end.out;
  EXPECT_TRUE(says(end.out, "resnet18         in bfloat16")) << end.out;
}

TEST(Pack_check, Without_a_gpu_it_says_what_is_lacking) {
  const ToolEnd end = run_tool_to_end({"pack_check"}, kNoGpu);
  EXPECT_EQ(end.exit_code, 3) << end.err;
  EXPECT_TRUE(says(end.err, "/nowhere/libcuda.so")) << end.err;
  EXPECT_EQ(run_tool_to_end({"pack_check", "--device", "99"}).exit_code, 2);
}

TEST(Pack_check, Refuses_a_model_that_it_does_not_know) {
  const ToolEnd end = run_tool_to_end({"pack_check", "--trace", "resnet51"});
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_TRUE(says(end.err, "resnet50")) << end.err;
}

TEST(Nccl_backend, All_types_and_reductions_are_right_on_a_gpu) {
  const ToolEnd end =
      run_tool_to_end({"all_reduce_perf", "--backend", "nccl", "-g", "1", "-b", "1000", "-e",
                       "1000", "-n", "2", "-w", "1", "-c", "2", "-d", "all", "-o", "all"});
  EXPECT_EQ(end.exit_code, 0) << end.out << end.err;
  EXPECT_TRUE(says(end.out, "# backend: NCCL, on GPUs\n")) << end.out;
  EXPECT_TRUE(says(end.out, "CUDA device 0")) << "the GPU is named: " << end.out;
  EXPECT_TRUE(says(end.out, "# Out of bounds values : 0 OK\n")) << end.out;
}

TEST(Nccl_backend, Queued_calls_are_right_too_and_json_names_the_backend) {
  const ToolEnd end =
      run_tool_to_end({"all_reduce_perf", "--backend", "nccl", "-g", "1", "-b", "64K", "-e", "64K",
                       "-z", "0", "-n", "5", "-c", "1", "--json"});
  ASSERT_EQ(end.exit_code, 0) << end.out << end.err;
  EXPECT_EQ(nlohmann::json::parse(end.out).at("backend"), "nccl");
}

TEST(Nccl_backend, The_two_halves_have_it_too) {
  for (const char* tool : {"reduce_scatter_perf", "all_gather_perf"}) {
    const ToolEnd end = run_tool_to_end(
        {tool, "--backend", "nccl", "-g", "1", "-b", "4K", "-e", "4K", "-n", "2", "-c", "1"});
    EXPECT_EQ(end.exit_code, 0) << tool << end.out << end.err;
  }
}

TEST(Nccl_backend, Without_a_gpu_it_says_what_is_lacking) {
  const ToolEnd end = run_tool_to_end({"all_reduce_perf", "--backend", "nccl", "-g", "1"}, kNoGpu);
  EXPECT_EQ(end.exit_code, 3) << end.err;
  EXPECT_TRUE(says(end.err, "/nowhere/libcuda.so")) << end.err;
}

TEST(Nccl_backend, Another_backend_is_refused) {
  const ToolEnd end = run_tool_to_end({"all_reduce_perf", "--backend", "gloo"});
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_TRUE(says(end.err, "--backend")) << end.err;
}

class Overlap_perf_on_a_gpu : public test::ScratchFolder {
 protected:
  // A model small enough for the stand-in, in several buckets.
  std::string model() const {
    std::ofstream(in_folder("model.json"))
        << R"({"name": "small", "tensors": [{"name": "a", "shape": [300, 100], "dtype": "f32"},
              {"name": "b", "shape": [7], "dtype": "f32"},
              {"name": "c", "shape": [400, 200], "dtype": "f32"}]})";
    return in_folder("model.json");
  }
};

TEST_F(Overlap_perf_on_a_gpu, Every_mode_is_right_in_views_and_in_memory_of_its_own) {
  for (const char* where : {"", "--copy"}) {
    std::vector<std::string> command{
        "overlap_perf", "--backend",     "nccl", "-g",      "1", "--trace",
        model(),        "--backward-ms", "5",    "--steps", "2", "--bucket-mib",
        "0.2"};
    if (where[0] != '\0') command.emplace_back(where);
    const ToolEnd end = run_tool_to_end(command);
    EXPECT_EQ(end.exit_code, 0) << where << end.out << end.err;
    EXPECT_TRUE(says(end.out, "# backend: NCCL, on GPUs\n")) << end.out;
    EXPECT_TRUE(says(end.out, "CUDA device 0")) << end.out;
  }
}

TEST_F(Overlap_perf_on_a_gpu, Without_a_gpu_it_says_what_is_lacking) {
  const ToolEnd end =
      run_tool_to_end({"overlap_perf", "--backend", "nccl", "-g", "1", "--trace", model()}, kNoGpu);
  EXPECT_EQ(end.exit_code, 3) << end.err;
  EXPECT_TRUE(says(end.err, "/nowhere/libcuda.so")) << end.err;
}

class Gpu_check : public test::ScratchFolder {};

TEST_F(Gpu_check, Without_a_gpu_it_says_so_and_builds_nothing) {
  std::ofstream(in_folder("nvidia-smi")) << "#!/bin/sh\nexit 9\n";
  std::filesystem::permissions(in_folder("nvidia-smi"), std::filesystem::perms::owner_all);
  const ToolEnd end = run_tool_to_end({NORIA_GPU_CHECK, in_folder("build")},
                                      {{"PATH", folder_.string() + ":" + std::getenv("PATH")}});
  EXPECT_EQ(end.exit_code, 3) << end.err;
  EXPECT_TRUE(says(end.err, "no GPU")) << end.err;
  EXPECT_FALSE(std::filesystem::exists(in_folder("build")));
}

TEST_F(Gpu_check, Refuses_what_it_does_not_know) {
  EXPECT_EQ(run_tool_to_end({NORIA_GPU_CHECK, "--fast"}).exit_code, 2);
  EXPECT_EQ(run_tool_to_end({NORIA_GPU_CHECK, "a", "b"}).exit_code, 2);
  EXPECT_EQ(run_tool_to_end({NORIA_GPU_CHECK, "--help"}).exit_code, 0);
}

}  // namespace
}  // namespace noria::perf
