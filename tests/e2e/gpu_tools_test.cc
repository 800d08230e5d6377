// The tools that use a GPU, on the stand-in for one: alone, and with a process a rank.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

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

TEST(Nccl_backend, Ranks_are_processes_with_a_gpu_each_and_compare_every_element) {
  struct Case {
    const char* tool;
    std::vector<std::string> kinds;  // of data and reduction
    size_t rows;
  };
  for (const Case& of : {Case{"all_reduce_perf", {"-d", "all", "-o", "avg"}, 8},
                         Case{"reduce_scatter_perf", {"-d", "float", "-o", "all"}, 10},
                         Case{"all_gather_perf", {"-d", "bfloat16"}, 2}}) {
    std::vector<std::string> command{of.tool, "--backend", "nccl", "-g", "2",    "-b",
                                     "64",    "-e",        "64K",  "-f", "1024", "-n",
                                     "2",     "-w",        "1",    "-c", "2"};
    command.insert(command.end(), of.kinds.begin(), of.kinds.end());
    const ToolEnd end = run_tool_to_end(command);
    EXPECT_EQ(end.exit_code, 0) << of.tool << end.out << end.err;
    EXPECT_TRUE(says(end.out, "#  Rank  1 ")) << end.out;
    EXPECT_TRUE(says(end.out, "CUDA device 1")) << "each has its own: " << end.out;
    EXPECT_TRUE(says(end.out, "# Out of bounds values : 0 OK\n")) << end.out;
    // Expect: nccl-tests' 13 columns, both halves compared.
    size_t rows = 0;
    for (const std::string& line : lines_of(end.out)) {
      std::istringstream words(line);
      const std::vector<std::string> columns{std::istream_iterator<std::string>(words), {}};
      if (columns.size() != 13 || columns[0][0] == '#') continue;
      ++rows;
      EXPECT_EQ(columns[8], "0") << line;
      EXPECT_EQ(columns[12], "0") << line;
    }
    EXPECT_EQ(rows, of.rows) << end.out;
  }
}

TEST(Nccl_backend, A_killed_rank_is_named_by_the_others_and_exit_4) {
  for (const size_t victim : {size_t{1}, size_t{0}}) {
    RunningTool tool({"all_reduce_perf", "--backend", "nccl", "-g", "3", "-b", "64K", "-e", "64K",
                      "-n", "10000000"});
    ASSERT_TRUE(tool.prints("(elements)")) << "no table was begun";
    const std::vector<pid_t> ranks = tool.children();
    ASSERT_EQ(ranks.size(), 3U);
    ::kill(ranks[victim], SIGKILL);
    expect_named_by_all_others(tool.end(), "all_reduce_perf", 3, victim);
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
  for (const char* ranks : {"1", "2"})
    for (const char* where : {"", "--copy"}) {
      std::vector<std::string> command{
          "overlap_perf",  "--backend", "nccl",    "-g", ranks,          "--trace", model(),
          "--backward-ms", "5",         "--steps", "2",  "--bucket-mib", "0.2"};
      if (where[0] != '\0') command.emplace_back(where);
      const ToolEnd end = run_tool_to_end(command);
      EXPECT_EQ(end.exit_code, 0) << ranks << where << end.out << end.err;
      EXPECT_TRUE(says(end.out, "# backend: NCCL, on GPUs\n")) << end.out;
      EXPECT_TRUE(says(end.out, "CUDA device 0")) << end.out;
    }
}

TEST_F(Overlap_perf_on_a_gpu, A_killed_rank_is_named_by_the_others_and_exit_4) {
  RunningTool tool({"overlap_perf", "--backend", "nccl", "-g", "2", "--trace", model(), "--mode",
                    "bucketed", "--backward-ms", "3600000"});
  const std::vector<pid_t> ranks = tool.children(2);
  ASSERT_EQ(ranks.size(), 2U);
  ::poll(nullptr, 0, 700);  // well into the first step; what is expected holds at any time
  ::kill(ranks[1], SIGKILL);
  expect_named_by_all_others(tool.end(), "overlap_perf", 2, 1);
}

TEST_F(Overlap_perf_on_a_gpu, Without_a_gpu_it_says_what_is_lacking) {
  const ToolEnd end =
      run_tool_to_end({"overlap_perf", "--backend", "nccl", "-g", "1", "--trace", model()}, kNoGpu);
  EXPECT_EQ(end.exit_code, 3) << end.err;
  EXPECT_TRUE(says(end.err, "/nowhere/libcuda.so")) << end.err;
}

// The script as it runs on a machine with a GPU, whose nvidia-smi is one of the test's.
class Gpu_check : public test::ScratchFolder {
 protected:
  ToolEnd check(const std::vector<std::string>& words, const char* smi, Environment more = {}) {
    std::ofstream(in_folder("nvidia-smi")) << "#!/bin/sh\n" << smi << "\n";
    std::filesystem::permissions(in_folder("nvidia-smi"), std::filesystem::perms::owner_all);
    std::vector<std::string> command{NORIA_GPU_CHECK};
    command.insert(command.end(), words.begin(), words.end());
    more.emplace_back("PATH", folder_.string() + ":" + std::getenv("PATH"));
    return run_tool_to_end(command, more);
  }
  // A folder that holds what this build made: a link to each half.
  std::string built() const {
    const std::filesystem::path made = std::filesystem::path(NORIA_BIN_DIR).parent_path();
    std::filesystem::create_directories(in_folder("built"));
    for (const char* half : {"bin", "lib"})
      std::filesystem::create_directory_symlink(made.parent_path() / half,
                                                std::filesystem::path(in_folder("built")) / half);
    return in_folder("built");
  }
  static constexpr const char* kGpu = "echo 'GPU 0: Stand-in (UUID: GPU-0)'";
};

TEST_F(Gpu_check, Goes_from_end_to_end_and_shows_all_three) {
  // Expect: both ranks on GPU 0, which NCCL, and the stand-in, refuse unless they are two hosts'.
  const ToolEnd end = check({"--built", "--small", built()}, kGpu);
  EXPECT_EQ(end.exit_code, 0) << end.out << end.err;
  EXPECT_TRUE(says(end.out, "bits: 26 of 26 kinds")) << end.out;
  const size_t sockets = end.out.find("== two ranks over NCCL's sockets");
  const size_t plugin = end.out.find("== two ranks over noria's plugin");
  ASSERT_LT(sockets, plugin) << end.out;
  for (const std::string& half :
       {end.out.substr(sockets, plugin - sockets), end.out.substr(plugin)}) {
    EXPECT_TRUE(says(half, "#  Rank  1 ")) << half;
    EXPECT_TRUE(says(half, "bfloat16     avg")) << half;
    EXPECT_TRUE(says(half, "# Out of bounds values : 0 OK\n")) << half;
  }
  EXPECT_TRUE(says(end.out, "s; exit 0\n")) << end.out;
}

TEST_F(Gpu_check, What_fails_is_named_and_the_rest_is_run) {
  // Arrange: a NCCL that is none, which pack_check does not need.
  const ToolEnd end = check({"--built", "--small", built()}, kGpu, {{"NORIA_NCCL", "/bin/true"}});
  EXPECT_EQ(end.exit_code, 3) << end.out << end.err;
  EXPECT_TRUE(says(end.out, "bits: 26 of 26 kinds")) << end.out;
  EXPECT_TRUE(says(end.err, "rank 1 over plugin ended with 3")) << end.err;
  EXPECT_TRUE(says(end.err, "cannot load NCCL: /bin/true")) << end.err;
}

TEST_F(Gpu_check, What_is_not_there_is_said_before_anything_runs) {
  ToolEnd end = check({"--built", in_folder("none")}, kGpu);
  EXPECT_EQ(end.exit_code, 3) << end.err;
  EXPECT_TRUE(says(end.err, "none/bin/pack_check is not there")) << end.err;
  end = check({"--built", built()}, kGpu, {{"NORIA_NCCL", "/nowhere/libnccl.so.2"}});
  EXPECT_EQ(end.exit_code, 3) << end.err;
  EXPECT_TRUE(says(end.err, "NORIA_NCCL=/nowhere/libnccl.so.2 is not there")) << end.err;
}

TEST_F(Gpu_check, Without_a_gpu_it_says_so_and_builds_nothing) {
  const ToolEnd end = check({in_folder("build")}, "exit 9");
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
