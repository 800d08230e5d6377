// What the parameters ask of a connection is what its queue pairs were told, as the device answers.

#include "base/counters.hpp"
#include "tests/support/spy_verbs.hpp"
#include "tests/support/transport_pair.hpp"

namespace noria::transport {
namespace {

class QpAttributes : public test::TransportPair {
 protected:
  // Of one connection with these variables: the sender's queue pair and the receiver's.
  struct Told {
    ibv_qp_attr sender, receiver;
  };
  Told told(std::vector<const char*> variables, const ConnectOptions& options = {},
            size_t qps = 1) {
    a_.reset();
    b_.reset();
    const std::string library = "NORIA_IBVERBS=" + params_.ibverbs;
    variables.push_back(library.c_str());
    variables.push_back(nullptr);
    auto params = load_params(variables.data());
    EXPECT_TRUE(params) << params.failure();
    params_ = *params;
    auto provider = verbs::open_provider(params_, verbs::Use::collective);
    EXPECT_TRUE(provider) << provider.failure();
    provider_ = *provider;
    a_ = test::make_domain(provider_, params_);
    b_ = test::make_domain(provider_, params_);
    test::forget_spied_qps();
    const test::Connected made = connect(options);
    // The listener is the first to be ready.
    const std::vector<ibv_qp_attr> all = test::spied_qps();
    EXPECT_EQ(all.size(), 2 * qps);
    return all.size() == 2 ? Told{all[1], all[0]} : Told{};
  }
};

TEST_F(QpAttributes, Without_a_word_they_are_what_peers_have) {
  const Told qps = told({});
  for (const ibv_qp_attr& attr : {qps.sender, qps.receiver}) {
    EXPECT_EQ(attr.ah_attr.sl, 0);
    EXPECT_EQ(attr.ah_attr.grh.traffic_class, 0);
    EXPECT_EQ(attr.timeout, 17);
    EXPECT_EQ(attr.retry_cnt, 7);
    EXPECT_EQ(attr.rnr_retry, 7);
    EXPECT_EQ(attr.pkey_index, 0);
    EXPECT_EQ(attr.ah_attr.is_global, 1) << "RoCE is always addressed by GID";
    EXPECT_EQ(attr.ah_attr.grh.flow_label, 0u);
  }
}

TEST_F(QpAttributes, Every_variable_reaches_both_sides) {
  const Told qps =
      told({"NCCL_IB_TC=106", "NCCL_IB_SL=3", "NCCL_IB_TIMEOUT=22", "NCCL_IB_RETRY_CNT=5"});
  for (const ibv_qp_attr& attr : {qps.sender, qps.receiver}) {
    EXPECT_EQ(attr.ah_attr.grh.traffic_class, 106);
    EXPECT_EQ(attr.ah_attr.sl, 3);
    EXPECT_EQ(attr.timeout, 22);
    EXPECT_EQ(attr.retry_cnt, 5);
  }
}

TEST_F(QpAttributes, Credits_may_have_a_class_of_their_own) {
  const Told qps = told({"NORIA_TRAFFIC_CLASS=32", "NORIA_CONTROL_TRAFFIC_CLASS=0xC0"});
  EXPECT_EQ(qps.sender.ah_attr.grh.traffic_class, 32);
  EXPECT_EQ(qps.receiver.ah_attr.grh.traffic_class, 0xc0);
}

TEST_F(QpAttributes, What_the_layer_above_says_yields_to_the_variables) {
  const ConnectOptions options{.ack_timeout = 20, .retries = 3, .traffic_class = 64};
  const Told open = told({}, options);
  EXPECT_EQ(open.sender.ah_attr.grh.traffic_class, 64);
  EXPECT_EQ(open.receiver.ah_attr.grh.traffic_class, 64);
  EXPECT_EQ(open.sender.timeout, 20);
  EXPECT_EQ(open.sender.retry_cnt, 3);
  const Told asked =
      told({"NORIA_ACK_TIMEOUT=18", "NORIA_RETRY_COUNT=7", "NORIA_TRAFFIC_CLASS=32"}, options);
  EXPECT_EQ(asked.sender.ah_attr.grh.traffic_class, 32);
  EXPECT_EQ(asked.sender.timeout, 18);
  EXPECT_EQ(asked.sender.retry_cnt, 7);
}

TEST_F(QpAttributes, Payload_may_pass_payload_on_the_bus_unless_it_is_told_not_to) {
  const auto relaxed_of = [this](const char* variable) {
    told({variable});
    test::forget_spied_qps();
    std::vector<std::byte> memory(4096);
    const Region region = over(*a_, memory);
    size_t relaxed = 0;
    for (const unsigned access : test::spied_accesses())
      if ((access & IBV_ACCESS_RELAXED_ORDERING) != 0) ++relaxed;
    return relaxed;
  };
  EXPECT_EQ(relaxed_of("NORIA_RELAXED_ORDERING=auto"), 1u);
  EXPECT_EQ(relaxed_of("NCCL_IB_PCI_RELAXED_ORDERING=1"), 1u);
  EXPECT_EQ(relaxed_of("NCCL_IB_PCI_RELAXED_ORDERING=0"), 0u);
}

TEST_F(QpAttributes, Queue_pairs_and_how_messages_are_cut_over_them_follow_NCCLs_variables) {
  const auto pieces_of = [this](std::vector<const char*> variables) {
    variables.push_back("NCCL_IB_QPS_PER_CONNECTION=2");
    told(std::move(variables), {}, 2);
    const test::Connected made = connect();
    std::vector<std::byte> from(256_KiB), to(256_KiB);
    const Region source = over(*a_, from), target = over(*b_, to);
    const uint64_t before = counter_totals()[static_cast<size_t>(Counter::messages_striped)];
    for (const uint64_t bytes : {uint64_t{4096}, uint64_t{256_KiB}}) {
      Request* const received = made.recv->try_recv(target, 0, bytes);
      Request* sent = nullptr;
      EXPECT_TRUE(poll_until([&] {
        if (sent == nullptr) sent = made.send->try_send(source, 0, bytes);
        return sent != nullptr && sent->is_done() && received->is_done();
      }));
      made.send->release(sent);
      made.recv->release(received);
    }
    return counter_totals()[static_cast<size_t>(Counter::messages_striped)] - before;
  };
  EXPECT_EQ(pieces_of({}), 1u) << "from NORIA_STRIPE_MIN on";
  EXPECT_EQ(pieces_of({"NCCL_IB_SPLIT_DATA_ON_QPS=1"}), 2u);
  EXPECT_EQ(pieces_of({"NCCL_IB_SPLIT_DATA_ON_QPS=0"}), 0u);
}

TEST_F(QpAttributes, A_partition_is_found_by_its_key) {
  // The software HCA's table holds the default partition alone, as a full member.
  EXPECT_EQ(told({"NORIA_PKEY=0x7fff"}).sender.pkey_index, 0);
  Params params = params_;
  params.pkey = 0x8001;
  const auto refused = verbs::open_provider(params, verbs::Use::collective);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure(),
            "noria0 port 1: NORIA_PKEY: partition key 0x8001 is not in the port's table; there is "
            "0:0xffff (row:key)");
}

TEST_F(QpAttributes, A_row_of_the_partition_table_must_be_there) {
  Params params = params_;
  params.pkey_index = 4;
  const auto refused = verbs::open_provider(params, verbs::Use::collective);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.failure().find("NORIA_PKEY_INDEX: the partition key table has no row 4"),
            std::string::npos)
      << refused.failure();
}

TEST_F(QpAttributes, A_gid_that_is_not_there_refuses_the_start_and_names_those_that_are) {
  Params params = params_;
  params.gid_index = 3;
  auto refused = verbs::open_provider(params, verbs::Use::collective);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.failure().find("NORIA_GID_INDEX: GID 3 is not set; there is 0 "),
            std::string::npos)
      << refused.failure();
  params = params_;
  params.address_range = "240.0.0.0/32";
  refused = verbs::open_provider(params, verbs::Use::collective);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.failure().find("NORIA_ADDR_RANGE: no GID lies in the address range"),
            std::string::npos)
      << refused.failure();
}

}  // namespace
}  // namespace noria::transport
