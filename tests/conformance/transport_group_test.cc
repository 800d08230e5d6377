// Groups: one receive of several messages, matched by tag. Both ends in one process; each runs in
// every way of tests/conformance/transport.cmake.

#include <algorithm>
#include <array>
#include <vector>

#include "tests/support/transport_pair.hpp"
#include "verbs/transport/send.hpp"

namespace noria::transport {
namespace {

using test::Connected;
using test::first_wrong;
using test::paint;

constexpr uint64_t kRoom = 300'000;  // of a part; above it messages are striped in some ways
constexpr std::byte kUntouched{0xee};

class TransportGroup : public test::TransportPair {
 protected:
  void SetUp() override {
    test::TransportPair::SetUp();
    ASSERT_NO_FATAL_FAILURE(link_ = connect({.peer_name = "rank 1"}));
    ASSERT_NE(link_.recv, nullptr);
    from_ = over(*a_, source_);
    to_ = over(*b_, target_);
    std::fill(target_.begin(), target_.end(), kUntouched);
  }
  void TearDown() override {
    from_ = Region();
    to_ = Region();
    link_ = {};
    test::TransportPair::TearDown();
  }

  // A receive with a part for each tag; part i lands at i * kRoom.
  Request* receive(const std::vector<uint32_t>& tags, uint64_t bytes = kRoom) {
    std::vector<RecvPart> parts;
    for (const uint32_t tag : tags)
      parts.push_back({.region = &to_, .offset = parts.size() * kRoom, .bytes = bytes, .tag = tag});
    return link_.recv->try_recv_group(parts);
  }
  // Sends so many bytes of a pattern of this seed, as soon as there is a receive for the tag.
  Request* send(uint32_t tag, uint64_t bytes, uint64_t seed) {
    const uint64_t offset = seed * kRoom;
    paint(source_.data() + offset, bytes, seed);
    Request* request = nullptr;
    EXPECT_TRUE(poll_until([&] {
      return (request = link_.send->try_send(from_, offset, bytes, tag)) != nullptr;
    })) << "tag "
        << tag;
    return request;
  }
  // What a send answers once all that the receiver offered is known.
  Request* send_now(uint32_t tag) {
    Request* request = nullptr;
    for (int i = 0; i < 1000 && request == nullptr; ++i) {
      request = link_.send->try_send(from_, 0, 1, tag);
      a_->poll();
      b_->poll();
    }
    return request;
  }
  bool finish(const std::vector<Request*>& requests) {
    return poll_until([&] {
      return std::all_of(requests.begin(), requests.end(), [](Request* r) { return r->is_done(); });
    });
  }
  void expect_part(const Request* received, uint32_t part, uint64_t bytes, uint64_t seed) {
    EXPECT_EQ(link_.recv->part_bytes(received, part), bytes) << "part " << part;
    const std::byte* const at = target_.data() + part * kRoom;
    EXPECT_EQ(first_wrong(at, bytes, seed), bytes) << "part " << part;
    EXPECT_TRUE(std::all_of(at + bytes, at + kRoom, [](std::byte b) { return b == kUntouched; }))
        << "behind part " << part;
  }

  std::vector<std::byte> source_ = std::vector<std::byte>(kMaxGroup * kRoom);
  std::vector<std::byte> target_ = std::vector<std::byte>(kMaxGroup * kRoom);
  Connected link_;
  Region from_, to_;
};

TEST_F(TransportGroup, Messages_find_their_places_by_tag_in_any_order) {
  static constexpr std::array<uint64_t, kMaxGroup> kBytes{0, 1, 4096, 299'999, 17, 130'000, 8, 64};
  std::vector<uint32_t> tags;
  for (uint32_t i = 0; i < kMaxGroup; ++i) tags.push_back(100 + i);
  for (uint32_t round = 0; round < 5; ++round) {
    std::fill(target_.begin(), target_.end(), kUntouched);
    Request* const received = receive(tags);
    ASSERT_NE(received, nullptr);
    std::vector<Request*> sent;
    for (uint32_t k = 0; k < kMaxGroup; ++k) {
      // Another order in each round.
      const uint32_t part = (k * 3 + round) % kMaxGroup;
      ASSERT_NE(sent.emplace_back(send(tags[part], kBytes[part], part)), nullptr);
    }
    ASSERT_TRUE(finish(sent) && finish({received})) << link_.recv->describe();
    // Expect: each in its place, with its own length.
    for (uint32_t part = 0; part < kMaxGroup; ++part)
      expect_part(received, part, kBytes[part], part);
    for (uint32_t k = 0; k < kMaxGroup; ++k)
      EXPECT_EQ(sent[k]->bytes(), kBytes[(k * 3 + round) % kMaxGroup]);
    for (Request* request : sent) link_.send->release(request);
    link_.recv->release(received);
  }
}

TEST_F(TransportGroup, Equal_tags_match_in_order_of_posting) {
  Request* const received = receive({7, 5, 7, 7});
  ASSERT_NE(received, nullptr);
  std::vector<Request*> sent;
  for (const auto& [tag, seed] :
       {std::pair{7u, uint64_t{0}}, {7u, uint64_t{1}}, {5u, uint64_t{2}}, {7u, uint64_t{3}}})
    ASSERT_NE(sent.emplace_back(send(tag, 1000 + seed, seed)), nullptr);
  ASSERT_TRUE(finish(sent) && finish({received}));
  expect_part(received, 0, 1000, 0);
  expect_part(received, 2, 1001, 1);
  expect_part(received, 1, 1002, 2);
  expect_part(received, 3, 1003, 3);
}

TEST_F(TransportGroup, A_tag_that_nobody_awaits_is_not_yet) {
  // A receive by itself.  Expect: only its own tag takes it.
  Request* const single = link_.recv->try_recv(to_, 0, 8, 4);
  ASSERT_NE(single, nullptr);
  EXPECT_EQ(send_now(3), nullptr);
  EXPECT_EQ(link_.send->try_send_inline("x", 1), nullptr) << "an inline message has tag 0";
  Request* sent = send(4, 8, 0);
  ASSERT_TRUE(finish({sent, single}));
  link_.send->release(sent);
  link_.recv->release(single);

  // A group, and the next behind it.  Expect: the next is not begun before the group is sent.
  Request* const group = receive({1, 2});
  ASSERT_NE(group, nullptr);
  ASSERT_NE(link_.recv->try_recv(to_, 2 * kRoom, 8, 3), nullptr);
  EXPECT_EQ(send_now(3), nullptr);
  Request* const second = send(2, 8, 1);
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(send_now(2), nullptr) << "its one place is taken";
  EXPECT_EQ(send_now(3), nullptr);
  EXPECT_FALSE(second->is_done()) << "before all of its group are sent";
  EXPECT_FALSE(group->is_done());
  Request* const first = send(1, 8, 0);
  ASSERT_NE(first, nullptr);
  EXPECT_NE(send_now(3), nullptr);
  ASSERT_TRUE(finish({first, second, group}));
}

TEST_F(TransportGroup, A_message_too_long_for_its_place_is_refused_and_the_group_goes_on) {
  Request* const received = receive({1, 2}, 100);
  ASSERT_NE(received, nullptr);
  Request* const long_one = send(2, 101, 0);
  ASSERT_NE(long_one, nullptr);
  EXPECT_TRUE(long_one->is_done());
  EXPECT_EQ(long_one->status().code(), Code::bad_argument);
  // Its request is not given back yet.  Expect: the place waits for that.
  EXPECT_EQ(send_now(2), nullptr);
  link_.send->release(long_one);
  const std::vector<Request*> sent{send(2, 100, 1), send(1, 50, 0)};
  ASSERT_TRUE(finish(sent) && finish({received}));
  expect_part(received, 0, 50, 0);
  expect_part(received, 1, 100, 1);
}

TEST_F(TransportGroup, A_group_with_a_range_outside_of_its_region_offers_nothing) {
  const Region none;
  for (const RecvPart& bad : {RecvPart{.region = &to_, .offset = to_.bytes(), .bytes = 1, .tag = 2},
                              RecvPart{.region = &none, .offset = 0, .bytes = 1, .tag = 2}}) {
    const std::array parts{RecvPart{.region = &to_, .offset = 0, .bytes = 8, .tag = 1}, bad};
    Request* const refused = link_.recv->try_recv_group(parts);
    ASSERT_NE(refused, nullptr);
    EXPECT_EQ(refused->status().code(), Code::bad_argument);
    EXPECT_EQ(send_now(1), nullptr);
    link_.recv->release(refused);
  }
  // No bytes need no memory.  Expect: a group like any other.
  const std::array parts{RecvPart{.region = &none, .tag = 1}, RecvPart{.region = &to_, .tag = 2}};
  Request* const received = link_.recv->try_recv_group(parts);
  ASSERT_NE(received, nullptr);
  const std::vector<Request*> sent{send(2, 0, 0), send(1, 0, 0)};
  ASSERT_TRUE(finish(sent) && finish({received}));
  EXPECT_EQ(link_.recv->part_bytes(received, 0), 0u);
}

TEST_F(TransportGroup, A_window_holds_32_of_the_largest_groups) {
  static_assert(kWindow / kMaxGroup == 32);
  const std::vector<uint32_t> tags(kMaxGroup, 9);
  std::vector<Request*> received, sent;
  ASSERT_TRUE(poll_until([&] {
    if (Request* request = receive(tags, 8); request != nullptr) received.push_back(request);
    return received.size() == 32;
  }));
  EXPECT_EQ(receive(tags, 8), nullptr) << "the window is full";
  EXPECT_EQ(link_.recv->try_recv(to_, 0, 8, 9), nullptr);
  for (uint32_t i = 0; i < kWindow; ++i) ASSERT_NE(sent.emplace_back(send(9, 8, 0)), nullptr);
  EXPECT_EQ(link_.send->try_send(from_, 0, 8, 9), nullptr);
  ASSERT_TRUE(finish(sent) && finish(received));
  // One group is given back.  Expect: room for one group, and for no message more.
  link_.recv->release(received[0]);
  Request* more = nullptr;
  ASSERT_TRUE(poll_until([&] { return (more = receive(tags, 8)) != nullptr; }));
  EXPECT_EQ(link_.recv->try_recv(to_, 0, 8, 9), nullptr);
}

TEST_F(TransportGroup, A_sender_whose_requests_are_not_given_back_waits_in_mid_group) {
  // 255 messages, so that a group goes round the end of the window.
  std::vector<Request*> sent;
  while (sent.size() < kWindow - 1) {
    Request* const received = post_receive(link_, to_, 0, 8);
    ASSERT_NE(received, nullptr);
    ASSERT_NE(sent.emplace_back(send(0, 8, 0)), nullptr);
    ASSERT_TRUE(finish({sent.back(), received}));
    link_.recv->release(received);
  }
  Request* received = nullptr;
  ASSERT_TRUE(poll_until([&] { return (received = receive({1, 2})) != nullptr; }));
  Request* const first = send(1, 8, 1);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(send_now(2), nullptr) << "its request is that of the first message";
  link_.send->release(sent[0]);
  Request* const second = send(2, 8, 2);
  ASSERT_TRUE(finish({first, second, received}));
  expect_part(received, 0, 8, 1);
  expect_part(received, 1, 8, 2);
}

TEST_F(TransportGroup, A_group_fails_as_one_when_its_sender_goes) {
  Request* const received = receive({1, 2, 3});
  ASSERT_NE(received, nullptr);
  Request* const sent = send(3, 1000, 0);
  ASSERT_NE(sent, nullptr);
  link_.send.reset();
  ASSERT_TRUE(poll_until([&] { return received->is_done(); }));
  EXPECT_EQ(received->status().code(), Code::peer_lost);
  EXPECT_EQ(receive({1}), nullptr);
  link_.recv->release(received);
}

TEST_F(TransportGroup, Sends_of_a_group_fail_with_their_connection) {
  Request* const received = receive({1, 2});
  ASSERT_NE(received, nullptr);
  Request* const sent = send(2, 1000, 0);
  ASSERT_NE(sent, nullptr);
  link_.recv.reset();
  ASSERT_TRUE(poll_until([&] { return sent->is_done(); }));
  EXPECT_FALSE(sent->status().is_ok());
  EXPECT_EQ(link_.send->try_send(from_, 0, 8, 1), nullptr);
  link_.send->release(sent);
}

TEST_F(TransportGroup, A_credit_of_a_group_that_cannot_be_ends_the_connection) {
  for (const uint32_t members : {0u, kMaxGroup + 1}) {
    auto state = SendState::make(a_->state(), {.peer_name = "rank 1"}, {});
    ASSERT_TRUE(state.is_ok());
    auto* const ring = reinterpret_cast<wire::Credit*>((*state)->credits().address);
    set_credit(&ring[wire::slot_of(1)], 1, wire::match_of(5, members), 0, 8, {});
    EXPECT_EQ((*state)->try_send(nullptr, 0, 0, 5), nullptr);
    EXPECT_EQ((*state)->link().status().code(), Code::mismatch);
    EXPECT_NE((*state)->link().describe().find("a group of " + std::to_string(members)),
              std::string::npos)
        << (*state)->link().describe();
  }
}

}  // namespace
}  // namespace noria::transport
