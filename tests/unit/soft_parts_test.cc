// The parts of the software HCA that need no second process.
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <set>
#include <vector>

#include "verbs/soft/bind_target.hpp"
#include "verbs/soft/copy_path.hpp"
#include "verbs/soft/engine.hpp"
#include "verbs/soft/fence.hpp"
#include "verbs/soft/link.hpp"
#include "verbs/soft/memory_table.hpp"
#include "verbs/soft/peer.hpp"
#include "verbs/soft/segment.hpp"

namespace noria::soft {
namespace {

constexpr uint32_t kPd = 7;
constexpr uint32_t kReadWrite = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

class MemoryTableTest : public testing::Test {
 protected:
  void SetUp() override {
    auto made = Segment::create();
    ASSERT_TRUE(made.is_ok());
    segment_ = std::make_unique<Segment>(std::move(made).value());
    table_ = std::make_unique<MemoryTable>(**segment_);
  }
  uint32_t add(uint64_t address, uint64_t length, uint64_t iova) {
    return table_->add({kPd, address, length, iova, kReadWrite}).value_or(0);
  }
  bool covers(uint32_t key, uint64_t iova, uint64_t bytes, uint32_t pd = kPd,
              uint32_t access = IBV_ACCESS_REMOTE_WRITE) {
    return find_range(**segment_, key, pd, access, iova, bytes).has_value();
  }
  std::unique_ptr<Segment> segment_;
  std::unique_ptr<MemoryTable> table_;
};

TEST_F(MemoryTableTest, A_key_opens_its_range_its_domain_and_its_access_only) {
  const uint32_t key = add(0x10000, 4096, 0x10000);

  // All of it, its last byte, nothing at its end.  Expect: found.
  EXPECT_TRUE(covers(key, 0x10000, 4096));
  EXPECT_TRUE(covers(key, 0x10fff, 1));
  EXPECT_TRUE(covers(key, 0x11000, 0));

  // One byte more, one before, lengths that wrap.  Expect: not.
  EXPECT_FALSE(covers(key, 0x10000, 4097));
  EXPECT_FALSE(covers(key, 0xffff, 1));
  EXPECT_FALSE(covers(key, 0x10001, UINT64_MAX));
  EXPECT_FALSE(covers(key, UINT64_MAX, 2));

  // Another protection domain, an access that was not granted, no key.  Expect: not.
  EXPECT_FALSE(covers(key, 0x10000, 1, kPd + 1));
  EXPECT_FALSE(covers(key, 0x10000, 1, kPd, IBV_ACCESS_REMOTE_READ));
  EXPECT_FALSE(covers(0, 0x10000, 1));
}

TEST_F(MemoryTableTest, Requests_name_memory_by_its_iova) {
  const uint32_t key = add(0x10000, 4096, 0);
  const auto range = find_range(**segment_, key, kPd, IBV_ACCESS_REMOTE_WRITE, 256, 16);
  ASSERT_TRUE(range.has_value());
  EXPECT_EQ(range->address, 0x10100u);
  EXPECT_FALSE(covers(key, 0x10000, 16));
}

TEST_F(MemoryTableTest, An_index_that_is_used_again_does_not_revive_its_old_key) {
  const uint32_t first = add(0x10000, 4096, 0x10000);
  table_->revoke(first);
  EXPECT_FALSE(covers(first, 0x10000, 1));
  table_->recycle(first);

  // Until the indices run out and the first comes again.  Expect: keys never repeat.
  std::set<uint32_t> keys{first};
  uint32_t key = 0;
  do {
    key = add(0x10000, 4096, 0x10000);
    ASSERT_NE(key, 0u);
    EXPECT_TRUE(keys.insert(key).second);
  } while (key >> 16 != first >> 16);
  EXPECT_TRUE(covers(key, 0x10000, 1));
  EXPECT_FALSE(covers(first, 0x10000, 1));

  // All are taken now.  Expect: refused, not shared.
  EXPECT_EQ(add(0x10000, 4096, 0x10000), 0u);
}

TEST_F(MemoryTableTest, A_region_inside_mapped_memory_knows_where) {
  const Allocation* memory = table_->allocate(10000);
  ASSERT_NE(memory, nullptr);
  const auto base = reinterpret_cast<uint64_t>(memory->base.get());
  const uint32_t inside = add(base + 100, 200, base + 100);
  const uint32_t across = add(base + memory->bytes - 1, 2, base + memory->bytes - 1);

  const auto found = find_range(**segment_, inside, kPd, kReadWrite, base + 150, 10);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->allocation, memory->id);
  EXPECT_EQ(found->allocation_offset, 150u);

  // A region that sticks out of it.  Expect: ordinary memory.
  EXPECT_EQ(find_range(**segment_, across, kPd, kReadWrite, base + memory->bytes, 1)->allocation,
            0u);

  // Freed while a region lies in it: a peer may be in the middle of it.  Expect: refused.
  Allocation taken;
  const void* start = memory->base.get();
  EXPECT_EQ(table_->take(memory->base.get() + 1, &taken), EINVAL);
  EXPECT_EQ(table_->take(start, &taken), EBUSY);
  table_->revoke(inside);
  EXPECT_EQ(table_->take(start, &taken), EBUSY);
  table_->recycle(inside);
  EXPECT_EQ(table_->take(start, &taken), 0);
  EXPECT_EQ(table_->take(start, &taken), EINVAL);
}

TEST(PeerMemory, Is_followed_only_inside_what_was_mapped) {
  auto segment = Segment::create();
  ASSERT_TRUE(segment.is_ok());
  const std::vector<SharedPort> no_ports;
  const auto peer = Peer::loopback({}, **segment, no_ports, -1);
  constexpr uint32_t kId = kMaxAllocations + 3;
  peer->add_mapping(kId, 8192, make_memory_file("test", 8192));

  uint8_t* base = peer->mapped(kId, 0, 8192);
  ASSERT_NE(base, nullptr);
  EXPECT_EQ(peer->mapped(kId, 8000, 192), base + 8000);

  // What a peer's words may say: beyond the end, round the address space, another number.
  EXPECT_EQ(peer->mapped(kId, 8000, 193), nullptr);
  EXPECT_EQ(peer->mapped(kId, 8193, 0), nullptr);
  EXPECT_EQ(peer->mapped(kId, UINT64_MAX - 7, 16), nullptr);
  EXPECT_EQ(peer->mapped(3, 0, 1), nullptr);

  // Taken back while somebody is in the middle of a copy.  Expect: not found, and still there.
  peer->drop_mapping(kId);
  EXPECT_EQ(peer->mapped(kId, 0, 0), nullptr);
  EXPECT_TRUE(peer->has_dropped());
  std::memset(base, 0x77, 8192);
  peer->unmap_dropped();
  EXPECT_FALSE(peer->has_dropped());
}

TEST(Fence, Waits_once_for_a_stopped_peer_and_not_once_for_each_object) {
  const auto engine = Engine::start({}, {SoftDevice{}});
  ASSERT_NE(engine, nullptr);
  constexpr uint32_t kIndex = 5, kKey = 3 << 16 | 1;
  const uint32_t qpn = qpn_of(engine->slot(), 9);
  SharedSegment& shared = engine->shared();
  shared.header.qps_in_use[0].store(1 << kIndex, std::memory_order_release);

  // Somebody is in the middle of a transfer and does not go on.
  shared.qps[kIndex].mark.store(make_mark(qpn, kKey), std::memory_order_release);
  EXPECT_FALSE(fence_qp(*engine, qpn, 20'000'000));
  // Expect: the next ones do not wait for an hour each.
  constexpr Nanoseconds kHour = 3600 * 1'000'000'000LL;
  EXPECT_FALSE(fence_qp(*engine, qpn, kHour));
  EXPECT_FALSE(fence_key(*engine, kKey, kHour));
  EXPECT_TRUE(fence_key(*engine, kKey + 1, kHour));

  // It goes on.  Expect: fences hold again, and are waited for again.
  shared.qps[kIndex].mark.store(0, std::memory_order_release);
  EXPECT_TRUE(fence_qp(*engine, qpn, kHour));
  const Peer* self = engine->neighbours().use(engine->slot());
  ASSERT_NE(self, nullptr);
  EXPECT_FALSE(self->is_stalled());
}

TEST(PeerMemory, A_file_that_its_owner_could_shorten_is_not_mapped) {
  std::FILE* file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  ASSERT_EQ(::ftruncate(::fileno(file), 4096), 0);
  EXPECT_EQ(map_shared(::fileno(file), 4096, true), nullptr);
  std::fclose(file);

  // Of a fixed size, but shorter than was said.
  const Fd fixed = make_memory_file("test", 4096);
  EXPECT_EQ(map_shared(fixed.get(), 8192, true), nullptr);
  void* base = map_shared(fixed.get(), 4096, true);
  ASSERT_NE(base, nullptr);
  Unmapper{4096}(base);
}

TEST(Segment, Rings_read_as_zero_also_where_the_kernel_takes_no_page_back) {
  auto segment = Segment::create();
  ASSERT_TRUE(segment.is_ok());
  const uint64_t first = segment->carve(4096);
  std::memset((*segment)->rings + first, 0xab, 4096);
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
  ASSERT_EQ(::dup3(pipe[0], segment->fd(), O_CLOEXEC), segment->fd());  // no hole is made in a pipe

  segment->release(first, 4096);

  // Expect: nothing of the ring before, whose notices would pass for news.
  ASSERT_EQ(segment->carve(4096), first);
  for (size_t i = 0; i < 4096; ++i)
    ASSERT_EQ(static_cast<int>((*segment)->rings[first + i]), 0) << i;
  for (const int end : pipe) ::close(end);
}

TEST(Segment, Rings_are_given_back_zeroed_and_used_again) {
  auto segment = Segment::create();
  ASSERT_TRUE(segment.is_ok());
  const uint64_t first = segment->carve(5000);
  std::memset((*segment)->rings + first, 0xab, 5000);
  segment->release(first, 5000);
  const uint64_t second = segment->carve(8192);
  EXPECT_EQ(second, first);
  EXPECT_EQ((*segment)->rings[second], 0);

  // More than there is.  Expect: refused, and what is left still serves.
  EXPECT_EQ(segment->carve(kRingArenaBytes * 2), Segment::kNoRoom);
  EXPECT_NE(segment->carve(4096), Segment::kNoRoom);
}

TEST(RnrTimer, Codes_rise_from_ten_microseconds_but_for_zero_which_is_the_longest) {
  EXPECT_EQ(rnr_timer_ns(1), 10'000);
  EXPECT_EQ(rnr_timer_ns(31), 491'520'000);
  EXPECT_EQ(rnr_timer_ns(0), 655'360'000);
  for (uint32_t code = 1; code < 31; ++code)
    EXPECT_LT(rnr_timer_ns(code), rnr_timer_ns(code + 1)) << code;
}

TEST(CopyOrdered, Copies_every_length_from_and_to_every_offset) {
  std::array<uint8_t, 96> from, to;
  std::iota(from.begin(), from.end(), uint8_t{1});
  for (size_t source = 0; source < 8; ++source)
    for (size_t target = 0; target < 8; ++target)
      for (size_t bytes = 0; bytes <= kOrderedBytes; ++bytes) {
        to.fill(0);
        copy_ordered(to.data() + target, from.data() + source, bytes);
        ASSERT_EQ(std::memcmp(to.data() + target, from.data() + source, bytes), 0);
        ASSERT_EQ(std::accumulate(to.begin(), to.begin() + static_cast<long>(target), 0), 0);
        ASSERT_EQ(std::accumulate(to.begin() + static_cast<long>(target + bytes), to.end(), 0), 0);
      }
}

TEST(Slots, Two_owners_never_share_one_and_a_closed_one_is_free_again) {
  auto first = claim_slot(500);
  auto second = claim_slot(500);
  ASSERT_TRUE(first.is_ok() && second.is_ok());
  EXPECT_NE(first->slot, second->slot);
  EXPECT_NE(first->slot, 0u);
  EXPECT_TRUE(Link::connect(first->slot).is_open());

  const uint32_t slot = first->slot;
  first->listener.reset();
  EXPECT_FALSE(Link::connect(slot).is_open());
}

TEST(Link, A_listener_that_accepts_nobody_is_busy_and_not_absent) {
  auto claimed = claim_slot(800);
  ASSERT_TRUE(claimed.is_ok());
  std::vector<Link> callers;
  do {
    callers.push_back(Link::connect(claimed->slot));
    ASSERT_LT(callers.size(), 10000u);
  } while (callers.back().is_open());

  // Its queue of callers is full, as that of a stopped process.  Expect: somebody is there.
  EXPECT_TRUE(callers.back().is_busy());
  callers.clear();
  claimed->listener.reset();
  EXPECT_FALSE(Link::connect(claimed->slot).is_busy());
}

TEST(Link, Carries_messages_and_descriptors_and_sees_the_end) {
  auto claimed = claim_slot(600);
  ASSERT_TRUE(claimed.is_ok());
  Link near = Link::connect(claimed->slot);
  Link far = Link::accept(claimed->listener.get());
  ASSERT_TRUE(near.is_open() && far.is_open());
  EXPECT_EQ(far.pid(), ::getpid());

  Received received;
  EXPECT_EQ(far.receive(&received), Link::Event::nothing);
  const int out = STDOUT_FILENO;
  EXPECT_TRUE(near.send(LinkMessage{.kind = LinkKind::channel, .id = 9}, &out, 1));
  ASSERT_EQ(far.receive(&received), Link::Event::message);
  EXPECT_EQ(received.message.id, 9u);
  EXPECT_EQ(received.fd_count, 1u);

  // Another version of this library.  Expect: refused.
  EXPECT_TRUE(near.send(LinkMessage{.version = kLinkVersion + 1}, nullptr, 0));
  EXPECT_EQ(far.receive(&received), Link::Event::closed);
  near = Link();
  EXPECT_EQ(far.receive(&received), Link::Event::closed);
}

TEST(Link, Keeps_what_the_socket_does_not_take) {
  auto claimed = claim_slot(700);
  ASSERT_TRUE(claimed.is_ok());
  Link near = Link::connect(claimed->slot);
  Link far = Link::accept(claimed->listener.get());

  // More than a socket holds.  Expect: kept, then delivered in order.
  constexpr uint32_t kMany = 5000;
  for (uint32_t i = 0; i < kMany; ++i)
    ASSERT_TRUE(near.send(LinkMessage{.kind = LinkKind::memory_gone, .id = i}, nullptr, 0));
  EXPECT_TRUE(near.has_unsent());
  Received received;
  for (uint32_t i = 0; i < kMany; ++i) {
    if (far.receive(&received) == Link::Event::nothing) {
      ASSERT_TRUE(near.flush());
      ASSERT_EQ(far.receive(&received), Link::Event::message);
    }
    ASSERT_EQ(received.message.id, i);
  }
  EXPECT_FALSE(near.has_unsent());
}

}  // namespace
}  // namespace noria::soft
