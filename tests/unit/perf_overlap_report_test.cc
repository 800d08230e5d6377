#include "perf/overlap_report.hpp"

#include <gtest/gtest.h>

#include <map>

#include "perf/exit_codes.hpp"
#include "perf/timeline.hpp"

namespace noria::perf {
namespace {

constexpr int64_t kMs = 1'000'000;

RankReport report_of(int64_t begin_ms, std::vector<double> steps,
                     std::vector<double> communication) {
  RankReport report{.device = "noria0 port 1", .notice = "a notice", .reads = 1};
  ModeResult mode{.mode = Mode::bucketed,
                  .step_ms = std::move(steps),
                  .communication_ms = std::move(communication),
                  .reported_exposed_ms = {1.9, 2.1},
                  .outside_exposed_ms = {2.0, 2.1},
                  .cpu_seconds = 0.5,
                  .wrong = 1};
  mode.last.begin_ns = begin_ms * kMs;
  mode.last.end_ns = (begin_ms + 12) * kMs;
  mode.last.ready_ns = {(begin_ms + 4) * kMs, (begin_ms + 10) * kMs};
  mode.last.transfers = {{.bytes = 8,
                          .tensors = 1,
                          .ready_ns = (begin_ms + 4) * kMs,
                          .start_ns = (begin_ms + 4) * kMs,
                          .end_ns = (begin_ms + 9) * kMs},
                         {.bytes = 4,
                          .tensors = 1,
                          .ready_ns = (begin_ms + 10) * kMs,
                          .start_ns = (begin_ms + 8) * kMs,
                          .end_ns = (begin_ms + 12) * kMs,
                          .first_ns = (begin_ms + 5) * kMs,
                          .queued_ns = (begin_ms + 7) * kMs,
                          .wire_ns = 4 * kMs}};
  report.modes = {mode};
  report.flat_ms = {1.5};
  report.tail_ms = {0.5, 0.25};
  return report;
}

ReplayPlan plan_of_two() {
  ReplayPlan plan{.trace = {.name = "m"}};
  plan.trace.tensors = {{.name = "a", .shape = {1}, .numel = 1},
                        {.name = "b", .shape = {2}, .numel = 2}};
  plan.times = ready_times(plan.trace, 10);
  return plan;
}

TEST(Rank_report, Survives_the_pipe) {
  const RankReport before = report_of(100, {12, 13}, {9, 8});
  const RankReport after = decode(encode(before));
  EXPECT_EQ(after.device, before.device);
  EXPECT_EQ(after.notice, before.notice);
  EXPECT_EQ(after.reads, before.reads);
  EXPECT_EQ(after.flat_ms, before.flat_ms);
  EXPECT_EQ(after.tail_ms, before.tail_ms);
  ASSERT_EQ(after.modes.size(), 1U);
  EXPECT_EQ(after.modes[0].mode, Mode::bucketed);
  EXPECT_EQ(after.modes[0].step_ms, before.modes[0].step_ms);
  EXPECT_EQ(after.modes[0].wrong, 1U);
  EXPECT_EQ(after.modes[0].last.ready_ns, before.modes[0].last.ready_ns);
  EXPECT_EQ(after.modes[0].last.transfers[1].start_ns, 108 * kMs);
  EXPECT_EQ(after.modes[0].last.transfers[1].first_ns, 105 * kMs);
  EXPECT_EQ(after.modes[0].last.transfers[1].queued_ns, 107 * kMs);
  EXPECT_EQ(after.modes[0].last.transfers[1].wire_ns, 4 * kMs);
  EXPECT_EQ(after.modes[0].reported_exposed_ms, before.modes[0].reported_exposed_ms);
  EXPECT_EQ(after.modes[0].outside_exposed_ms, before.modes[0].outside_exposed_ms);
}

TEST(Rank_report, Half_a_report_is_a_lost_rank) {
  const std::string text = encode(report_of(100, {12}, {9}));
  for (const std::string& bad :
       {std::string(), text.substr(0, text.size() / 2), std::string("{}")}) {
    try {
      decode(bad);
      FAIL() << bad;
    } catch (const ToolError& error) {
      EXPECT_EQ(error.code(), Exit::peer);
    }
  }
}

TEST(Summary, The_slowest_rank_of_each_step_counts) {
  const std::vector<RankReport> ranks{report_of(100, {12, 20, 13}, {9, 9, 9}),
                                      report_of(100, {14, 11, 12}, {8, 10, 8})};
  const ModeSummary summary = summarize(ranks, 0, 10, 3'000'000);
  EXPECT_DOUBLE_EQ(summary.step_ms, 14);  // of 14, 20, 13
  EXPECT_DOUBLE_EQ(summary.step_p99_ms, 20);
  EXPECT_DOUBLE_EQ(summary.communication_ms, 9);
  EXPECT_DOUBLE_EQ(summary.exposed_ms, 4);
  EXPECT_DOUBLE_EQ(summary.efficiency, 10.0 / 14);
  EXPECT_DOUBLE_EQ(summary.bus_gb_s, 3e-3 * 2 / 2 / 9e-3);
  EXPECT_NEAR(summary.cpu_s_per_gb, 1.0 / (3e-3 * 3), 1e-9);
  EXPECT_EQ(summary.wrong, 2U);
  EXPECT_EQ(summary.last_bytes, 4U);
  // Expect: of the four steps' reports, which are 5 % and 0 % off, the lower median.
  EXPECT_DOUBLE_EQ(summary.reported_exposed_ms, 1.9);
  EXPECT_DOUBLE_EQ(summary.report_error, 0);
}

OverlapSummary summary_of_one() {
  OverlapSummary summary{
      .trace = "m", .tensors = 2, .numel = 3, .bytes = 12, .ranks = 2, .backward_ms = 10};
  summary.comm_ratio = 1;
  summary.rate_gbit = 4.125;
  summary.latency_us = 20;
  summary.device = "noria0 port 1";
  summary.notice = "no RDMA device was found";
  summary.reads = 1;
  summary.full_buckets_step_ms = 13.5;
  summary.modes = {{.mode = Mode::bucketed,
                    .step_ms = 12.5,
                    .step_p99_ms = 13,
                    .step_max_ms = 13,
                    .communication_ms = 10,
                    .exposed_ms = 2.5,
                    .efficiency = 0.8,
                    .bus_gb_s = 0.0012,
                    .cpu_s_per_gb = 0.5,
                    .seal_ms = 1.5,
                    .wrong = 0,
                    .reported_exposed_ms = 2.4,
                    .report_error = 0.015}};
  return summary;
}

TEST(Overlap_table, Says_that_the_way_to_fetch_may_depend_on_the_memory) {
  OverlapSummary summary = summary_of_one();
  summary.reads = 2;
  // Expect: no claim of reads for what goes by messages.
  EXPECT_NE(
      overlap_table(summary).find("# fetch: one-sided reads from the reducer's arena, messages "
                                  "elsewhere\n"),
      std::string::npos);
  summary.reads = 0;
  EXPECT_NE(overlap_table(summary).find("# fetch: messages\n"), std::string::npos);
}

TEST(Overlap_table, Says_what_ran_over_what_link_and_with_what_result) {
  EXPECT_EQ(
      overlap_table(summary_of_one()),
      "# overlap_perf: m, 2 tensors, 3 values, 0.0 MB; 2 ranks; arena; backward 10.0 ms\n"
      "# link: shaped to 4.125 Gbit/s, 20 us latency, so that communication = 1 x backward\n"
      "# device: noria0 port 1\n"
      "# fetch: one-sided reads\n"
      "#\n"
      "#      mode       step       step       comm     exposed  efficiency       bus       CPU "
      " #wrong\n"
      "#            median ms     p99 ms         ms          ms                  GB/s      s/GB\n"
      "    bucketed      12.50      13.00      10.00        2.50       0.800     0.001     0.500 "
      "      0\n"
      "#\n"
      "# Buckets sent only when full could end a step after 13.50 ms at best; sent while they "
      "fill, they took 12.50 ms.\n"
      "# Sealing the reducer took 1.5 ms.\n"
      "# The library reports 2.400 ms exposed, from the last gradient on; the median step is 1.50 "
      "% "
      "off a clock outside.\n"
      "# no RDMA device was found\n");
}

TEST(Overlap_table, Says_when_the_ratio_that_was_asked_was_not_reached) {
  OverlapSummary summary = summary_of_one();
  summary.modes.push_back({.mode = Mode::sequential, .step_ms = 23, .communication_ms = 10.9});
  EXPECT_EQ(overlap_table(summary).find("that was asked"), std::string::npos);
  summary.modes[1].communication_ms = 13;
  EXPECT_NE(overlap_table(summary).find(
                "\n# Communication took 1.30 x backward, not the 1 that was asked: this machine is "
                "busy, or too slow for the rate.\n"),
            std::string::npos);
}

TEST(Overlap_table, Compares_what_is_exposed_with_what_cannot_be_hidden_and_with_DDP) {
  OverlapSummary summary = summary_of_one();
  summary.flat_ms = 9;
  summary.modes[0].last_bytes = 4;
  summary.tail_bytes = 4000;
  summary.tail_ms = 2;
  summary.least_step_ms = 12;
  summary.ddp_step_ms = 14;
  summary.modes.push_back({.mode = Mode::per_tensor, .communication_ms = 12});
  summary.modes.push_back({.mode = Mode::when_full, .step_ms = 15, .exposed_ms = 5});
  const std::string text = overlap_table(summary);
  EXPECT_NE(text.find("# The backward pass and the last bucket, 0.00 MB, take 13.00 ms together; "
                      "the step takes 0.962 x that.\n"
                      "# From the last gradient on bucketed takes 2.400 ms, 0.267 x one all-reduce "
                      "of all of them.\n"
                      "# One call a tensor, with nothing else to do, takes 5.0 x that.\n"
                      "# What becomes ready last, 0.004 MB, takes 2.00 ms alone; bucketed exposes "
                      "1.250 x that.\n"
                      "# No order of sending ends a step before 12.00 ms, with each tensor sent "
                      "when it is ready; bucketed takes 1.042 x that.\n"
                      "# DDP's plan, a bucket sent when it is full, exposes 5.00 ms; bucketed "
                      "exposes 0.500 x that.\n"
                      "# Over a link that never rests that plan would expose 4.00 ms; bucketed "
                      "exposes 0.625 x that.\n"),
            std::string::npos)
      << text;
}

TEST(Overlap_json, Has_the_figures_of_the_table) {
  const auto json = nlohmann::json::parse(overlap_json(summary_of_one()));
  EXPECT_EQ(json["bytes"], 12);
  EXPECT_EQ(json["comm_ratio"], 1.0);
  EXPECT_EQ(json["modes"][0]["mode"], "bucketed");
  EXPECT_EQ(json["modes"][0]["step_ms"], 12.5);
  EXPECT_EQ(json["modes"][0]["wrong"], 0);
  EXPECT_EQ(json["full_buckets_step_ms"], 13.5);
}

TEST(Timeline, Has_a_process_per_rank_with_step_tensors_and_buckets_on_one_clock) {
  const auto json = nlohmann::json::parse(chrome_trace(
      timeline_of(plan_of_two(), {report_of(100, {12}, {9}), report_of(101, {12}, {9})})));
  std::map<std::string, nlohmann::json> of_rank_1;
  for (const auto& event : json["traceEvents"]) {
    if (event["ph"] != "X") continue;
    EXPECT_GE(event["dur"].get<double>(), 0);
    if (event["pid"] == 1) of_rank_1[event["name"]] = event;
  }
  // Rank 1 began 1 ms after rank 0, whose step begins the picture.
  EXPECT_EQ(of_rank_1.at("bucketed")["ts"], 1000.0);
  EXPECT_EQ(of_rank_1.at("bucketed")["dur"], 12000.0);
  // In order of arrival: b, then a.
  EXPECT_EQ(of_rank_1.at("b")["ts"], 1000.0);
  EXPECT_EQ(of_rank_1.at("b")["dur"], 4000.0);
  EXPECT_EQ(of_rank_1.at("a")["ts"], 5000.0);
  EXPECT_EQ(of_rank_1.at("bucket 0")["ts"], 5000.0);
  // Bucket 1 starts before bucket 0 ends.  Expect: another lane; slices of one may not cross.
  EXPECT_NE(of_rank_1.at("bucket 1")["tid"], of_rank_1.at("bucket 0")["tid"]);
  EXPECT_EQ(of_rank_1.at("bucket 1")["args"]["full_after_start_us"], 2000.0);
}

TEST(Timeline, Tells_what_was_exposed_and_how_far_off_a_clock_may_be) {
  Timeline timeline = timeline_of(plan_of_two(), {report_of(100, {12}, {9})});
  timeline.ranks[0].clock_error_ns = 1234;
  const auto json = nlohmann::json::parse(chrome_trace(timeline));
  EXPECT_EQ(json["otherData"]["rank 0"], "clock within 1234 ns of rank 0's");
  for (const auto& event : json["traceEvents"]) {
    if (event["name"] != "exposed" || event["ph"] != "X") continue;
    EXPECT_EQ(event["ts"], 10000.0);
    EXPECT_EQ(event["dur"], 2000.0);
  }
}

// The data that the page holds for its script.
nlohmann::json data_of(const std::string& page) {
  const std::string tag = "<script type=\"application/json\" id=\"data\">";
  const size_t begin = page.find(tag) + tag.size();
  return nlohmann::json::parse(page.substr(begin, page.find("</script>") - begin), nullptr, false);
}

TEST(Timeline_page, Holds_every_step_with_a_place_for_each_rank) {
  Timeline timeline =
      timeline_of(plan_of_two(), {report_of(100, {12}, {9}), report_of(101, {12}, {9})});
  timeline.ranks[1].steps.push_back({.name = "later", .begin_ns = 50 * kMs, .end_ns = 60 * kMs});
  const auto data = data_of(timeline_page(timeline));
  ASSERT_TRUE(data.is_object());
  ASSERT_EQ(data["steps"].size(), 2U);
  EXPECT_EQ(data["steps"][0]["name"], "bucketed");
  const auto& rank_1 = data["steps"][0]["ranks"][1];
  EXPECT_EQ(rank_1["b"], 1000.0);
  EXPECT_EQ(rank_1["l"], 11000.0);
  EXPECT_EQ(rank_1["e"], 13000.0);
  EXPECT_EQ(rank_1["buckets"][1]["q"], 8000.0);
  EXPECT_EQ(rank_1["buckets"][1]["w"], 4000.0);
  EXPECT_TRUE(rank_1["buckets"][0]["f"].is_null());  // not known
  // Expect: a step that a rank does not have leaves its place empty.
  EXPECT_TRUE(data["steps"][1]["ranks"][0].is_null());
  EXPECT_TRUE(data["steps"][1]["ranks"][1].is_object());
}

TEST(Timeline_page, A_name_cannot_end_the_script_that_holds_it) {
  const Timeline timeline{.title = "</script><b>", .ranks = {{.rank = 0}}};
  const auto data = data_of(timeline_page(timeline));
  ASSERT_TRUE(data.is_object());
  EXPECT_EQ(data["title"], "</script><b>");
}

TEST(Timeline, Of_nothing_is_still_a_trace) {
  const auto json = nlohmann::json::parse(chrome_trace(timeline_of(plan_of_two(), {})));
  EXPECT_TRUE(json["traceEvents"].empty());
}

}  // namespace
}  // namespace noria::perf
