#include "verbs/api.hpp"

#include <gtest/gtest.h>

#include <cerrno>

#include "base/log.hpp"
#include "verbs/fork_safety.hpp"
#include "verbs/handle.hpp"
#include "verbs/mr.hpp"
#include "verbs/provider.hpp"

namespace noria::verbs {
namespace {

ibv_context context_object{};
ibv_pd pd_object{.context = &context_object, .handle = 0};
ibv_mr mr_object{};

int lines_logged = 0;
void count_lines(LogLevel, const char*) { ++lines_logged; }

class ApiTest : public testing::Test {
 protected:
  void SetUp() override {
    lines_logged = 0;
    set_log_sink(&count_lines);
  }
  void TearDown() override { set_log_sink(&detail::write_to_stderr); }

  std::shared_ptr<const Api> api() { return Api::from_symbols(symbols_); }
  Symbols symbols_;
};

TEST_F(ApiTest, A_null_is_a_failure_with_the_errno_of_the_call) {
  symbols_.alloc_pd = [](ibv_context*) -> ibv_pd* {
    errno = ENOMEM;
    return nullptr;
  };
  const auto pd = api()->call<&Symbols::alloc_pd>(&context_object, &context_object);
  // Expect: errno kept, its code, one line in the log.
  ASSERT_FALSE(pd.is_ok());
  EXPECT_EQ(pd.failure(), Status::from_errno(Code::no_memory, ENOMEM));
  EXPECT_EQ(lines_logged, 1);
}

int fork_inits = 0;

TEST_F(ApiTest, Fork_safety_is_asked_for_where_the_kernel_does_not_give_it) {
  const auto inits_with = [&](auto* is_initialized) {
    symbols_.is_fork_initialized = is_initialized;
    fork_inits = 0;
    make_fork_safe(*api());
    return fork_inits;
  };
  using Ask = decltype(symbols_.is_fork_initialized);
  const Ask disabled = [] { return IBV_FORK_DISABLED; };
  const Ask unneeded = [] { return IBV_FORK_UNNEEDED; };
  const Ask enabled = [] { return IBV_FORK_ENABLED; };
  EXPECT_EQ(inits_with(disabled), 0);  // a library without it
  symbols_.fork_init = [] { return ++fork_inits, 0; };
  EXPECT_EQ(inits_with(disabled), 1);
  EXPECT_EQ(inits_with(unneeded), 0);
  EXPECT_EQ(inits_with(enabled), 0);
  // Expect: one that cannot be asked is told, and a refusal is no failure.
  symbols_.fork_init = [] { return ++fork_inits, ENOSYS; };
  EXPECT_EQ(inits_with(Ask{}), 1);
}

TEST_F(ApiTest, An_errno_value_is_taken_from_the_answer_not_from_errno) {
  symbols_.dealloc_pd = [](ibv_pd*) -> int {
    errno = ENOSYS;  // stale: says nothing about this call
    return EBUSY;
  };
  EXPECT_EQ(api()->call<&Symbols::dealloc_pd>(&context_object, &pd_object).raw(), EBUSY);

  // A provider that answers -1 and sets errno against the manual.  Expect: errno.
  symbols_.dealloc_pd = [](ibv_pd*) -> int {
    errno = EINVAL;
    return -1;
  };
  EXPECT_EQ(api()->call<&Symbols::dealloc_pd>(&context_object, &pd_object).raw(), EINVAL);
}

TEST_F(ApiTest, Minus_one_is_a_failure_and_errno_says_which) {
  symbols_.close_device = [](ibv_context*) -> int {
    errno = EIO;
    return -1;
  };
  const Status status = api()->call<&Symbols::close_device>(&context_object, &context_object);
  EXPECT_EQ(status, Status::from_errno(Code::device_lost, EIO));
}

TEST_F(ApiTest, An_absent_optional_function_answers_unsupported_in_silence) {
  const auto mr = api()->call<&Symbols::reg_mr_iova2>(
      &context_object, &pd_object, static_cast<void*>(nullptr), size_t{1}, uint64_t{0}, 0u);
  ASSERT_FALSE(mr.is_ok());
  EXPECT_EQ(mr.failure().code(), Code::unsupported);
  EXPECT_EQ(lines_logged, 0);
}

TEST_F(ApiTest, Probing_logs_nothing) {
  symbols_.query_device = [](ibv_context*, ibv_device_attr*) -> int { return EINVAL; };
  ibv_device_attr attr{};
  EXPECT_FALSE(
      api()->probe<&Symbols::query_device>(&context_object, &context_object, &attr).is_ok());
  EXPECT_EQ(lines_logged, 0);
}

TEST_F(ApiTest, The_port_is_asked_by_the_extended_operation_where_the_context_has_one) {
  const auto fill_lid = [](ibv_context*, uint8_t, ibv_port_attr* attr, size_t) -> int {
    attr->lid = 7;
    return 0;
  };
  symbols_.query_port = [](ibv_context*, uint8_t, _compat_ibv_port_attr* attr) -> int {
    reinterpret_cast<ibv_port_attr*>(attr)->lid = 3;
    return 0;
  };
  const auto table = api();
  ibv_port_attr attr{};

  // A context of the first ABI.  Expect: the plain function.
  verbs_context around{};
  ASSERT_TRUE(table->query_port(&around.context, 1, &attr).is_ok());
  EXPECT_EQ(attr.lid, 3);

  // An extended one.  Expect: its operation, and no rubbish of the struct left.
  around.context.abi_compat = reinterpret_cast<void*>(UINTPTR_MAX);
  around.sz = sizeof around;
  around.query_port = fill_lid;
  attr.sm_lid = 99;
  ASSERT_TRUE(table->query_port(&around.context, 1, &attr).is_ok());
  EXPECT_EQ(attr.lid, 7);
  EXPECT_EQ(attr.sm_lid, 0);

  // Extended, but too old to have it.  Expect: the plain function.
  around.sz = 8;
  ASSERT_TRUE(table->query_port(&around.context, 1, &attr).is_ok());
  EXPECT_EQ(attr.lid, 3);
}

TEST_F(ApiTest, Handles_close_themselves_and_the_ledger_ends_empty) {
  symbols_.alloc_pd = [](ibv_context*) { return &pd_object; };
  symbols_.dealloc_pd = [](ibv_pd*) { return 0; };
  const auto table = api();
  {
    auto pd = create<Pd, &Symbols::alloc_pd>(*table, &context_object, &context_object);
    ASSERT_TRUE(pd.is_ok());
    EXPECT_EQ(table->live_objects(), 1);
    Pd moved = std::move(*pd);
    EXPECT_EQ(table->live_objects(), 1);
  }
  EXPECT_EQ(table->live_objects(), 0);
  EXPECT_EQ(table->failed_closes(), 0u);
}

TEST_F(ApiTest, A_close_that_fails_is_counted_and_said_once) {
  symbols_.alloc_pd = [](ibv_context*) { return &pd_object; };
  symbols_.dealloc_pd = [](ibv_pd*) { return EBUSY; };
  const auto table = api();
  ASSERT_TRUE((create<Pd, &Symbols::alloc_pd>(*table, &context_object, &context_object)).is_ok());
  EXPECT_EQ(table->failed_closes(), 1u);
  EXPECT_EQ(lines_logged, 1);
}

TEST_F(ApiTest, Relaxed_ordering_falls_back_where_the_library_cannot_say_it) {
  static int plain_access = 0;
  symbols_.reg_mr = [](ibv_pd*, void*, size_t, int access) {
    plain_access = access;
    return &mr_object;
  };
  symbols_.dereg_mr = [](ibv_mr*) { return 0; };
  const auto table = api();
  char memory[8];
  EXPECT_TRUE(
      register_memory(*table, &pd_object, memory, sizeof memory, Ordering::relaxed).is_ok());
  EXPECT_EQ(plain_access & IBV_ACCESS_OPTIONAL_RANGE, 0);
}

TEST_F(ApiTest, A_library_that_is_no_verbs_library_names_what_it_lacks) {
  const auto loaded = Api::load("libm.so.6");
  ASSERT_FALSE(loaded.is_ok());
  EXPECT_NE(loaded.failure().find("ibv_get_device_list"), std::string::npos) << loaded.failure();
}

TEST_F(ApiTest, A_library_that_is_not_there_is_named_with_the_variable_that_named_it) {
  Params params;
  params.ibverbs = "/nonexistent/libverbs.so";
  const auto provider = open_provider(params, Use::collective);
  ASSERT_FALSE(provider.is_ok());
  EXPECT_NE(provider.failure().find("NORIA_IBVERBS"), std::string::npos) << provider.failure();
  EXPECT_NE(provider.failure().find("/nonexistent/libverbs.so"), std::string::npos);
}

}  // namespace
}  // namespace noria::verbs
