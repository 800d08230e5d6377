// Messages that are longer than a work request of the device may be: cut, carried and told whole.

#include <cstdlib>
#include <deque>
#include <map>

#include "base/log.hpp"
#include "tests/support/transport_pair.hpp"
#include "verbs/transport/domain_state.hpp"
#include "verbs/transport/port.hpp"
#include "verbs/transport/send.hpp"

namespace noria::transport {
namespace {

using test::Connected;
using test::first_wrong;
using test::paint;

// What the library was asked for: entries of completion queues, and work requests of the queue
// pairs that complete there. A request that is flushed completes, signalled or not.
struct Asked {
  verbs::Symbols library;
  std::map<const ibv_cq*, uint32_t> entries, requests;

  void expect_room() const {
    for (const auto& [cq, count] : requests) EXPECT_LE(count, entries.at(cq));
  }
} asked;

ibv_cq* create_and_note_cq(ibv_context* context, int cqe, void* owner, ibv_comp_channel* channel,
                           int vector) {
  ibv_cq* const made = asked.library.create_cq(context, cqe, owner, channel, vector);
  asked.entries[made] = static_cast<uint32_t>(cqe);
  return made;
}
ibv_qp* create_and_note_qp(ibv_pd* pd, ibv_qp_init_attr* attr) {
  asked.requests[attr->send_cq] += attr->cap.max_send_wr;
  asked.requests[attr->recv_cq] += attr->cap.max_recv_wr;
  return asked.library.create_qp(pd, attr);
}

class TransportLong : public test::TransportPair {
 protected:
  static void SetUpTestSuite() {
    setenv("NORIA_SOFT_DEVICES", "name=rail0,max_msg=1;name=rail1,rate=200,max_msg=4", 1);
  }
  // The one rail that each side uses.
  void use(const std::string& sender, const std::string& receiver) {
    a_ = domain_over(sender);
    b_ = domain_over(receiver);
  }

  void carry(Connected& link, uint64_t bytes) {
    std::vector<std::byte> source(bytes), target(bytes + 4096);
    paint(source.data(), bytes, bytes);
    const Region from = over(*a_, source), to = over(*b_, target);
    Request* const received = post_receive(link, to, 0, target.size());
    ASSERT_NE(received, nullptr);
    Request* sent = nullptr;
    ASSERT_TRUE(poll_until([&] {
      if (sent == nullptr) sent = link.send->try_send(from, 0, bytes);
      return sent != nullptr && sent->is_done() && received->is_done();
    })) << link.send->describe();
    EXPECT_TRUE(sent->status().is_ok());
    EXPECT_EQ(sent->bytes(), bytes);
    EXPECT_EQ(received->bytes(), bytes);
    EXPECT_EQ(first_wrong(target.data(), bytes, bytes), bytes);
    link.send->release(sent);
    link.recv->release(received);
  }

 private:
  std::unique_ptr<Domain> domain_over(const std::string& rail) {
    Params params = params_;
    params.hca = "=" + rail;
    const auto provider = verbs::make_provider(verbs::Api::from_symbols(provider_->api().symbols()),
                                               "the same", "", params);
    return test::make_domain(provider, params);
  }
};

TEST_F(TransportLong, A_message_of_several_work_requests_arrives_whole_and_of_its_length) {
  for (const bool is_one_rail : {false, true}) {
    if (is_one_rail) use("rail0", "rail0");
    Connected link = connect();
    ASSERT_NE(link.recv, nullptr);
    for (const uint64_t bytes : {1_MiB, 1_MiB + 1, 2_MiB, 9_MiB + 77, 33_MiB, uint64_t{5}})
      ASSERT_NO_FATAL_FAILURE(carry(link, bytes));
  }
}

TEST_F(TransportLong, Between_unlike_devices_the_one_that_takes_less_sets_the_parts) {
  for (const auto& [sender, receiver] : {std::array{"rail1", "rail0"}, {"rail0", "rail1"}}) {
    use(sender, receiver);
    Connected link = connect();
    ASSERT_NE(link.recv, nullptr);
    for (const uint64_t bytes : {1_MiB, 1_MiB + 1, 4_MiB, 9_MiB + 77})
      ASSERT_NO_FATAL_FAILURE(carry(link, bytes));
  }
}

TEST_F(TransportLong, Long_ones_go_one_by_one_between_others_in_order) {
  Connected link = connect();
  ASSERT_NE(link.recv, nullptr);
  constexpr uint64_t kBytes = 5_MiB + 3, kShort = 1000, kMessages = 40;
  std::vector<std::byte> source(kBytes), target(kMessages * kBytes);
  const Region from = over(*a_, source), to = over(*b_, target);
  paint(source.data(), kBytes, 1);
  const auto bytes_of = [](uint64_t i) { return i % 3 == 2 ? kShort : kBytes; };
  std::deque<Request*> received, sent;
  for (uint64_t i = 0; i < kMessages; ++i)
    received.push_back(post_receive(link, to, i * kBytes, kBytes));
  bool has_waited = false;
  ASSERT_TRUE(poll_until([&] {
    while (sent.size() < kMessages) {
      Request* const request = link.send->try_send(from, 0, bytes_of(sent.size()));
      has_waited |= request == nullptr;
      if (request == nullptr) break;
      sent.push_back(request);
    }
    return sent.size() == kMessages && sent.back()->is_done() && received.back()->is_done();
  })) << link.send->describe();
  // Expect: of two long ones in a row the second waited, as nobody had polled.
  EXPECT_TRUE(has_waited);
  for (uint64_t i = 0; i < kMessages; ++i) {
    EXPECT_TRUE(sent[i]->status().is_ok());
    EXPECT_EQ(received[i]->bytes(), bytes_of(i));
    EXPECT_EQ(first_wrong(target.data() + i * kBytes, bytes_of(i), 1), bytes_of(i));
    link.send->release(sent[i]);
    link.recv->release(received[i]);
  }
}

TEST_F(TransportLong, A_group_of_long_ones_is_no_more_than_one_at_a_time) {
  Connected link = connect();
  ASSERT_NE(link.recv, nullptr);
  constexpr uint64_t kBytes = 3_MiB + 1;
  std::vector<std::byte> source(kBytes), target(kMaxGroup * kBytes);
  const Region from = over(*a_, source), to = over(*b_, target);
  paint(source.data(), kBytes, 1);
  std::vector<RecvPart> parts;
  for (uint32_t i = 0; i < kMaxGroup; ++i)
    parts.push_back({.region = &to, .offset = i * kBytes, .bytes = kBytes, .tag = i});
  Request* const received = link.recv->try_recv_group(parts);
  ASSERT_NE(received, nullptr);
  std::vector<Request*> sent;
  ASSERT_TRUE(poll_until([&] {
    if (sent.size() < kMaxGroup) {
      const auto tag = static_cast<uint32_t>(kMaxGroup - 1 - sent.size());
      Request* const request = link.send->try_send(from, 0, kBytes, tag);
      if (request != nullptr) sent.push_back(request);
    }
    return sent.size() == kMaxGroup && received->is_done();
  })) << link.send->describe();
  ASSERT_TRUE(poll_until([&] { return sent.back()->is_done() && sent.front()->is_done(); }));
  for (uint32_t i = 0; i < kMaxGroup; ++i) {
    EXPECT_EQ(link.recv->part_bytes(received, i), kBytes);
    EXPECT_EQ(first_wrong(target.data() + i * kBytes, kBytes, 1), kBytes);
    link.send->release(sent[i]);
  }
  link.recv->release(received);
}

TEST_F(TransportLong, Completion_queues_have_room_for_all_that_is_flushed) {
  asked = {.library = provider_->api().symbols(), .entries = {}, .requests = {}};
  verbs::Symbols symbols = asked.library;
  symbols.create_cq = &create_and_note_cq;
  symbols.create_qp = &create_and_note_qp;
  const auto noted =
      verbs::make_provider(verbs::Api::from_symbols(symbols), "the same, noted", "", params_);

  // A domain for all, by its senders up to the last that it takes.
  a_ = test::make_domain(noted, params_);
  std::vector<std::unique_ptr<SendState>> senders;
  set_log_level(LogLevel::none);
  while (true) {
    auto sender = SendState::make(a_->state(), {}, {});
    if (!sender.is_ok()) {
      EXPECT_EQ(sender.failure().code(), Code::no_memory);
      break;
    }
    senders.push_back(std::move(*sender));
  }
  set_log_level(LogLevel::warn);
  EXPECT_GE(senders.size(), 8u);
  asked.expect_room();
  senders.clear();
  asked.requests.clear();

  // Domains for one, of each side.
  std::vector<std::shared_ptr<Port>> ports;
  for (const verbs::PortInfo& info : noted->ports()) {
    auto port = Port::open(noted, info);
    ASSERT_TRUE(port.is_ok());
    ports.push_back(std::move(*port));
  }
  for (auto* domain : {&a_, &b_}) {
    auto made = Domain::create_for_one(ports, params_);
    ASSERT_TRUE(made.is_ok());
    *domain = std::move(*made);
  }
  ports.clear();
  const Connected link = connect();
  ASSERT_NE(link.recv, nullptr);
  EXPECT_FALSE(asked.requests.empty());
  asked.expect_room();
}

TEST_F(TransportLong, One_that_has_no_room_or_no_memory_is_refused_as_any_other) {
  Connected link = connect();
  ASSERT_NE(link.recv, nullptr);
  const Region from = allocate(*a_, 4_MiB), to = allocate(*b_, 4_MiB);
  Request* const received = post_receive(link, to, 0, 2_MiB);
  for (const auto& [offset, bytes] : {std::array<uint64_t, 2>{0, 3_MiB}, {3_MiB, 2_MiB}}) {
    Request* sent = nullptr;
    ASSERT_TRUE(poll_until([&, at = offset, length = bytes] {
      return (sent = link.send->try_send(from, at, length)) != nullptr;
    }));
    EXPECT_EQ(sent->status().code(), Code::bad_argument);
    link.send->release(sent);
  }
  Request* sent = link.send->try_send(from, 0, 2_MiB);
  ASSERT_NE(sent, nullptr);
  ASSERT_TRUE(poll_until([&] { return sent->is_done() && received->is_done(); }));
  EXPECT_TRUE(sent->status().is_ok());
  link.send->release(sent);
  link.recv->release(received);
}

}  // namespace
}  // namespace noria::transport
