// Small receives that land in memory which peers map, and are copied from there.

#include <array>
#include <filesystem>
#include <iterator>
#include <memory>

#include "base/units.hpp"
#include "tests/support/transport_pair.hpp"
#include "verbs/transport/kept_storage.hpp"
#include "verbs/transport/staging.hpp"

namespace noria::transport {
namespace {

using test::Connected;

constexpr std::byte kPaint{0xee};

class TransportStaging : public test::TransportPair {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(TransportPair::SetUp());
    if (provider_->api().symbols().noria_alloc == nullptr)
      GTEST_SKIP() << "the device has no memory that peers map, so that nothing is staged";
    ASSERT_NO_FATAL_FAILURE(link_ = connect({.has_kept_regions = true}));
    ASSERT_NE(link_.recv, nullptr);
    test::paint(source_.data(), source_.size(), 1);
    from_ = over(*a_, source_);
    to_ = over(*b_, target_);
  }
  void TearDown() override {
    link_ = {};
    from_ = {};
    to_ = {};
    TransportPair::TearDown();
  }

  // Sends what begins at `offset`, and polls nobody else until it was sent.
  void send(uint64_t offset, uint64_t bytes) {
    Request* request = nullptr;
    const Nanoseconds deadline = now_ns() + test::kPatience;
    while ((request == nullptr || !request->is_done()) && now_ns() < deadline) {
      if (request == nullptr) request = link_.send->try_send(from_, offset, bytes);
      a_->poll();
    }
    ASSERT_TRUE(request != nullptr && request->is_done());
    EXPECT_TRUE(request->status().is_ok()) << link_.send->describe();
    link_.send->release(request);
  }
  bool is_painted(uint64_t from, uint64_t to) const {
    return std::all_of(target_.begin() + static_cast<ptrdiff_t>(from),
                       target_.begin() + static_cast<ptrdiff_t>(to),
                       [](std::byte each) { return each == kPaint; });
  }

  std::vector<std::byte> source_ = std::vector<std::byte>(4096);
  std::vector<std::byte> target_ = std::vector<std::byte>(4096, kPaint);
  Connected link_;
  Region from_, to_;
};

TEST_F(TransportStaging, Messages_of_all_small_sizes_are_where_they_belong_and_nothing_beside) {
  for (uint64_t bytes = 0; bytes <= Staging::kMaxBytes + 2; ++bytes)
    for (const uint64_t room : {bytes, bytes + 1, Staging::kMaxBytes, uint64_t{512}}) {
      if (room < bytes) continue;
      const uint64_t offset = 128 + bytes % 16;
      std::fill(target_.begin(), target_.end(), kPaint);
      Request* const received = post_receive(link_, to_, offset, room);
      ASSERT_NE(received, nullptr);
      ASSERT_NO_FATAL_FAILURE(send(bytes, bytes));
      ASSERT_TRUE(poll_until([&] { return received->is_done(); }));
      EXPECT_TRUE(received->status().is_ok()) << link_.recv->describe();
      EXPECT_EQ(received->bytes(), bytes);
      link_.recv->release(received);
      ASSERT_EQ(test::first_wrong(target_.data() + offset, bytes, 1, bytes), bytes)
          << bytes << " of " << room;
      ASSERT_TRUE(is_painted(0, offset) && is_painted(offset + bytes, target_.size()))
          << bytes << " of " << room;
    }
}

TEST_F(TransportStaging, Memory_is_written_when_the_receiver_looks_and_not_before) {
  Request* const received = post_receive(link_, to_, 8, 8);
  ASSERT_NE(received, nullptr);
  ASSERT_NO_FATAL_FAILURE(send(0, 8));
  EXPECT_TRUE(is_painted(0, target_.size()));
  ASSERT_TRUE(poll_until([&] { return received->is_done(); }));
  EXPECT_EQ(test::first_wrong(target_.data() + 8, 8, 1), 8u);
  link_.recv->release(received);
}

TEST_F(TransportStaging, A_connection_that_is_closed_writes_nothing_more) {
  ASSERT_NE(post_receive(link_, to_, 8, 8), nullptr);
  ASSERT_NO_FATAL_FAILURE(send(0, 8));
  link_.recv.reset();
  for (int i = 0; i < 100; ++i) b_->poll();
  EXPECT_TRUE(is_painted(0, target_.size()));
}

TEST_F(TransportStaging, A_group_may_have_small_and_long_receives) {
  const std::array<RecvPart, 4> parts{{
      {.region = &to_, .offset = 0, .bytes = 8, .tag = 1},
      {.region = &to_, .offset = 1024, .bytes = 1024, .tag = 2},
      {.region = &to_, .offset = 64, .bytes = 64, .tag = 3},
      {.region = &to_, .offset = 200, .bytes = 0, .tag = 4},
  }};
  const std::array<uint64_t, 4> sent{3, 1000, 64, 0};
  Request* const received = link_.recv->try_recv_group(parts);
  ASSERT_NE(received, nullptr);
  std::vector<Request*> requests;
  for (uint32_t i = 4; i-- > 0;) {  // the last first
    Request* request = nullptr;
    ASSERT_TRUE(poll_until(
        [&] { return (request = link_.send->try_send(from_, i, sent[i], i + 1)) != nullptr; }));
    requests.push_back(request);
  }
  ASSERT_TRUE(poll_until([&] { return received->is_done() && requests.back()->is_done(); }));
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(link_.recv->part_bytes(received, i), sent[i]);
    EXPECT_EQ(test::first_wrong(target_.data() + parts[i].offset, sent[i], 1, i), sent[i]) << i;
  }
  EXPECT_TRUE(is_painted(3, 64) && is_painted(128, 1024) && is_painted(2024, target_.size()));
  link_.recv->release(received);
  for (Request* request : requests) link_.send->release(request);
  // A receive by itself in the place of the group's last.  Expect: it is one.
  for (uint32_t i = 0; i < kWindow; ++i) {
    Request* const alone = post_receive(link_, to_, 8, 8);
    ASSERT_NE(alone, nullptr);
    EXPECT_EQ(alone->messages(), 1u);
    ASSERT_NO_FATAL_FAILURE(send(0, 8));
    ASSERT_TRUE(poll_until([&] { return alone->is_done(); }));
    link_.recv->release(alone);
  }
}

// As the plugin keeps it for NCCL.
struct Kept : InKeptStorage {
  explicit Kept(Region made) : region(std::move(made)) {}
  const Region region;
};

TEST_F(TransportStaging, Memory_that_went_meanwhile_is_not_written_and_its_connection_fails) {
  auto kept = std::make_unique<Kept>(over(*b_, target_));
  Request* const received = post_receive(link_, kept->region, 8, 8);
  ASSERT_NE(received, nullptr);
  kept.reset();
  ASSERT_NO_FATAL_FAILURE(send(0, 8));
  ASSERT_TRUE(poll_until([&] { return received->is_done(); }));
  EXPECT_EQ(received->status().code(), Code::connection_lost);
  EXPECT_NE(link_.recv->describe().find("deregistered"), std::string::npos)
      << link_.recv->describe();
  EXPECT_TRUE(is_painted(0, target_.size()));
  // Another in its place.  Expect: it is not written either.
  link_ = connect({.has_kept_regions = true});
  kept = std::make_unique<Kept>(over(*b_, target_));
  Request* const other = post_receive(link_, kept->region, 8, 8);
  ASSERT_NE(other, nullptr);
  kept.reset();
  std::vector<std::byte> elsewhere(target_.size(), kPaint);
  kept = std::make_unique<Kept>(over(*b_, elsewhere));
  ASSERT_NO_FATAL_FAILURE(send(0, 8));
  ASSERT_TRUE(poll_until([&] { return other->is_done(); }));
  EXPECT_EQ(other->status().code(), Code::connection_lost);
  EXPECT_TRUE(is_painted(0, target_.size()));
  EXPECT_TRUE(std::all_of(elsewhere.begin(), elsewhere.end(),
                          [](std::byte each) { return each == kPaint; }));
}

size_t open_descriptors() {
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(entries), end(entries)));
}

TEST_F(TransportStaging, Small_allocations_share_descriptors_and_begin_with_zeros) {
  const size_t before = open_descriptors();
  std::vector<Region> pieces;
  for (size_t i = 0; i < 130; ++i) pieces.push_back(allocate(*a_, 4096));
  EXPECT_LE(open_descriptors() - before, 3u);
  for (Region& each : pieces) std::fill_n(each.base(), each.bytes(), kPaint);
  // The first goes, and another comes in its place.
  pieces.front() = {};
  const Region again = allocate(*a_, 4096);
  EXPECT_TRUE(std::all_of(again.base(), again.base() + 4096,
                          [](std::byte each) { return each == std::byte{0}; }));
  EXPECT_EQ(pieces.back().base()[0], kPaint);
}

}  // namespace
}  // namespace noria::transport
