// Every point of failure in set-up: the n-th verbs call fails, for n = 0, 1, 2 ... until a whole
// connection succeeds. Each time a clean failure, and an empty ledger.

#include <arpa/inet.h>

#include <cerrno>
#include <optional>
#include <tuple>

#include "base/log.hpp"
#include "tests/support/transport_pair.hpp"
#include "verbs/transport/domain_state.hpp"
#include "verbs/transport/staging.hpp"
#include "verbs/transport/wire.hpp"

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

// What a peer of another build might do to the announcement of a message.
enum class Lie { none, long_piece, wrong_record, other_message };
Lie lie = Lie::none;

int (*real_post_send)(ibv_qp*, ibv_send_wr*, ibv_send_wr**) = nullptr;
int post_lie(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
  for (ibv_send_wr* each = wr; each != nullptr; each = each->next) {
    if (each->opcode != IBV_WR_RDMA_WRITE_WITH_IMM) continue;
    if (lie == Lie::long_piece) ++each->sg_list->length;
    if (lie == Lie::wrong_record) *reinterpret_cast<wire::Record*>(each->sg_list->addr) += 1;
    if (lie == Lie::other_message) each->imm_data ^= htonl(kWindow);
  }
  return real_post_send(qp, wr, bad);
}
ibv_context* open_with_lies(ibv_device* device) {
  ibv_context* const context = real_symbols.open_device(device);
  if (context != nullptr && context->ops.post_send != &post_lie) {
    real_post_send = context->ops.post_send;
    context->ops.post_send = &post_lie;
  }
  return context;
}

class TransportLies : public test::TransportPair {
 protected:
  void SetUp() override {
    params_ = test::params_from_environment();
    auto library = SharedObject::open(params_.ibverbs);
    ASSERT_TRUE(library.is_ok()) << library.failure();
    library_.emplace(std::move(*library));
    real_symbols = Symbols::load(*library_).value();
    Symbols symbols = real_symbols;
    symbols.open_device = &open_with_lies;
    provider_ =
        verbs::make_provider(verbs::Api::from_symbols(symbols), params_.ibverbs, "", params_);
    params_.adaptive_threshold_bytes = 0;
  }
  void TearDown() override {
    TransportPair::TearDown();
    provider_.reset();  // before its library goes
  }
  // What the receiver says of a message of 32 bytes in a receive of as many.
  std::string told_of(Lie which, const char* adaptive_routing, bool is_staged) {
    params_.adaptive_routing = adaptive_routing;
    a_ = test::make_domain(provider_, params_);
    b_ = test::make_domain(provider_, params_);
    test::Connected link = connect({.has_kept_regions = is_staged});
    if (link.recv == nullptr) return "not connected";
    std::vector<std::byte> source(64), target(64);
    const Region from = over(*a_, source), to = over(*b_, target);
    Request* const received = link.recv->try_recv(to, 0, 32);
    EXPECT_NE(received, nullptr);
    lie = which;
    Request* sent = nullptr;
    EXPECT_TRUE(poll_until([&] {
      if (sent == nullptr) sent = link.send->try_send(from, 0, 32);
      return sent != nullptr && received->is_done();
    }));
    lie = Lie::none;
    EXPECT_EQ(received->status().code(), Code::mismatch);
    if (is_staged) {
      EXPECT_EQ(target, std::vector<std::byte>(64)) << "what is refused is not delivered";
    }
    return link.recv->describe();
  }

 private:
  std::optional<SharedObject> library_;
};

TEST_F(TransportLies, A_piece_or_a_record_of_more_than_was_offered_fails_the_connection) {
  for (const bool is_staged : {false, true}) {
    for (const auto& [which, adaptive_routing, part] :
         {std::tuple{Lie::long_piece, "off", "more bytes than were offered"},
          std::tuple{Lie::wrong_record, "on", "more bytes than were offered"},
          std::tuple{Lie::other_message, "off", "no message that is awaited"},
          std::tuple{Lie::other_message, "on", "no message that is awaited"}}) {
      const std::string told = told_of(which, adaptive_routing, is_staged);
      EXPECT_NE(told.find(part), std::string::npos) << told;
    }
  }
}

}  // namespace
}  // namespace noria::transport
