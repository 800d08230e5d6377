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

TEST(Params, On_and_off_among_choices_are_spelled_as_booleans_are) {
  EXPECT_EQ(load({"NORIA_ADAPTIVE_ROUTING=1"})->adaptive_routing, "on");
  EXPECT_EQ(load({"NORIA_ADAPTIVE_ROUTING=false"})->adaptive_routing, "off");
  EXPECT_EQ(load({"NORIA_SPLIT_DATA_ON_QPS=0"})->split, "off");
  EXPECT_EQ(load({"NORIA_RELAXED_ORDERING=auto"})->relaxed_ordering, "auto");
  EXPECT_EQ(load({"NORIA_ADAPTIVE_ROUTING=2"}).failure(),
            "NORIA_ADAPTIVE_ROUTING: '2' is not accepted; it takes auto|on|off");
  EXPECT_FALSE(load({"NORIA_RING_FETCH=1"})) << "it has no on";
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
  const char* const environment[] = {"NORIA_SOFT=maybe",     "NORIA_ROOT=host:1", "RANK=3",
                                     "NORIA_TIMEOUT_MS=500", "NCCL_IB_TC=no",     nullptr};
  const Params params = load_params_named(environment, {"NORIA_ROOT"});
  EXPECT_EQ(params.root, "host:1");
  EXPECT_EQ(params.rank, "3");
  EXPECT_EQ(params.collective_timeout_ms, Params{}.collective_timeout_ms);

  // NCCL's name for one that is wanted.  Expect: read.
  const char* const nccls[] = {"NCCL_SOCKET_IFNAME=ib0", "NCCL_IB_SL=no", nullptr};
  EXPECT_EQ(load_params_named(nccls, {"NORIA_SOCKET_IFNAME"}).socket_ifname, "ib0");

  // Expect: defaults where even the named one is wrong.
  const char* const wrong[] = {"NORIA_SOFT=maybe", "RANK=3", nullptr};
  EXPECT_EQ(load_params_named(wrong, {"NORIA_SOFT"}).rank, "");
}

ParamRow row_of(const std::vector<const char*>& environment, const std::string& name) {
  const auto params = load(environment);
  EXPECT_TRUE(params.is_ok()) << params.failure();
  for (const ParamRow& row : param_rows(params.is_ok() ? *params : Params{}))
    if (row.name == name) return row;
  ADD_FAILURE() << name << " is no row";
  return {};
}

TEST(Params, Nccls_name_is_taken_where_ours_is_unset_and_the_row_says_which) {
  EXPECT_EQ(row_of({}, "NORIA_TRAFFIC_CLASS").source, "default");
  EXPECT_EQ(row_of({"NCCL_IB_TC=106"}, "NORIA_TRAFFIC_CLASS").source, "NCCL_IB_TC");
  EXPECT_EQ(row_of({"NCCL_IB_TC=106"}, "NORIA_TRAFFIC_CLASS").value, "106");
  // Whichever stands first.  Expect: ours.
  for (const auto& both : {std::vector{"NCCL_IB_TC=106", "NORIA_TRAFFIC_CLASS=8"},
                           std::vector{"NORIA_TRAFFIC_CLASS=8", "NCCL_IB_TC=106"}}) {
    EXPECT_EQ(row_of(both, "NORIA_TRAFFIC_CLASS").value, "8");
    EXPECT_EQ(row_of(both, "NORIA_TRAFFIC_CLASS").source, "NORIA_TRAFFIC_CLASS");
  }
  // Even where it says nothing, and where it says the default.
  EXPECT_EQ(row_of({"NORIA_HCA=", "NCCL_IB_HCA=mlx5"}, "NORIA_HCA").value, "");
  EXPECT_EQ(load({"NORIA_TRAFFIC_CLASS=auto", "NCCL_IB_TC=106"})->traffic_class, std::nullopt);
}

TEST(Params, A_bad_value_of_nccls_is_as_bad_as_ours_unless_ours_is_set) {
  EXPECT_EQ(load({"NCCL_IB_TC=256"}).failure(),
            "NCCL_IB_TC: '256' is not accepted; it takes auto or 0 to 255 (NORIA_TRAFFIC_CLASS is "
            "taken instead where it is set)");
  EXPECT_EQ(load({"NCCL_IB_PCI_RELAXED_ORDERING=yes"}).failure(),
            "NCCL_IB_PCI_RELAXED_ORDERING: 'yes' is not accepted; it takes 0|1|2|any other number "
            "(NORIA_RELAXED_ORDERING is taken instead where it is set)");
  EXPECT_FALSE(load({"NCCL_IB_HCA=mlx5_0:x"}));
  EXPECT_FALSE(load({"NCCL_IB_ADDR_RANGE=10.0.0.0"}));
  EXPECT_TRUE(load({"NCCL_IB_TC=256", "NORIA_TRAFFIC_CLASS=1"}));
  // Not ours to judge.
  EXPECT_TRUE(load({"NCCL_ALGO=Rign", "NCCL_IB_TX=1", "NCCL_IB_TIMEOUT="}));
}

TEST(Params, Nccls_words_are_put_into_ours) {
  EXPECT_EQ(load({"NCCL_IB_PCI_RELAXED_ORDERING=0"})->relaxed_ordering, "off");
  EXPECT_EQ(load({"NCCL_IB_PCI_RELAXED_ORDERING=2"})->relaxed_ordering, "auto");
  EXPECT_EQ(load({"NCCL_IB_PCI_RELAXED_ORDERING=3"})->relaxed_ordering, "off") << "as NCCL has it";
  EXPECT_EQ(load({"NCCL_IB_SPLIT_DATA_ON_QPS=1"})->split, "on");
  EXPECT_EQ(load({"NCCL_IB_GID_INDEX=-1"})->gid_index, std::nullopt);
  EXPECT_EQ(load({"NCCL_IB_SL=0x3"})->service_level, 3u);
  EXPECT_FALSE(load({"NORIA_RELAXED_ORDERING=2"})) << "NCCL's words are for NCCL's name";
  EXPECT_EQ(load({"NCCL_IB_PKEY=2"})->pkey_index, 2u) << "a row, as to NCCL";
}

TEST(Params, Nccls_numbers_are_read_in_any_base_that_NCCL_reads) {
  EXPECT_EQ(load({"NCCL_IB_PKEY=0x10"})->pkey_index, 16u);
  EXPECT_EQ(load({"NCCL_IB_PKEY=010"})->pkey_index, 8u);
  EXPECT_EQ(load({"NCCL_IB_QPS_PER_CONNECTION=0X4"})->qps_per_connection, 4u);
  EXPECT_EQ(load({"NCCL_IB_TC=+0x6a"})->traffic_class, 106u);
  EXPECT_EQ(load({"NCCL_IB_PCI_RELAXED_ORDERING=0x1"})->relaxed_ordering, "on");
  EXPECT_EQ(load({"NCCL_IB_GID_INDEX=-0x1"})->gid_index, std::nullopt);
  EXPECT_EQ(load({"NCCL_SOCKET_IFNAME=010"})->socket_ifname, "010") << "a text stays as it is";
  for (const char* bad :
       {"NCCL_IB_PKEY=0x", "NCCL_IB_PKEY=08", "NCCL_IB_PKEY=-3", "NCCL_IB_PKEY=1x",
        "NCCL_IB_PKEY=0x10000000000000000", "NCCL_IB_PKEY=0x8000000000000000"})
    EXPECT_FALSE(load({bad})) << bad;
  EXPECT_FALSE(load({"NORIA_PKEY_INDEX=0x10"})) << "that is for NCCL's name";
}

TEST(Params, What_NCCL_takes_and_noria_has_not_is_the_nearest_and_said) {
  const auto many = load({"NCCL_IB_QPS_PER_CONNECTION=0x80"});
  ASSERT_TRUE(many) << many.failure();
  EXPECT_EQ(many->qps_per_connection, 16u);
  ASSERT_EQ(many->notices.size(), 1u);
  EXPECT_EQ(many->notices[0],
            "NCCL_IB_QPS_PER_CONNECTION=128: 16 is taken, for noria takes 1 to 16 queue pairs");
  const auto for_ever = load({"NCCL_IB_TIMEOUT=0"});
  ASSERT_TRUE(for_ever) << for_ever.failure();
  EXPECT_EQ(for_ever->ack_timeout, 31u);
  ASSERT_EQ(for_ever->notices.size(), 1u);
  EXPECT_EQ(for_ever->notices[0],
            "NCCL_IB_TIMEOUT=0: 31 is taken, for noria takes auto or 1 to 31");
  // What is in both ranges, what is in neither, and noria's own.  Expect: nothing to say; refused.
  EXPECT_TRUE(load({"NCCL_IB_QPS_PER_CONNECTION=16", "NCCL_IB_TIMEOUT=22"})->notices.empty());
  EXPECT_EQ(load({"NCCL_IB_QPS_PER_CONNECTION=129"}).failure(),
            "NCCL_IB_QPS_PER_CONNECTION: '129' is not accepted; it takes 1 to 16 queue pairs "
            "(NORIA_QPS_PER_CONNECTION is taken instead where it is set)");
  EXPECT_FALSE(load({"NCCL_IB_TIMEOUT=32"}));
  EXPECT_FALSE(load({"NORIA_QPS_PER_CONNECTION=17"}));
  EXPECT_FALSE(load({"NORIA_ACK_TIMEOUT=0"}));
}

TEST(Params, What_NCCL_takes_for_on_is_on) {
  // Expect: as NCCL, which asks whether the number is 0.
  for (const char* on : {"1", "2", "-1", "0x10"}) {
    const auto with = [on](const char* name) { return std::string(name) + "=" + on; };
    EXPECT_EQ(load({with("NCCL_IB_ADAPTIVE_ROUTING").c_str()})->adaptive_routing, "on") << on;
    EXPECT_EQ(load({with("NCCL_IB_SPLIT_DATA_ON_QPS").c_str()})->split, "on") << on;
    EXPECT_TRUE(load({with("NCCL_IB_ECE_ENABLE").c_str()})->ece) << on;
    EXPECT_TRUE(load({with("NCCL_GDR_FLUSH_DISABLE").c_str()})->flush_disable) << on;
  }
  EXPECT_EQ(load({"NCCL_IB_ADAPTIVE_ROUTING=-2"})->adaptive_routing, "auto");
  EXPECT_EQ(load({"NCCL_IB_ADAPTIVE_ROUTING=0"})->adaptive_routing, "off");
  EXPECT_FALSE(load({"NCCL_IB_ECE_ENABLE=00"})->ece);
  EXPECT_FALSE(load({"NCCL_IB_ECE_ENABLE=off"})->ece) << "noria's words stay";
  EXPECT_TRUE(load({"NCCL_IB_ECE_ENABLE=1"})->notices.empty());
  EXPECT_EQ(load({"NCCL_IB_ECE_ENABLE=2"})->notices,
            std::vector<std::string>{"NCCL_IB_ECE_ENABLE=2: 1 is taken, for noria takes 0|1"});

  // No number.  Expect: refused, with all that is one.
  EXPECT_EQ(load({"NCCL_IB_ADAPTIVE_ROUTING=yes"}).failure(),
            "NCCL_IB_ADAPTIVE_ROUTING: 'yes' is not accepted; it takes 0|-2|any other number "
            "(NORIA_ADAPTIVE_ROUTING is taken instead where it is set)");
  EXPECT_FALSE(load({"NCCL_IB_ECE_ENABLE=yes"}));
  EXPECT_FALSE(load({"NCCL_IB_ECE_ENABLE=0x8000000000000000"}));
}

TEST(Params, NCCLs_threshold_of_adaptive_routing_may_be_its_default_or_out_of_reach) {
  const auto by_default = load({"NCCL_IB_AR_THRESHOLD=-2"});
  ASSERT_TRUE(by_default) << by_default.failure();
  EXPECT_EQ(by_default->adaptive_threshold_bytes, Params{}.adaptive_threshold_bytes);
  for (const char* never : {"NCCL_IB_AR_THRESHOLD=4294967296", "NCCL_IB_AR_THRESHOLD=1073741825",
                            "NCCL_IB_AR_THRESHOLD=0x7fffffffffffffff"}) {
    const auto params = load({never});
    ASSERT_TRUE(params) << params.failure();
    EXPECT_EQ(params->adaptive_threshold_bytes, 1_GiB);
    EXPECT_EQ(params->notices.size(), 1u) << never;
  }
  EXPECT_EQ(load({"NCCL_IB_AR_THRESHOLD=4294967296"})->notices[0],
            "NCCL_IB_AR_THRESHOLD=4294967296: 1G is taken, for noria takes 0 to 1G bytes");
  // Below all sizes, so that to NCCL every message is above it.
  EXPECT_EQ(load({"NCCL_IB_AR_THRESHOLD=-1"})->adaptive_threshold_bytes, 0u);
  EXPECT_EQ(load({"NCCL_IB_AR_THRESHOLD=-3"})->adaptive_threshold_bytes, 0u);
  // What noria has.  Expect: as it stands, and nothing to say.
  const auto most = load({"NCCL_IB_AR_THRESHOLD=1073741824"});
  EXPECT_EQ(most->adaptive_threshold_bytes, 1_GiB);
  EXPECT_TRUE(most->notices.empty());
  EXPECT_FALSE(load({"NORIA_AR_THRESHOLD=-2"}));
}

TEST(Params, A_device_on_which_NCCL_itself_may_run_leaves_its_names_alone) {
  const char* const environment[] = {"NCCL_IB_QPS_PER_CONNECTION=129", nullptr};
  EXPECT_FALSE(load_params(environment));
  const auto params = load_params(environment, NcclNames::ignored);
  ASSERT_TRUE(params);
  EXPECT_EQ(params->qps_per_connection, 1u);
}

TEST(Params, The_variable_to_blame_is_the_one_that_was_set) {
  EXPECT_EQ(variable_of(*load({"NCCL_IB_HCA=mlx5"}), ParamId::hca), "NCCL_IB_HCA");
  EXPECT_EQ(variable_of(*load({"NORIA_HCA=mlx5"}), ParamId::hca), "NORIA_HCA");
  EXPECT_EQ(variable_of(Params{}, ParamId::hca), "NORIA_HCA");
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
