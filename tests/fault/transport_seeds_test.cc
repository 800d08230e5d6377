// Random messages between two domains of one process, with faults, over two rails, on a clock that
// stands (ibv_noria_turn): four seconds of retries take none.
//
// What must hold of every run: messages arrive whole, once, in order, and as long as they were; a
// connection fails only where a fault is set, with words that name the peer; then all its requests
// are done; nothing hangs, in virtual time; everything is given back. A seed gives the same run
// again, up to the first failure: the word of it travels by TCP, which keeps its own time.
#include <algorithm>
#include <cinttypes>
#include <cstdlib>
#include <deque>

#include "base/units.hpp"
#include "tests/support/seed_plan.hpp"
#include "tests/support/seed_runner.hpp"
#include "tests/support/transport_pair.hpp"
#include "tests/support/verbs_fixture.hpp"

namespace noria::test {
namespace {

using transport::ConnectOptions;
using transport::Connector;
using transport::Domain;
using transport::kWindow;
using transport::Listener;
using transport::Region;
using transport::Request;

constexpr Nanoseconds kStart = 1_s;
constexpr Nanoseconds kLimit = 10000_s;
constexpr uint64_t kRoom = 32_KiB;  // of a message
constexpr int kIdleRounds = 50000;  // the control socket is looked at on every 4096th

// One direction: its connection and what is under way on it.
struct Flow {
  std::unique_ptr<transport::SendConnection> send;
  std::unique_ptr<transport::RecvConnection> recv;
  Region out, in;
  struct Message {
    Request* request;
    uint64_t bytes;
  };
  std::deque<Message> sending;
  std::deque<Request*> receiving;
  std::deque<uint64_t> lengths;  // of messages that are still to arrive
  uint64_t sent = 0, posted = 0, received = 0, wanted = 0;
  bool has_failed = false;

  bool is_over() const { return has_failed || (received == wanted && sending.empty()); }
};

class TransportRun {
 public:
  TransportRun(uint64_t seed, bool prints)
      : draw_(seed), plan_(draw_plan(draw_)), prints_(prints) {}
  SeedReport go();

 private:
  void set_world();
  bool set_up();
  bool connect(Flow& flow, Domain& from, Domain& to);
  void act(Flow& flow);
  void send_one(Flow& flow);
  bool collect(uint64_t number, Flow& flow);
  bool collect_sent(uint64_t number, Flow& flow);
  bool collect_received(uint64_t number, Flow& flow);
  void on_failure(uint64_t number, Flow& flow);
  void run_flows();
  void see(const char* what, uint64_t a, uint64_t b);
  void expect(bool holds, const char* what);
  uint64_t paint_of(const Flow& flow, uint64_t message) const {
    return static_cast<uint64_t>(&flow - flows_.data()) << 32 | message;
  }

  Draw draw_;
  const SeedPlan plan_;
  const bool prints_;
  Nanoseconds now_ = kStart;
  SeedReport report_;
  std::shared_ptr<const verbs::Provider> provider_;
  std::unique_ptr<Domain> near_, far_;
  std::vector<Flow> flows_;
};

void TransportRun::see(const char* what, uint64_t a, uint64_t b) {
  if (prints_)
    std::printf("%12.3f us  %s %" PRIu64 " %" PRIu64 "\n", static_cast<double>(now_) / 1000, what,
                a, b);
  if (report_.failures > 0) return;  // from here on TCP has a word
  for (const uint64_t value : {static_cast<uint64_t>(now_), static_cast<uint64_t>(*what), a, b})
    report_.trace = (report_.trace ^ value) * 0x100000001b3;
}

void TransportRun::expect(bool holds, const char* what) {
  if (!holds && report_.wrong[0] == 0)
    std::snprintf(report_.wrong, sizeof report_.wrong, "%s (at %" PRId64 " ns)", what, now_);
}

void TransportRun::set_world() {
  test::set_world(plan_);
  ::setenv("NORIA_STRIPE_MIN", "4K", 1);
  if (prints_)
    std::printf("place %s, %s Gbit/s, %s us, faults '%s'\n", plan_.place.c_str(),
                plan_.rate_gbit.c_str(), plan_.latency_us.c_str(), plan_.faults.c_str());
}

bool TransportRun::connect(Flow& flow, Domain& from, Domain& to) {
  const ConnectOptions options{.peer_name = "rank 5",
                               .qps = static_cast<uint32_t>(draw_.between(1, 4)),
                               .ack_timeout = plan_.ack_timeout,
                               .retries = plan_.retry_count};
  auto listener = Listener::open(to, "127.0.0.1", options);
  if (!listener.is_ok()) return false;
  auto connector = Connector::start(from, (*listener)->handle(), options);
  if (!connector.is_ok()) return false;
  const Nanoseconds deadline = now_ns() + kPatience;  // sockets keep the host's time
  while (flow.send == nullptr || flow.recv == nullptr) {
    if (flow.send == nullptr) {
      auto sent = (*connector)->try_finish();
      if (!sent.is_ok()) return false;
      flow.send = std::move(*sent);
    }
    if (flow.recv == nullptr) {
      auto received = (*listener)->try_accept();
      if (!received.is_ok()) return false;
      flow.recv = std::move(*received);
    }
    if (now_ns() > deadline) return false;
  }
  return true;
}

// False where a call that makes something fails, as a fault may want it.
bool TransportRun::set_up() {
  provider_ = provider_from_environment();
  for (auto* domain : {&near_, &far_}) {
    auto made = Domain::create(provider_, params_from_environment(), 2);
    if (!made.is_ok()) return false;
    *domain = std::move(*made);
  }
  flows_ = std::vector<Flow>(draw_.between(1, 3));
  for (size_t i = 0; i < flows_.size(); ++i) {
    Domain& from = i % 2 == 0 ? *near_ : *far_;
    Domain& to = i % 2 == 0 ? *far_ : *near_;
    auto out = from.allocate(kWindow * kRoom), in = to.allocate(kWindow * kRoom);
    if (!out.is_ok() || !in.is_ok() || !connect(flows_[i], from, to)) return false;
    flows_[i].out = std::move(*out);
    flows_[i].in = std::move(*in);
    flows_[i].wanted = draw_.between(5, 60);
  }
  return true;
}

void TransportRun::send_one(Flow& flow) {
  if (flow.sent == flow.wanted || flow.sending.size() == kWindow) return;
  const uint64_t bytes = draw_.one_in(4) ? draw_.below(kRoom + 1) : draw_.below(2000);
  const uint64_t at = flow.sent % kWindow * kRoom;
  paint(flow.out.base() + at, bytes, paint_of(flow, flow.sent));
  const bool is_inline = bytes <= transport::SendConnection::kInlineBytes && draw_.one_in(2);
  Request* request =
      is_inline ? flow.send->try_send_inline(flow.out.base() + at, static_cast<uint32_t>(bytes))
                : flow.send->try_send(flow.out, at, bytes);
  if (request == nullptr) return;
  flow.sending.push_back({request, bytes});
  flow.lengths.push_back(bytes);
  ++flow.sent;
}

void TransportRun::act(Flow& flow) {
  if (flow.has_failed) return;
  for (uint64_t count = draw_.below(4); count > 0; --count) send_one(flow);
  for (uint64_t count = draw_.below(4); count > 0 && flow.posted < flow.wanted; --count) {
    if (flow.receiving.size() == kWindow) break;
    Request* request = flow.recv->try_recv(flow.in, flow.posted % kWindow * kRoom, kRoom);
    if (request == nullptr) break;
    flow.receiving.push_back(request);
    ++flow.posted;
  }
}

bool TransportRun::collect_sent(uint64_t number, Flow& flow) {
  bool has_come = false;
  for (; !flow.sending.empty() && flow.sending.front().request->is_done(); has_come = true) {
    const Flow::Message message = flow.sending.front();
    if (!message.request->status().is_ok()) break;
    expect(message.request->bytes() == message.bytes, "a send forgot its length");
    flow.send->release(message.request);
    flow.sending.pop_front();
    ++report_.completions;
    see("sent", number, message.bytes);
  }
  return has_come;
}

bool TransportRun::collect_received(uint64_t number, Flow& flow) {
  bool has_come = false;
  for (; !flow.receiving.empty() && flow.receiving.front()->is_done(); has_come = true) {
    Request* request = flow.receiving.front();
    if (!request->status().is_ok()) break;
    expect(!flow.lengths.empty(), "a message arrived that nobody sent");
    if (flow.lengths.empty()) break;
    const uint64_t bytes = flow.lengths.front();
    const std::byte* at = flow.in.base() + flow.received % kWindow * kRoom;
    expect(request->bytes() == bytes, "a message has another length than it was sent with");
    expect(first_wrong(at, bytes, paint_of(flow, flow.received)) == bytes,
           "a message arrived and its bytes did not");
    flow.recv->release(request);
    flow.receiving.pop_front();
    flow.lengths.pop_front();
    ++flow.received;
    ++report_.completions;
    see("received", number, bytes);
  }
  return has_come;
}

// A failure of either end ends both, once each has heard of it.
void TransportRun::on_failure(uint64_t number, Flow& flow) {
  ++report_.failures;
  flow.has_failed = true;
  for (const auto& [status, words] : {std::pair(flow.send->status(), flow.send->describe()),
                                      std::pair(flow.recv->status(), flow.recv->describe())}) {
    const Code code = status.code();
    see("failed", number, static_cast<uint64_t>(code));
    if (prints_) std::printf("%s\n", words.c_str());
    expect(!plan_.is_quiet(), "a connection fails though no fault is set");
    expect(code == Code::connection_lost || code == Code::port_down || code == Code::device_lost ||
               code == Code::peer_lost,
           "a failure has a code that says nothing");
    expect(words.find("rank 5") != std::string::npos && words.size() > 40,
           "a failure is not told in words");
  }
  for (const Flow::Message& message : flow.sending)
    expect(message.request->is_done(), "a send is under way on a connection that failed");
  for (const Request* request : flow.receiving)
    expect(request->is_done(), "a receive is under way on a connection that failed");
}

bool TransportRun::collect(uint64_t number, Flow& flow) {
  if (flow.has_failed) return false;
  const bool has_sent = collect_sent(number, flow);
  const bool has_received = collect_received(number, flow);
  if (!flow.send->status().is_ok() && !flow.recv->status().is_ok()) on_failure(number, flow);
  return has_sent || has_received;
}

void TransportRun::run_flows() {
  const auto is_over = [](const Flow& flow) { return flow.is_over(); };
  int idle = 0;
  while (report_.wrong[0] == 0 && !std::all_of(flows_.begin(), flows_.end(), is_over)) {
    for (Flow& flow : flows_) act(flow);
    bool has_come = near_->poll() + far_->poll() > 0;
    for (size_t i = 0; i < flows_.size(); ++i) has_come |= collect(i, flows_[i]);
    const Nanoseconds next = verbs().noria_turn(now_);
    idle = has_come ? 0 : idle + 1;
    expect(idle < kIdleRounds, "messages wait, and nothing moves");
    expect(now_ < kLimit, "messages wait beyond every limit");
    if (idle > 4 && next < kLimit) now_ = std::max(now_, next);
  }
}

SeedReport TransportRun::go() {
  set_world();
  verbs().noria_turn(now_);
  if (set_up())
    run_flows();
  else
    expect(!plan_.is_quiet(), "set-up fails though no fault is set");
  flows_.clear();
  near_.reset();
  far_.reset();
  expect(provider_->api().live_objects() == 0, "something was not given back");
  return report_;
}

SeedReport run_transport_seed(uint64_t seed, bool prints) {
  return TransportRun(seed, prints).go();
}

TEST(TransportSeeds, What_must_hold_holds_in_every_run) {
  const SeedTotals totals = run_all_seeds();
  EXPECT_EQ(totals.wrong, "");
  EXPECT_GT(totals.completions, totals.seeds * 20);
  EXPECT_GT(totals.failures, totals.seeds / 5);
}

TEST(TransportSeeds, A_seed_gives_the_same_run_again) {
  EXPECT_EQ(differing_seeds(20), "");
  EXPECT_NE(report_of(1).trace, report_of(2).trace);
}

}  // namespace
}  // namespace noria::test

int main(int argc, char** argv) {
  noria::test::verbs();  // loaded before any fork
  return noria::test::run_seed_tests(argc, argv, &noria::test::run_transport_seed, 1000);
}
