// Every point of failure in set-up: the n-th verbs call fails, for n = 0, 1, 2 ... until a whole
// connection succeeds. Each time a clean failure, and an empty ledger.

#include <cerrno>

#include "base/log.hpp"
#include "tests/support/transport_pair.hpp"
#include "verbs/transport/domain_state.hpp"
#include "verbs/transport/staging.hpp"

namespace noria::transport {
namespace {

using verbs::Fails;
using verbs::SymbolRow;
using verbs::Symbols;

Symbols real_symbols;
int calls_until_failure = -1;  // negative: none fails
int calls_seen = 0;

bool is_this_the_one() {
  ++calls_seen;
  return calls_until_failure >= 0 && calls_until_failure-- == 0;
}

// Calls the real function, or fails the way that symbols.def says it fails.
template <auto Member>
struct Failing;
template <class Answer, class... Args, Answer (*Symbols::*Member)(Args...)>
struct Failing<Member> {
  static Answer call(Args... args) {
    if (is_this_the_one()) {
      if constexpr (SymbolRow<Member>::fails == Fails::by_null) {
        errno = ENOMEM;
        return nullptr;
      } else if constexpr (SymbolRow<Member>::fails == Fails::by_minus_one) {
        errno = EIO;
        return -1;
      } else {
        return ENOMEM;
      }
    }
    return (real_symbols.*Member)(args...);
  }
};

int (*real_post_recv)(ibv_qp*, ibv_recv_wr*, ibv_recv_wr**) = nullptr;
int failing_post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  if (is_this_the_one()) return ENOMEM;
  return real_post_recv(qp, wr, bad);
}
ibv_context* open_with_failing_posts(ibv_device* device) {
  ibv_context* context = Failing<&Symbols::open_device>::call(device);
  if (context != nullptr && context->ops.post_recv != &failing_post_recv) {
    real_post_recv = context->ops.post_recv;
    context->ops.post_recv = &failing_post_recv;
  }
  return context;
}

// What makes something; what gives it back must work, as on hardware.
Symbols failing_symbols() {
  Symbols symbols = real_symbols;
  symbols.get_device_list = &Failing<&Symbols::get_device_list>::call;
  symbols.open_device = &open_with_failing_posts;
  symbols.query_device = &Failing<&Symbols::query_device>::call;
  symbols.alloc_pd = &Failing<&Symbols::alloc_pd>::call;
  symbols.reg_mr = &Failing<&Symbols::reg_mr>::call;
  if (symbols.reg_mr_iova2 != nullptr)
    symbols.reg_mr_iova2 = &Failing<&Symbols::reg_mr_iova2>::call;
  symbols.create_comp_channel = &Failing<&Symbols::create_comp_channel>::call;
  symbols.create_cq = &Failing<&Symbols::create_cq>::call;
  symbols.create_qp = &Failing<&Symbols::create_qp>::call;
  symbols.modify_qp = &Failing<&Symbols::modify_qp>::call;
  return symbols;
}

void say_nothing(LogLevel, const char*) {}

Status last_failure;

// Checks that a failure says something; answers false, for the caller to return.
template <class T>
bool failed(const Result<T>& result, const std::string& text = "said by the status alone") {
  last_failure = result.failure();
  EXPECT_FALSE(last_failure.is_ok()) << "a failure that is ok";
  EXPECT_NE(text, "");
  return false;
}

// Sets up everything that one connection needs. True when all went well; else some step failed, and
// every failure had a status.
bool set_up_once(const std::shared_ptr<const verbs::Provider>& provider, const Params& params) {
  auto a = Domain::create(provider, params);
  if (!a.is_ok()) return failed(a);
  auto b = Domain::create(provider, params);
  if (!b.is_ok()) return failed(b);
  auto region = (*a)->allocate(4096);
  if (!region.is_ok()) return failed(region);
  auto listener = Listener::open(**b, "127.0.0.1", {});
  if (!listener.is_ok()) return failed(listener);
  auto connector = Connector::start(**a, (*listener)->handle(), {});
  if (!connector.is_ok()) return failed(connector);
  std::unique_ptr<SendConnection> send;
  std::unique_ptr<RecvConnection> recv;
  const Nanoseconds deadline = now_ns() + test::kPatience;
  while ((send == nullptr || recv == nullptr) && now_ns() < deadline) {
    if (recv == nullptr) {
      auto accepted = (*listener)->try_accept();
      if (!accepted.is_ok()) return failed(accepted, (*listener)->describe());
      recv = std::move(*accepted);
    }
    if (send == nullptr) {
      auto finished = (*connector)->try_finish();
      if (!finished.is_ok()) return failed(finished, (*connector)->describe());
      send = std::move(*finished);
    }
  }
  EXPECT_TRUE(send != nullptr && recv != nullptr) << "neither connected nor failed";
  return send != nullptr && recv != nullptr;
}

TEST(Transport_calls, Any_verbs_call_may_fail_and_nothing_is_left_behind) {
  const Params params = test::params_from_environment();
  auto library = SharedObject::open(params.ibverbs);
  ASSERT_TRUE(library.is_ok()) << library.failure();
  auto loaded = Symbols::load(*library);
  ASSERT_TRUE(loaded.is_ok()) << loaded.failure();
  real_symbols = *loaded;
  const auto api = verbs::Api::from_symbols(failing_symbols());
  const auto provider = verbs::make_provider(api, params.ibverbs, "", params);
  ASSERT_FALSE(provider->ports().empty());

  set_log_sink(&say_nothing);
  constexpr int kFarTooMany = 10000;
  int n = 0;
  for (bool is_up = false; !is_up && n < kFarTooMany; ++n) {
    calls_until_failure = n;
    calls_seen = 0;
    is_up = set_up_once(provider, params);
    calls_until_failure = -1;
    EXPECT_EQ(api->live_objects(), 0) << "after call " << n << " failed";
    EXPECT_EQ(api->failed_closes(), 0u) << "after call " << n << " failed";
    if (!is_up) {
      EXPECT_GT(calls_seen, n) << "a failure without a failed call";
    }
  }
  set_log_sink(&detail::write_to_stderr);
  EXPECT_LT(n, kFarTooMany);
  EXPECT_GT(n, 20) << "set-up has more points of failure than this";
}

int refuse_path(ibv_qp* qp, ibv_qp_attr* attr, int mask) {
  return attr->qp_state == IBV_QPS_RTR ? EINVAL : real_symbols.modify_qp(qp, attr, mask);
}

// What a device answers to an address that it cannot reach, as after a wrong GID index.
TEST(Transport_calls, A_path_that_the_device_refuses_is_nobodys_bad_argument) {
  const Params params = test::params_from_environment();
  auto library = SharedObject::open(params.ibverbs);
  ASSERT_TRUE(library.is_ok()) << library.failure();
  real_symbols = Symbols::load(*library).value();
  Symbols symbols = real_symbols;
  symbols.modify_qp = &refuse_path;
  const auto api = verbs::Api::from_symbols(symbols);

  set_log_sink(&say_nothing);
  const bool is_up = set_up_once(verbs::make_provider(api, params.ibverbs, "", params), params);
  set_log_sink(&detail::write_to_stderr);

  // Expect:
  EXPECT_FALSE(is_up);
  EXPECT_EQ(last_failure.code(), Code::connection_lost);
  EXPECT_EQ(last_failure.raw(), EINVAL);
  EXPECT_EQ(api->live_objects(), 0);
}

void* have_no_memory(ibv_context*, size_t) {
  errno = ENOMEM;
  return nullptr;
}

// As a network card's provider, which has none, and as one that has none left.
TEST(Transport_calls, Without_memory_that_peers_map_small_messages_land_in_place) {
  const Params params = test::params_from_environment();
  auto library = SharedObject::open(params.ibverbs);
  ASSERT_TRUE(library.is_ok()) << library.failure();
  real_symbols = Symbols::load(*library).value();
  for (const bool is_known : {false, true}) {
    Symbols symbols = real_symbols;
    symbols.noria_alloc = is_known ? &have_no_memory : nullptr;
    const auto api = verbs::Api::from_symbols(symbols);
    const auto provider = verbs::make_provider(api, params.ibverbs, "", params);
    const auto a = test::make_domain(provider, params);
    const auto b = test::make_domain(provider, params);
    ASSERT_TRUE(a != nullptr && b != nullptr);
    auto made = RegionState::allocate(*b->state().rails(), 4096, verbs::Ordering::strict);
    ASSERT_TRUE(made.is_ok());
    EXPECT_FALSE((*made)->is_mapped_by_peers());
    EXPECT_EQ(Staging::make(*b->state().rails()), nullptr);
  }
}

}  // namespace
}  // namespace noria::transport
