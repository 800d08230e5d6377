// Enhanced connection establishment of the software HCA, as the pages of ibv_query_ece and
// ibv_set_ece have it.
//
// One process, no transfer: the ctest entry's copy path and placement do not matter.

#include <cerrno>
#include <cstdlib>

#include "tests/support/verbs_link.hpp"

namespace noria::test {
namespace {

class VerbsEce : public testing::Test {
 protected:
  // In a child of its own, with devices of its own.
  void with_devices(const char* devices, const std::function<void(const Hca&, ibv_qp*)>& body) {
    Crew crew({[&](Post&) {
      ASSERT_EQ(setenv("NORIA_SOFT_DEVICES", devices, 1), 0);
      const Hca hca;
      const auto cq = hca.make_cq();
      const auto qp = hca.make_qp(cq.get());
      body(hca, qp.get());
    }});
    EXPECT_EQ(crew.wait(0).exit_code, 0);
  }
  static ibv_ece query(ibv_qp* qp) {
    ibv_ece ece{.comp_mask = 99};
    EXPECT_EQ(verbs().query_ece(qp, &ece), 0);
    EXPECT_EQ(ece.comp_mask, 0u);
    return ece;
  }
  static int set(ibv_qp* qp, ibv_ece ece) { return verbs().set_ece(qp, &ece); }
};

TEST_F(VerbsEce, A_device_without_it_says_so) {
  with_devices("name=a", [](const Hca&, ibv_qp* qp) {
    ibv_ece ece{};
    EXPECT_EQ(verbs().query_ece(qp, &ece), EOPNOTSUPP);
    EXPECT_EQ(verbs().set_ece(qp, &ece), EOPNOTSUPP);
  });
}

TEST_F(VerbsEce, Is_what_both_ends_can_from_RTR_on_and_forgotten_by_RESET) {
  with_devices("name=a,ece=0x7", [](const Hca& hca, ibv_qp* qp) {
    ASSERT_EQ(to_init(qp, kAllAccess), 0);
    const ibv_ece own = query(qp);
    EXPECT_EQ(own.options, 7u);
    EXPECT_EQ(set(qp, {.vendor_id = own.vendor_id, .options = 0xd}), 0);
    EXPECT_EQ(query(qp).options, 7u) << "not in force yet";
    ASSERT_EQ(to_rtr(qp, hca.address_of(qp), {}), 0);
    EXPECT_EQ(query(qp).options, 5u);
    ASSERT_EQ(to_rts(qp, 1, {}), 0);
    EXPECT_EQ(query(qp).options, 5u);

    ASSERT_EQ(to_state(qp, IBV_QPS_RESET), 0);
    ASSERT_EQ(to_init(qp, kAllAccess), 0);
    EXPECT_EQ(query(qp).options, 7u);
    ASSERT_EQ(to_rtr(qp, hca.address_of(qp), {}), 0);
    EXPECT_EQ(query(qp).options, 0u) << "nothing was agreed on";
  });
}

TEST_F(VerbsEce, Is_taken_in_INIT_alone_and_from_its_own_kind_alone) {
  with_devices("name=a,ece=0x7", [](const Hca& hca, ibv_qp* qp) {
    const ibv_ece own = query(qp);
    EXPECT_EQ(set(qp, own), EINVAL) << "RESET";
    ASSERT_EQ(to_init(qp, kAllAccess), 0);
    EXPECT_EQ(set(qp, {.vendor_id = own.vendor_id + 1, .options = 7}), EINVAL);
    EXPECT_EQ(set(qp, {.vendor_id = own.vendor_id, .options = 7, .comp_mask = 1}), EINVAL);
    ASSERT_EQ(to_rtr(qp, hca.address_of(qp), {}), 0);
    EXPECT_EQ(query(qp).options, 0u) << "what was refused changed nothing";
    EXPECT_EQ(set(qp, own), EINVAL) << "RTR";
    ASSERT_EQ(to_rts(qp, 1, {}), 0);
    EXPECT_EQ(set(qp, own), EINVAL) << "RTS";
    ASSERT_EQ(to_state(qp, IBV_QPS_ERR), 0);
    EXPECT_EQ(set(qp, own), EINVAL) << "ERR";
  });
}

}  // namespace
}  // namespace noria::test
