// What NCCL's configuration and the environment ask of the plugin reaches its queue pairs.

#include <algorithm>
#include <cstdlib>

#include "base/clock.hpp"
#include "tests/support/nccl_pair.hpp"
#include "tests/support/spy_verbs.hpp"

namespace noria::test {
namespace {

class NcclVariables : public testing::TestWithParam<int> {};

// What the queue pairs of one connection were told: the receiver's, then the sender's.
std::vector<ibv_qp_attr> told(int version, int traffic_class) {
  forget_spied_qps();
  NetLibrary library;
  const auto net = library.net(version);
  net->set_traffic_class(traffic_class);
  void* context = nullptr;
  EXPECT_EQ(net->init(&context), Result::success);
  Ends ends;
  connect_to_itself(*net, context, &ends);
  close_both(*net, ends);
  EXPECT_EQ(net->finalize(context), Result::success);
  return spied_qps();
}

TEST_P(NcclVariables, The_communicators_traffic_class_yields_to_the_variable) {
  const int version = GetParam();
  const auto given = told(version, 106);
  setenv("NCCL_IB_TC", "32", 1);
  const auto overridden = told(version, 106);
  unsetenv("NCCL_IB_TC");
  ASSERT_EQ(given.size(), 2u);
  ASSERT_EQ(overridden.size(), 2u);
  // Version 10 tells connect() alone; the versions before tell nobody.
  EXPECT_EQ(given[0].ah_attr.grh.traffic_class, version >= 11 ? 106 : 0);
  EXPECT_EQ(given[1].ah_attr.grh.traffic_class, version >= 10 ? 106 : 0);
  for (const ibv_qp_attr& attr : overridden) EXPECT_EQ(attr.ah_attr.grh.traffic_class, 32);
}

TEST_P(NcclVariables, Each_communicator_is_said_in_one_line) {
  forget_logged_lines();
  told(GetParam(), -1);
  size_t lines = 0;
  for (const std::string& line : logged_lines())
    if (line.find("each connection has 1 queue pairs a rail of noria0 400 Gb/s, by ") !=
        std::string::npos)
      ++lines;
  EXPECT_EQ(lines, 1u);
}

TEST_P(NcclVariables, A_filter_may_say_the_rail_and_the_plane_of_a_port) {
  const int version = GetParam();
  const auto seen_with = [version](const char* filter) {
    setenv("NCCL_IB_HCA", filter, 1);
    SeenDevice seen;
    {
      const Communicator communicator(version);
      EXPECT_EQ(communicator.net->get_properties(0, &seen), Result::success) << last_warning();
    }
    unsetenv("NCCL_IB_HCA");
    return std::pair{seen.rail, seen.plane};
  };
  EXPECT_EQ(seen_with("noria0:1:2:5"), (version >= 12 ? std::pair{2, 5} : std::pair{-1, -1}));
  EXPECT_EQ(seen_with("noria0"), (std::pair{-1, -1})) << "not known";
}

TEST_P(NcclVariables, Queue_pairs_are_as_patient_as_NCCLs_own) {
  for (const ibv_qp_attr& attr : told(GetParam(), -1)) {
    EXPECT_EQ(attr.timeout, 20);
    EXPECT_EQ(attr.retry_cnt, 7);
  }
}

TEST_P(NcclVariables, A_traffic_class_that_does_not_exist_is_refused_with_a_line) {
  const int version = GetParam();
  if (version < 10) return;  // none is told
  NetLibrary library;
  const auto net = library.net(version);
  net->set_traffic_class(256);
  void* context = nullptr;
  Result result = net->init(&context);
  if (version == 10) {
    NetHandle handle{};
    void* comm = nullptr;
    result = net->connect(context, 0, handle.data(), &comm);
  }
  EXPECT_EQ(result, Result::invalid_argument);
  EXPECT_NE(last_warning().find("traffic class is over 255"), std::string::npos) << last_warning();
}

TEST_P(NcclVariables, What_NCCL_takes_and_noria_has_not_is_said_in_a_line) {
  setenv("NCCL_IB_TIMEOUT", "0", 1);
  setenv("NCCL_IB_ADDR_RANGE", "240.0.0.0/32", 1);
  forget_logged_lines();
  const auto qps = told(GetParam(), -1);
  unsetenv("NCCL_IB_TIMEOUT");
  unsetenv("NCCL_IB_ADDR_RANGE");
  ASSERT_EQ(qps.size(), 2u);
  for (const ibv_qp_attr& attr : qps) EXPECT_EQ(attr.timeout, 31);
  const auto count = [](const char* words) {
    const std::vector<std::string> lines = logged_lines();
    return std::count_if(lines.begin(), lines.end(), [words](const std::string& line) {
      return line.find(words) != std::string::npos;
    });
  };
  EXPECT_EQ(count("noria: NCCL_IB_TIMEOUT=0: 31 is taken"), 1);
  EXPECT_EQ(count("noria0 port 1: no GID lies in the range of NCCL_IB_ADDR_RANGE: 0, "), 1);
}

INSTANTIATE_TEST_SUITE_P(Versions, NcclVariables,
                         testing::Range(kOldestVersion, kNewestVersion + 1),
                         [](const auto& version) { return "v" + std::to_string(version.param); });

}  // namespace
}  // namespace noria::test
