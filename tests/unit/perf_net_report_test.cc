#include <gtest/gtest.h>

#include "perf/net_report.hpp"

namespace noria::perf {
namespace {

TEST(Net_report, A_rate_is_shown_in_perftests_columns) {
  const RateRow row{.bytes = 65536, .messages = 5000, .peak = 200'000, .average = 100'000};
  EXPECT_EQ(rate_header(RateUnit::megabytes) + rate_text(row, RateUnit::megabytes),
            " #bytes     #iterations   BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n"
            " 65536      5000          12500.00           6250.00              0.100000\n");
  EXPECT_EQ(rate_header(RateUnit::gigabits) + rate_text(row, RateUnit::gigabits),
            " #bytes     #iterations   BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
            " 65536      5000          104.86             52.43                0.100000\n");
}

TEST(Net_report, A_latency_is_shown_with_its_percentiles) {
  std::vector<double> samples;
  for (int i = 1000; i > 0; --i) samples.push_back(i);
  const LatencyRow row = latency_row(8, samples);
  EXPECT_EQ(row.least, 1);
  EXPECT_EQ(row.most, 1000);
  EXPECT_EQ(row.typical, 500);
  EXPECT_EQ(row.average, 500.5);
  EXPECT_NEAR(row.deviation, 288.7, 0.1);
  EXPECT_EQ(row.p99, 990);
  EXPECT_EQ(row.p999, 999);
  EXPECT_EQ(latency_text(row).find(" 8          1000          1.00          1000.00       500.00"),
            0U)
      << latency_text(row);
}

TEST(Net_report, No_samples_are_zeros_and_no_division) {
  const LatencyRow row = latency_row(8, {});
  EXPECT_EQ(row.average, 0);
  EXPECT_EQ(row.deviation, 0);
}

TEST(Net_report, The_json_has_the_same_numbers) {
  const auto rate = rate_json({.bytes = 1000, .messages = 10, .peak = 4e6, .average = 2e6});
  EXPECT_EQ(rate["average_gbytes_per_s"], 2.0);
  EXPECT_EQ(rate["peak_gbytes_per_s"], 4.0);
  EXPECT_EQ(rate["messages_per_s"], 2e6);
  const auto latency = latency_json(latency_row(8, {1, 2, 3}));
  EXPECT_EQ(latency["iterations"], 3);
  EXPECT_EQ(latency["t_typical_us"], 2.0);
  EXPECT_EQ(latency["t_p999_us"], 3.0);
}

}  // namespace
}  // namespace noria::perf
