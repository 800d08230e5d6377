#include "base/params.hpp"

#include <gtest/gtest.h>

namespace noria {
namespace {

Result<Params, std::string> load(std::vector<const char*> environment) {
  environment.push_back(nullptr);
  return load_params(environment.data());
}

TEST(Params, Defaults_hold_where_the_environment_is_silent) {
  const auto params = load({"PATH=/bin", "HOME=/"});
  ASSERT_TRUE(params.is_ok());
  EXPECT_EQ(params->qps_per_connection, Params{}.qps_per_connection);
  EXPECT_FALSE(params->soft);
}

TEST(Params, Sizes_take_units_and_nothing_else) {
  // Whole string, K/M/G.  Expect: 1024-based.
  EXPECT_EQ(load({"NORIA_STRIPE_MIN=64K"})->stripe_min_bytes, 64_KiB);
  EXPECT_EQ(load({"NORIA_STRIPE_MIN=1m"})->stripe_min_bytes, 1_MiB);

  // Sign, blank, trailing text, overflow, out of range.  Expect: refused by name, value and range.
  for (const char* bad : {"NORIA_STRIPE_MIN=-1", "NORIA_STRIPE_MIN= 8K", "NORIA_STRIPE_MIN=8Kx",
                          "NORIA_STRIPE_MIN=", "NORIA_STRIPE_MIN=99999999999999999999",
                          "NORIA_STRIPE_MIN=18014398509481984K", "NORIA_STRIPE_MIN=1"}) {
    const auto refused = load({bad});
    ASSERT_FALSE(refused.is_ok()) << bad;
    EXPECT_NE(refused.failure().find("NORIA_STRIPE_MIN"), std::string::npos);
    EXPECT_NE(refused.failure().find("4K to 1G bytes"), std::string::npos) << refused.failure();
  }
}

TEST(Params, Booleans_are_words_not_truthiness) {
  EXPECT_TRUE(load({"NORIA_SOFT=on"})->soft);
  EXPECT_FALSE(load({"NORIA_SOFT=FALSE"})->soft);
  EXPECT_FALSE(load({"NORIA_SOFT=yes"}).is_ok());
}

TEST(Params, Choices_are_listed_when_refused) {
  EXPECT_EQ(load({"NORIA_SOFT_COPY=shm"})->soft_copy, "shm");
  const auto refused = load({"NORIA_SOFT_COPY=sh"});
  ASSERT_FALSE(refused.is_ok());
  EXPECT_NE(refused.failure().find("auto|cma|shm"), std::string::npos);
}

TEST(Params, Reals_refuse_what_is_not_a_number) {
  EXPECT_DOUBLE_EQ(load({"NORIA_SOFT_RATE_GBIT=8.25"})->soft_rate_gbit, 8.25);
  EXPECT_FALSE(load({"NORIA_SOFT_RATE_GBIT=nan"}).is_ok());
  EXPECT_FALSE(load({"NORIA_SOFT_RATE_GBIT=fast"}).is_ok());
}

TEST(Params, Reals_are_shown_with_the_digits_that_they_were_given) {
  const auto value_of = [](const char* entry, const char* name) {
    const auto params = load({entry});
    EXPECT_TRUE(params.is_ok()) << entry;
    for (const ParamRow& row : param_rows(*params))
      if (std::string(row.name) == name) return row.value;
    return std::string();
  };
  EXPECT_EQ(value_of("NORIA_SOFT_RATE_GBIT=8.25", "NORIA_SOFT_RATE_GBIT"), "8.25");
  EXPECT_EQ(value_of("NORIA_SOFT_RATE_GBIT=4.1234567891", "NORIA_SOFT_RATE_GBIT"), "4.1234567891");
  EXPECT_EQ(value_of("NORIA_SOFT_LATENCY_US=0.1", "NORIA_SOFT_LATENCY_US"), "0.1");
}

TEST(Params, A_refusal_is_one_line_whatever_the_value_is) {
  EXPECT_EQ(load({"NORIA_SOFT=may\nbe\x1b[1m"}).failure(),
            "NORIA_SOFT: 'may?be?[1m' is not accepted; it takes 0, 1, true, false, on or off");
  EXPECT_EQ(load({"NORIA_SO\nFT=1"}).failure().find('\n'), std::string::npos);
}

TEST(HostPort, Takes_names_and_addresses_and_refuses_the_rest) {
  std::string host;
  uint16_t port = 0;
  EXPECT_TRUE(parse_host_port("node-3.cluster:29500", &host, &port));
  EXPECT_EQ(host, "node-3.cluster");
  EXPECT_EQ(port, 29500);
  EXPECT_TRUE(parse_host_port("[fd00::1]:1", &host, &port));
  EXPECT_EQ(host, "fd00::1");
  for (const char* bad : {"", "host", ":1", "host:", "host:0", "host:65536", "host:1x", "::1:5",
                          "[]:5", "[::1:5", "host:-1", "[[::1]]:5", "h]:5"})
    EXPECT_FALSE(parse_host_port(bad, &host, &port)) << bad;
}

TEST(Params, A_root_is_a_host_and_a_port) {
  EXPECT_EQ(load({"NORIA_ROOT=[::1]:4711"})->root, "[::1]:4711");
  EXPECT_EQ(load({"NORIA_ROOT="})->root, "");
  const auto refused = load({"NORIA_ROOT=nohost"});
  ASSERT_FALSE(refused.is_ok());
  EXPECT_EQ(refused.failure(), "NORIA_ROOT: 'nohost' is not accepted; it takes host:port");
}

TEST(Params, An_unknown_name_is_answered_with_the_nearest_one) {
  const auto refused = load({"NORIA_SOFT_RAET_GBIT=8"});
  ASSERT_FALSE(refused.is_ok());
  EXPECT_NE(refused.failure().find("NORIA_SOFT_RATE_GBIT"), std::string::npos);
}

TEST(Params, A_refused_process_still_reads_what_it_needs_to_say_so) {
  const char* const environment[] = {"NORIA_SOFT=maybe", "NORIA_ROOT=host:1", "RANK=3",
                                     "NORIA_TIMEOUT_MS=500", nullptr};
  const Params params = load_params_named(environment, {"NORIA_ROOT"});
  EXPECT_EQ(params.root, "host:1");
  EXPECT_EQ(params.rank, "3");
  EXPECT_EQ(params.collective_timeout_ms, Params{}.collective_timeout_ms);

  // Expect: defaults where even the named one is wrong.
  const char* const wrong[] = {"NORIA_SOFT=maybe", "RANK=3", nullptr};
  EXPECT_EQ(load_params_named(wrong, {"NORIA_SOFT"}).rank, "");
}

TEST(Params, Every_row_says_when_to_change_it) {
  for (const ParamRow& row : param_rows(Params{})) {
    EXPECT_TRUE(std::string(row.name).starts_with("NORIA_"));
    EXPECT_GE(std::string(row.sentence).size(), 40u) << row.name;
    EXPECT_TRUE(row.is_default) << row.name;
  }
}

}  // namespace
}  // namespace noria
