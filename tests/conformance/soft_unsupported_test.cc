// What the software HCA does not have: a program that asks for it all the same is told so, each
// time in the way in which that function reports failure.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <cerrno>
#include <cstdlib>

namespace noria::test {
namespace {

class SoftUnsupported : public testing::Test {
 protected:
  void SetUp() override {
    library_ = dlopen(std::getenv("NORIA_IBVERBS"), RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library_, nullptr) << dlerror();
    errno = 0;
  }
  void TearDown() override { dlclose(library_); }

  template <class Function>
  Function find(const char* name) const {
    void* const found = dlsym(library_, name);
    EXPECT_NE(found, nullptr) << name;
    return reinterpret_cast<Function>(found);
  }

  void* library_ = nullptr;
};

#define FIND(name) find<decltype(&::name)>(#name)

TEST_F(SoftUnsupported, Objects_are_null_and_errno_says_why) {
  const auto expect_none = [](const void* made) {
    EXPECT_EQ(made, nullptr);
    EXPECT_EQ(errno, EOPNOTSUPP);
    errno = 0;
  };
  expect_none(FIND(ibv_create_ah)(nullptr, nullptr));
  expect_none(FIND(ibv_create_ah_from_wc)(nullptr, nullptr, nullptr, 1));
  expect_none(FIND(ibv_import_device)(-1));
  expect_none(FIND(ibv_import_pd)(nullptr, 0));
  expect_none(FIND(ibv_import_mr)(nullptr, 0));
  expect_none(FIND(ibv_import_dm)(nullptr, 0));
  // Has nothing to say why by.
  EXPECT_EQ(FIND(ibv_qp_to_qp_ex)(nullptr), nullptr);
}

TEST_F(SoftUnsupported, Calls_answer_a_number_in_the_convention_of_each) {
  EXPECT_EQ(FIND(ibv_init_ah_from_wc)(nullptr, 1, nullptr, nullptr, nullptr), -1);
  EXPECT_EQ(errno, EOPNOTSUPP);
  errno = 0;
  EXPECT_EQ(FIND(ibv_resolve_eth_l2_from_gid)(nullptr, nullptr, nullptr, nullptr), -1);
  EXPECT_EQ(errno, EOPNOTSUPP);
  EXPECT_EQ(FIND(ibv_destroy_ah)(nullptr), EOPNOTSUPP);
  EXPECT_EQ(FIND(ibv_attach_mcast)(nullptr, nullptr, 0), EOPNOTSUPP);
  EXPECT_EQ(FIND(ibv_resize_cq)(nullptr, 1), EOPNOTSUPP);
  EXPECT_EQ(FIND(ibv_detach_mcast)(nullptr, nullptr, 0), EOPNOTSUPP);
  errno = 0;
  // Expect: the region that there was stays.
  EXPECT_EQ(FIND(ibv_rereg_mr)(nullptr, 0, nullptr, nullptr, 0, 0), IBV_REREG_MR_ERR_INPUT);
  EXPECT_EQ(errno, EOPNOTSUPP);
}

TEST_F(SoftUnsupported, What_was_never_made_is_given_back_without_harm) {
  FIND(ibv_unimport_pd)(nullptr);
  FIND(ibv_unimport_mr)(nullptr);
  FIND(ibv_unimport_dm)(nullptr);
}

}  // namespace
}  // namespace noria::test
