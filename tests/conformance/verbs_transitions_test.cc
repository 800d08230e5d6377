// The states of a reliable connection: every step between two of them with every attribute left
// out that it needs, and with every one added that does not belong to it, as the InfiniBand
// specification has them (table "QP State Transition Properties") and the page of ibv_modify_qp.
//
// One process, no transfer: the ctest entry's copy path and placement do not matter.

#include "tests/support/verbs_link.hpp"

namespace noria::test {
namespace {

struct Step {
  ibv_qp_state from, to;
  int required, optional;
};

constexpr int kToInit = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
constexpr int kToRtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                       IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
constexpr int kToRts = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                       IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
constexpr Step kSteps[] = {
    {IBV_QPS_RESET, IBV_QPS_RESET, IBV_QP_STATE, 0},
    {IBV_QPS_RESET, IBV_QPS_INIT, kToInit, 0},
    {IBV_QPS_INIT, IBV_QPS_RESET, IBV_QP_STATE, 0},
    {IBV_QPS_INIT, IBV_QPS_ERR, IBV_QP_STATE, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, kToInit},
    {IBV_QPS_INIT, IBV_QPS_RTR, kToRtr, IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS},
    {IBV_QPS_RTR, IBV_QPS_RESET, IBV_QP_STATE, 0},
    {IBV_QPS_RTR, IBV_QPS_ERR, IBV_QP_STATE, 0},
    {IBV_QPS_RTR, IBV_QPS_RTS, kToRts,
     IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER},
    {IBV_QPS_RTS, IBV_QPS_RESET, IBV_QP_STATE, 0},
    {IBV_QPS_RTS, IBV_QPS_ERR, IBV_QP_STATE, 0},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0,
     IBV_QP_STATE | IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER},
    {IBV_QPS_ERR, IBV_QPS_RESET, IBV_QP_STATE, 0},
    {IBV_QPS_ERR, IBV_QPS_ERR, IBV_QP_STATE, 0},
};
// The device has neither alternate paths nor the states SQD and SQE: it refuses them.
constexpr ibv_qp_state kStates[] = {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS,
                                    IBV_QPS_SQD,   IBV_QPS_SQE,  IBV_QPS_ERR};
constexpr int kAttributes = 26;

const Step* find_step(ibv_qp_state from, ibv_qp_state to) {
  for (const Step& step : kSteps)
    if (step.from == from && step.to == to) return &step;
  return nullptr;
}

class VerbsTransitions : public testing::Test {
 protected:
  // Every attribute good, whether it is asked for or not.
  ibv_qp_attr attributes(ibv_qp_state from, ibv_qp_state to) const {
    const Address self = hca_->address_of(qp_.get());
    return {.qp_state = to,
            .cur_qp_state = from,
            .path_mtu = IBV_MTU_1024,
            .path_mig_state = IBV_MIG_MIGRATED,
            .rq_psn = 5,
            .sq_psn = 6,
            .dest_qp_num = self.qpn,
            .qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
            .ah_attr = {.grh = {.dgid = self.gid, .hop_limit = 64}, .is_global = 1, .port_num = 1},
            .max_rd_atomic = 3,
            .max_dest_rd_atomic = 4,
            .min_rnr_timer = 12,
            .port_num = 1,
            .timeout = 14,
            .retry_cnt = 7,
            .rnr_retry = 6};
  }
  int modify(ibv_qp_state from, ibv_qp_state to, int mask) const {
    ibv_qp_attr attr = attributes(from, to);
    return verbs().modify_qp(qp_.get(), &attr, mask);
  }
  ibv_qp_attr query() const {
    ibv_qp_attr attr{};
    ibv_qp_init_attr init{};
    EXPECT_EQ(verbs().query_qp(qp_.get(), &attr, IBV_QP_STATE, &init), 0);
    return attr;
  }
  void bring_to(ibv_qp_state state) const {
    ASSERT_EQ(to_state(qp_.get(), IBV_QPS_RESET), 0);
    ibv_qp_state at = IBV_QPS_RESET;
    const auto go = [&](ibv_qp_state to) {
      ASSERT_EQ(modify(at, to, find_step(at, to)->required), 0);
      at = to;
    };
    if (state == IBV_QPS_RESET) return;
    go(IBV_QPS_INIT);
    if (state == IBV_QPS_ERR) return go(IBV_QPS_ERR);
    if (state == IBV_QPS_RTR || state == IBV_QPS_RTS) go(IBV_QPS_RTR);
    if (state == IBV_QPS_RTS) go(IBV_QPS_RTS);
  }
  // In a child of its own, which alone loads the library.
  void in_a_child(const std::function<void()>& body) {
    Crew crew({[&](Post&) {
      hca_ = std::make_unique<Hca>();
      cq_ = hca_->make_cq();
      qp_ = hca_->make_qp(cq_.get());
      body();
      qp_.reset();
      cq_.reset();
      hca_.reset();
    }});
    EXPECT_EQ(crew.wait(0).exit_code, 0);
  }

  std::unique_ptr<Hca> hca_;
  Owned<ibv_cq> cq_;
  Owned<ibv_qp> qp_;
};

TEST_F(VerbsTransitions, Need_all_that_belongs_to_them_and_take_nothing_else) {
  in_a_child([&] {
    for (const Step& step : kSteps) {
      SCOPED_TRACE(testing::Message() << "from " << step.from << " to " << step.to);
      ASSERT_NO_FATAL_FAILURE(bring_to(step.from));
      const int full = step.required != 0 ? step.required : IBV_QP_STATE;
      for (int bit = 1; bit < 1 << kAttributes; bit <<= 1) {
        if (bit == IBV_QP_STATE) continue;  // without it, it is another step
        const bool is_needed = (step.required & bit) != 0;
        const bool is_welcome = is_needed || (step.optional & bit) != 0;
        const int mask = is_needed ? full & ~bit : full | bit;
        // Left out though needed, or brought though it does not belong.  Expect: refused, and
        // nothing has changed.
        if (is_needed || !is_welcome) {
          EXPECT_EQ(modify(step.from, step.to, mask), EINVAL) << "attributes " << mask;
          EXPECT_EQ(query().qp_state, step.from);
        }
      }
      EXPECT_EQ(modify(step.from, step.to, full | step.optional), 0);
      EXPECT_EQ(query().qp_state, step.to);
      ASSERT_NO_FATAL_FAILURE(bring_to(step.from));
      EXPECT_EQ(modify(step.from, step.to, full), 0);
      EXPECT_EQ(query().qp_state, step.to);
    }
  });
}

TEST_F(VerbsTransitions, Do_not_exist_beside_those_of_the_table) {
  in_a_child([&] {
    for (const ibv_qp_state from : kStates) {
      if (from == IBV_QPS_SQD || from == IBV_QPS_SQE) continue;  // cannot be reached
      for (const ibv_qp_state to : kStates) {
        if (find_step(from, to) != nullptr) continue;
        SCOPED_TRACE(testing::Message() << "from " << from << " to " << to);
        ASSERT_NO_FATAL_FAILURE(bring_to(from));
        for (const int mask : {int{IBV_QP_STATE}, kToInit, kToRtr, kToRts})
          EXPECT_EQ(modify(from, to, mask), EINVAL);
        EXPECT_EQ(query().qp_state, from);
      }
    }
  });
}

TEST_F(VerbsTransitions, Refuse_values_that_no_device_has) {
  in_a_child([&] {
    const auto refuses = [&](ibv_qp_state from, ibv_qp_state to, void (*spoil)(ibv_qp_attr*)) {
      bring_to(from);
      ibv_qp_attr attr = attributes(from, to);
      spoil(&attr);
      const Step* step = find_step(from, to);
      return verbs().modify_qp(qp_.get(), &attr, step->required | step->optional) == EINVAL;
    };
    constexpr auto kReset = IBV_QPS_RESET, kInit = IBV_QPS_INIT, kRtr = IBV_QPS_RTR,
                   kRts = IBV_QPS_RTS;
    EXPECT_TRUE(refuses(kReset, kInit, [](ibv_qp_attr* a) { a->port_num = 2; }));
    EXPECT_TRUE(refuses(kReset, kInit, [](ibv_qp_attr* a) { a->pkey_index = 1; }));
    EXPECT_TRUE(refuses(kInit, kRtr, [](ibv_qp_attr* a) { a->path_mtu = ibv_mtu{}; }));
    EXPECT_TRUE(refuses(kInit, kRtr, [](ibv_qp_attr* a) { a->max_dest_rd_atomic = 17; }));
    EXPECT_TRUE(refuses(kInit, kRtr, [](ibv_qp_attr* a) { a->min_rnr_timer = 32; }));
    EXPECT_TRUE(refuses(kInit, kRtr, [](ibv_qp_attr* a) { a->ah_attr.is_global = 0; }));
    EXPECT_TRUE(refuses(kInit, kRtr, [](ibv_qp_attr* a) { a->ah_attr.port_num = 2; }));
    EXPECT_TRUE(refuses(kInit, kRtr, [](ibv_qp_attr* a) { a->ah_attr.grh.sgid_index = 1; }));
    EXPECT_TRUE(refuses(kInit, kRtr, [](ibv_qp_attr* a) { a->ah_attr.grh.dgid.raw[15] ^= 1; }));
    EXPECT_TRUE(refuses(kRtr, kRts, [](ibv_qp_attr* a) { a->timeout = 32; }));
    EXPECT_TRUE(refuses(kRtr, kRts, [](ibv_qp_attr* a) { a->retry_cnt = 8; }));
    EXPECT_TRUE(refuses(kRtr, kRts, [](ibv_qp_attr* a) { a->rnr_retry = 8; }));
    EXPECT_TRUE(refuses(kRtr, kRts, [](ibv_qp_attr* a) { a->max_rd_atomic = 17; }));
    EXPECT_TRUE(refuses(kRtr, kRts, [](ibv_qp_attr* a) { a->cur_qp_state = IBV_QPS_INIT; }));
  });
}

TEST_F(VerbsTransitions, What_was_set_is_what_a_query_tells) {
  in_a_child([&] {
    ASSERT_NO_FATAL_FAILURE(bring_to(IBV_QPS_RTS));
    const ibv_qp_attr set = attributes(IBV_QPS_RTS, IBV_QPS_RTS), told = query();
    EXPECT_EQ(told.qp_state, IBV_QPS_RTS);
    EXPECT_EQ(told.cur_qp_state, IBV_QPS_RTS);
    EXPECT_EQ(told.path_mtu, set.path_mtu);
    EXPECT_EQ(told.rq_psn, set.rq_psn);
    EXPECT_EQ(told.sq_psn, set.sq_psn);
    EXPECT_EQ(told.dest_qp_num, set.dest_qp_num);
    EXPECT_EQ(told.qp_access_flags, set.qp_access_flags);
    EXPECT_EQ(told.max_rd_atomic, set.max_rd_atomic);
    EXPECT_EQ(told.max_dest_rd_atomic, set.max_dest_rd_atomic);
    EXPECT_EQ(told.min_rnr_timer, set.min_rnr_timer);
    EXPECT_EQ(told.port_num, set.port_num);
    EXPECT_EQ(told.timeout, set.timeout);
    EXPECT_EQ(told.retry_cnt, set.retry_cnt);
    EXPECT_EQ(told.rnr_retry, set.rnr_retry);
    EXPECT_EQ(told.ah_attr.is_global, 1);
    EXPECT_EQ(std::memcmp(&told.ah_attr.grh.dgid, &set.ah_attr.grh.dgid, sizeof(ibv_gid)), 0);
  });
}

}  // namespace
}  // namespace noria::test
