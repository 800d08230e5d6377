#include "bucketing/timeline.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "base/log.hpp"
#include "tests/support/scratch_folder.hpp"

namespace noria::bucketing {
namespace {

namespace fs = std::filesystem;

class TimelineTest : public test::ScratchFolder {
 protected:
  std::unique_ptr<Timeline> create(int32_t rank = 0) {
    auto made = Timeline::create(
        in_folder("job"),
        {.rank = rank, .size = 2, .group = "7-8", .clock = {.offset = -5, .error = 3}});
    EXPECT_TRUE(made.is_ok()) << made.failure().text;
    return std::move(made).value();
  }
  static std::vector<std::string> lines_of(const std::string& file) {
    std::ifstream stream(file);
    std::vector<std::string> lines;
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    return lines;
  }
  static noria_step_info step(uint64_t number) {
    noria_step_info info{};
    info.step = number;
    info.end_ns = 77;
    return info;
  }
};

TEST_F(TimelineTest, The_file_says_whose_it_is_from_the_start) {
  const auto timeline = create(1);
  const auto lines = lines_of(timeline->file());
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].find("\"rank\":1,\"ranks\":2,\"clock_offset_ns\":-5,\"clock_error_ns\":3"),
            std::string::npos)
      << lines[0];
  EXPECT_NE(lines[0].find("\"group\":\"7-8\","), std::string::npos) << lines[0];
  EXPECT_EQ(timeline->file(), in_folder("job.rank1.jsonl"));
}

TEST_F(TimelineTest, Communicators_of_a_process_and_colors_of_a_split_have_names_of_their_own) {
  EXPECT_EQ(Timeline::next_name(), "");
  EXPECT_EQ(Timeline::next_name(), ".comm1");
  const std::string child = Timeline::split_name(".comm1", 0, 7);
  EXPECT_EQ(child, ".comm1.split0.color7");
  EXPECT_EQ(Timeline::split_name(child, 2, 0), ".comm1.split0.color7.split2.color0");
}

TEST_F(TimelineTest, A_step_is_a_line_with_its_buckets) {
  std::string file;
  {
    const auto timeline = create();
    file = timeline->file();
    const std::vector<noria_bucket_info> buckets{{.bucket = 0, .bytes = 10, .first_ns = 4},
                                                 {.bucket = 1, .bytes = 20}};
    timeline->on_step(1, step(3), buckets);
    // Expect: the first step is in the file at once.
    EXPECT_EQ(lines_of(file).size(), 2U);
    timeline->on_step(0, step(4), {});
    timeline->on_step(0, step(5), {});
  }
  // Expect: and in the end every one.
  const auto lines = lines_of(file);
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_TRUE(lines[1].starts_with("{\"reducer\":1,\"step\":3,")) << lines[1];
  EXPECT_NE(lines[1].find("\"end_ns\":77,"), std::string::npos) << lines[1];
  EXPECT_NE(lines[1].find("{\"bucket\":1,\"tensors\":0,\"dtype\":0,\"bytes\":20,"),
            std::string::npos)
      << lines[1];
  EXPECT_TRUE(lines[3].ends_with("\"buckets\":[]}")) << lines[3];
}

TEST_F(TimelineTest, The_last_steps_stay_and_their_number_has_a_bound) {
  const auto timeline = create();
  for (uint64_t i = 0; i < 3 * Timeline::kSteps; ++i) timeline->on_step(0, step(i), {});
  const auto lines = lines_of(timeline->file());
  ASSERT_EQ(lines.size(), 1 + Timeline::kSteps);
  EXPECT_NE(lines[1].find("\"step\":" + std::to_string(2 * Timeline::kSteps) + ","),
            std::string::npos);
}

TEST_F(TimelineTest, Their_bytes_have_a_bound_too) {
  const auto timeline = create();
  const std::vector<noria_bucket_info> many(20'000);
  for (uint64_t i = 0; i < 16; ++i) timeline->on_step(0, step(i), many);
  EXPECT_LE(fs::file_size(timeline->file()), Timeline::kBytes + 4096);
  EXPECT_GE(lines_of(timeline->file()).size(), 2U);
}

TEST_F(TimelineTest, A_step_that_fails_brings_those_before_it_into_the_file) {
  const auto timeline = create();
  for (uint64_t i = 0; i < 3; ++i) timeline->on_step(0, step(i), {});
  EXPECT_EQ(lines_of(timeline->file()).size(), 3U);
  timeline->on_failed_step();
  EXPECT_EQ(lines_of(timeline->file()).size(), 4U);
}

TEST_F(TimelineTest, A_path_that_cannot_be_written_is_told_at_once) {
  const auto made = Timeline::create(in_folder("none/job"), {});
  ASSERT_FALSE(made.is_ok());
  EXPECT_EQ(made.failure().code, NORIA_E_ARG);
  EXPECT_TRUE(made.failure().text.starts_with("NORIA_TRACE: cannot write ")) << made.failure().text;
  EXPECT_TRUE(made.failure().text.ends_with(": No such file or directory")) << made.failure().text;
}

int warnings = 0;

TEST_F(TimelineTest, A_disk_that_fails_later_is_told_once_and_fails_no_step) {
  auto timeline = create();
  fs::remove_all(folder_);
  warnings = 0;
  set_log_sink([](LogLevel, const char*) { ++warnings; });
  timeline->on_step(0, step(0), {});
  timeline->on_step(0, step(1), {});
  timeline.reset();
  set_log_sink(&detail::write_to_stderr);
  EXPECT_EQ(warnings, 1);
}

}  // namespace
}  // namespace noria::bucketing
