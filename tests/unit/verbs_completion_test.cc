#include "verbs/completion.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "verbs/names.hpp"

namespace noria::verbs {
namespace {

TEST(Completion, Shows_opcode_bytes_and_immediate_only_after_success) {
  ibv_wc wc{};
  wc.wr_id = 42;
  wc.qp_num = 0x1a3;
  wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
  wc.byte_len = 128;
  wc.imm_data = htonl(0x01020304);

  // Success.  Expect: everything, the immediate in this host's order.
  const auto success = Completion(wc).success();
  ASSERT_TRUE(success);
  EXPECT_EQ(success.opcode(), IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(success.bytes(), 128u);
  EXPECT_EQ(success.imm(), 0x01020304u);

  // Failure.  Expect: only what is defined.
  wc.status = IBV_WC_RETRY_EXC_ERR;
  const Completion failed(wc);
  EXPECT_FALSE(failed.success());
  EXPECT_EQ(failed.wr_id(), 42u);
  EXPECT_EQ(failed.qp_num(), 0x1a3u);
  EXPECT_EQ(failed.wc_status(), IBV_WC_RETRY_EXC_ERR);
}

TEST(Names, Every_completion_status_has_a_name_and_advice) {
  for (int status = IBV_WC_SUCCESS; status <= IBV_WC_TM_RNDV_INCOMPLETE; ++status) {
    EXPECT_STRNE(to_string(static_cast<ibv_wc_status>(status)), "unknown completion status");
    EXPECT_GT(std::strlen(advice(static_cast<ibv_wc_status>(status))), 10u);
  }
}

}  // namespace
}  // namespace noria::verbs
