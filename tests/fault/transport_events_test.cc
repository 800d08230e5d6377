// What a device reports of its own accord: each is a line, what is lost ends its connections at
// once, and a port that is reached otherwise is asked how before the next connection.

#include <cerrno>
#include <cstdlib>
#include <deque>

#include "base/log.hpp"
#include "tests/support/transport_pair.hpp"
#include "verbs/transport/port.hpp"

namespace noria::transport {
namespace {

using test::Connected;
using verbs::Symbols;

// What the device reports next, and what was made on it.
std::deque<ibv_async_event> reported;
std::vector<ibv_qp*> qps;
std::vector<ibv_cq*> cqs;
int acknowledged = 0;
bool is_unplugged = false;
Port* failed_before = nullptr;  // here stood queues that failed, where the next ones are made
std::optional<uint8_t> last_byte_of_gid;
std::vector<std::string> lines;
Symbols real;

int take_reported(ibv_context*, ibv_async_event* event) {
  if (reported.empty()) {
    errno = is_unplugged ? EIO : EAGAIN;
    return -1;
  }
  *event = reported.front();
  reported.pop_front();
  return 0;
}
void take_failure(ibv_async_event event, ibv_event_type type) {
  event.event_type = type;
  reported.push_back(event);
  failed_before->take_events();
}
ibv_qp* make_qp(ibv_pd* pd, ibv_qp_init_attr* attr) {
  qps.push_back(real.create_qp(pd, attr));
  if (failed_before != nullptr) take_failure({.element = {.qp = qps.back()}}, IBV_EVENT_QP_FATAL);
  return qps.back();
}
ibv_cq* make_cq(ibv_context* context, int entries, void* data, ibv_comp_channel* channel,
                int vector) {
  cqs.push_back(real.create_cq(context, entries, data, channel, vector));
  if (failed_before != nullptr) take_failure({.element = {.cq = cqs.back()}}, IBV_EVENT_CQ_ERR);
  return cqs.back();
}
int tell_gid(ibv_context* context, uint8_t port, int index, ibv_gid* gid) {
  const int answer = real.query_gid(context, port, index, gid);
  if (last_byte_of_gid) gid->raw[15] = *last_byte_of_gid;
  return answer;
}

ibv_async_event event_of(ibv_event_type type, int port = 1) {
  ibv_async_event event{};
  event.event_type = type;
  event.element.port_num = port;
  return event;
}

class TransportEvents : public test::TransportPair {
 protected:
  void SetUp() override {
    test::TransportPair::SetUp();
    reported.clear();
    qps.clear();
    cqs.clear();
    acknowledged = 0;
    is_unplugged = false;
    failed_before = nullptr;
    last_byte_of_gid.reset();
    lines.clear();
    Symbols symbols = real = provider_->api().symbols();
    symbols.get_async_event = &take_reported;
    symbols.ack_async_event = [](ibv_async_event*) { ++acknowledged; };
    symbols.create_qp = &make_qp;
    symbols.create_cq = &make_cq;
    symbols.query_gid = &tell_gid;
    library_ = provider_;
    a_.reset();
    b_.reset();
    provider_ = verbs::make_provider(verbs::Api::from_symbols(symbols), "changed", "", params_);
    set_log_sink([](LogLevel, const char* text) { lines.push_back(text); });
    set_log_level(LogLevel::info);
  }
  void TearDown() override {
    set_log_sink(&detail::write_to_stderr);
    set_log_level(LogLevel::warn);
    test::TransportPair::TearDown();
  }
  // Of one port, shared as the plugin shares it.
  void make_domains() {
    ports_ = std::make_unique<OpenPorts>(provider_);
    const auto port = ports_->open(provider_->ports().front());
    ASSERT_TRUE(port.is_ok());
    make_domains_of(*port);
  }
  void make_domains_of(const std::shared_ptr<Port>& port) {
    for (auto* domain : {&a_, &b_}) {
      auto made = Domain::create_for_one({&port, 1}, params_);
      ASSERT_TRUE(made.is_ok());
      *domain = std::move(*made);
    }
  }
  // As many looks as it takes until the devices were looked at.
  void look() {
    for (int i = 0; i < 5000; ++i) a_->poll(), b_->poll();
  }
  size_t count_lines(const std::string& words) const {
    size_t count = 0;
    for (const std::string& line : lines)
      if (line.find(words) != std::string::npos) ++count;
    return count;
  }

  std::shared_ptr<const verbs::Provider> library_;
  std::unique_ptr<OpenPorts> ports_;
};

TEST_F(TransportEvents, A_device_that_failed_ends_its_connections_with_nothing_in_flight) {
  make_domains();
  const Connected link = connect();
  ASSERT_NE(link.recv, nullptr);
  reported.push_back(event_of(IBV_EVENT_DEVICE_FATAL));
  look();
  EXPECT_EQ(link.send->status().code(), Code::device_lost);
  EXPECT_EQ(link.recv->status().code(), Code::device_lost);
  EXPECT_NE(link.send->describe().find("noria0 port 1: the device is lost"), std::string::npos)
      << link.send->describe();
  EXPECT_EQ(count_lines("noria0 reported: device failed (event 8)"), 1u);
  EXPECT_EQ(acknowledged, 1);
  // The next connection is over the device as it is then.
  const auto lost = ports_->open(provider_->ports().front());
  ASSERT_TRUE(lost.is_ok());
  EXPECT_FALSE((*lost)->events().is_device_lost());
}

TEST_F(TransportEvents, A_device_that_was_pulled_out_is_one_that_failed) {
  make_domains();
  const Connected link = connect();
  ASSERT_NE(link.recv, nullptr);
  is_unplugged = true;
  look();
  EXPECT_EQ(link.send->status().code(), Code::device_lost);
  is_unplugged = false;
}

TEST_F(TransportEvents, A_queue_pair_that_failed_ends_its_connection_alone) {
  a_ = test::make_domain(provider_, params_);
  b_ = test::make_domain(provider_, params_);
  const Connected first = connect(), second = connect();
  ASSERT_NE(first.recv, nullptr);
  ASSERT_NE(second.recv, nullptr);
  ibv_async_event event = event_of(IBV_EVENT_QP_FATAL);
  event.element.qp = qps.front();  // of the first connection's sender
  reported.push_back(event);
  for (int i = 0; i < 5000; ++i) a_->poll();
  EXPECT_EQ(first.send->status().code(), Code::device_lost);
  EXPECT_NE(first.send->describe().find("the device gave up the queue pair"), std::string::npos)
      << first.send->describe();
  EXPECT_TRUE(second.send->status().is_ok()) << second.send->describe();
  EXPECT_TRUE(second.recv->status().is_ok()) << second.recv->describe();
  EXPECT_EQ(count_lines("noria0 reported: queue pair failed (event 1)"), 1u);
}

TEST_F(TransportEvents, A_loss_that_was_read_as_another_connection_failed_lets_nobody_sleep) {
  a_ = test::make_domain(provider_, params_);
  b_ = test::make_domain(provider_, params_);
  const Connected first = connect();
  ibv_qp* const of_first = qps.back();  // of its receiver
  const Connected second = connect();
  ibv_qp* const of_second = qps.back();
  ASSERT_NE(first.recv, nullptr);
  ASSERT_NE(second.recv, nullptr);
  ibv_async_event event = event_of(IBV_EVENT_QP_FATAL);
  event.element.qp = of_second;
  reported.push_back(event);
  ibv_qp_attr to_error{.qp_state = IBV_QPS_ERR};
  ASSERT_EQ(real.modify_qp(of_first, &to_error, IBV_QP_STATE), 0);
  while (!reported.empty()) b_->poll();
  EXPECT_FALSE(first.recv->status().is_ok());

  const Nanoseconds deadline = now_ns() + test::kPatience;
  while (second.recv->status().is_ok() && now_ns() < deadline)
    ASSERT_TRUE(b_->arm_and_wait(deadline, -1).is_ok());
  EXPECT_EQ(second.recv->status().code(), Code::device_lost);
  EXPECT_LT(now_ns(), deadline);
}

TEST_F(TransportEvents, A_completion_queue_that_failed_ends_the_connections_of_its_domain) {
  make_domains();
  const Connected link = connect();
  ASSERT_NE(link.recv, nullptr);
  ibv_async_event event = event_of(IBV_EVENT_CQ_ERR);
  event.element.cq = cqs.front();
  reported.push_back(event);
  for (int i = 0; i < 5000; ++i) a_->poll();
  EXPECT_EQ(link.send->status().code(), Code::device_lost);
  EXPECT_NE(link.send->describe().find("the completion queue of noria0 failed"), std::string::npos)
      << link.send->describe();
}

TEST_F(TransportEvents, A_queue_is_not_taken_for_one_that_failed_at_its_address) {
  ports_ = std::make_unique<OpenPorts>(provider_);
  const auto port = ports_->open(provider_->ports().front());
  ASSERT_TRUE(port.is_ok());
  failed_before = port->get();
  make_domains_of(*port);
  const Connected link = connect();
  ASSERT_NE(link.recv, nullptr);
  failed_before = nullptr;
  look();
  // Expect: no queue of ours counts as failed.
  EXPECT_TRUE(link.send->status().is_ok()) << link.send->describe();
  EXPECT_TRUE(link.recv->status().is_ok()) << link.recv->describe();
  EXPECT_FALSE((*port)->events().is_any_broken());
}

TEST_F(TransportEvents, A_port_that_is_reached_otherwise_is_asked_how_before_the_next_connection) {
  ports_ = std::make_unique<OpenPorts>(provider_);
  const verbs::PortInfo info = provider_->ports().front();
  const auto port = ports_->open(info);
  ASSERT_TRUE(port.is_ok());
  const ibv_gid before = (*port)->device().gid;
  last_byte_of_gid = static_cast<uint8_t>(before.raw[15] ^ 1);
  EXPECT_EQ(*ports_->open(info), *port);
  EXPECT_EQ((*port)->device().gid.raw[15], before.raw[15]) << "nothing was reported";

  for (const ibv_event_type type : {IBV_EVENT_GID_CHANGE, IBV_EVENT_LID_CHANGE,
                                    IBV_EVENT_PORT_ACTIVE, IBV_EVENT_CLIENT_REREGISTER}) {
    last_byte_of_gid = static_cast<uint8_t>(*last_byte_of_gid + 1);
    reported.push_back(event_of(type));
    // Expect: the same port, so that what was registered there serves still.
    EXPECT_EQ(*ports_->open(info), *port);
    EXPECT_EQ((*port)->device().gid.raw[15], *last_byte_of_gid) << type;
  }
  EXPECT_EQ(count_lines("noria0 port 1 reported: gid table changed"), 1u);
}

TEST_F(TransportEvents, Another_port_of_the_device_is_nobodys_business) {
  make_domains();
  reported.push_back(event_of(IBV_EVENT_PORT_ERR, 2));
  look();
  EXPECT_TRUE(reported.empty());
  EXPECT_TRUE(lines.empty()) << lines.front();
}

TEST_F(TransportEvents, What_flaps_without_end_is_said_a_few_times) {
  make_domains();
  for (int i = 0; i < 1000; ++i) reported.push_back(event_of(IBV_EVENT_PORT_ERR));
  reported.push_back(event_of(IBV_EVENT_SQ_DRAINED));  // and what nobody asked for never
  look();
  EXPECT_TRUE(reported.empty());
  EXPECT_EQ(count_lines("noria0 port 1 reported: port down"), PortEvents::kLinesAtOnce);
  EXPECT_EQ(lines.size(), PortEvents::kLinesAtOnce);
}

}  // namespace
}  // namespace noria::transport
