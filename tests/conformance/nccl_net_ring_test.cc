// Rings of several ranks over the net plugin, driven as NCCL's proxies do: its slice sizes, its
// depths, all in flight at once; and messages of a gigabyte.

#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "base/units.hpp"
#include "tests/support/nccl_pair.hpp"
#include "tests/support/pattern.hpp"
#include "tests/support/ranks.hpp"

namespace noria::test {
namespace {

using plugin::abi::kPointerHost;

// How NCCL cuts a buffer: bytes of a message, and how many are under way.
struct Slices {
  const char* name;
  size_t bytes;
  size_t depth;
};
// Of a buffer of eight steps. Simple sends two steps at a time round a ring, one up a tree; LL and
// LL128 have buffers of their own; point to point goes by chunks.
constexpr Slices kSlices[] = {{"ring, Simple", 1_MiB, 4},
                              {"tree, Simple", 512_KiB, 8},
                              {"LL128", 600_KiB, 8},
                              {"LL", 64_KiB, 8},
                              {"point to point", 128_KiB, 8}};

class Neighbours {
 public:
  Neighbours(int version, Wire& parent, size_t elements)
      : values(elements), staging(elements + kRoomBehind), communicator_(version) {
    NetHandle mine{};
    EXPECT_EQ(net().listen(communicator_.context, 0, mine.data(), &listener_), Result::success);
    parent.send(mine);
    auto theirs = parent.recv<NetHandle>();
    // Each calls its right neighbour and is called by its left, in one thread.
    const Nanoseconds deadline = now_ns() + 30_s;
    while ((right_ == nullptr || left_ == nullptr) && now_ns() < deadline) {
      if (right_ == nullptr) {
        EXPECT_EQ(net().connect(communicator_.context, 0, theirs.data(), &right_), Result::success);
      }
      if (left_ == nullptr) {
        EXPECT_EQ(net().accept(listener_, &left_), Result::success);
      }
    }
    EXPECT_EQ(net().close_listen(listener_), Result::success);
    if (!is_whole()) return;
    EXPECT_EQ(net().reg_mr(right_, values.data(), elements * 4, kPointerHost, &sent_from_),
              Result::success);
    EXPECT_EQ(net().reg_mr(left_, staging.data(), staging.size() * 4, kPointerHost, &received_to_),
              Result::success);
  }
  ~Neighbours() {
    if (!is_whole()) return;
    EXPECT_EQ(net().dereg_mr(right_, sent_from_), Result::success);
    EXPECT_EQ(net().dereg_mr(left_, received_to_), Result::success);
    EXPECT_EQ(net().close_send(right_), Result::success);
    EXPECT_EQ(net().close_recv(left_), Result::success);
  }
  Neighbours(const Neighbours&) = delete;
  Neighbours& operator=(const Neighbours&) = delete;

  bool is_whole() const { return right_ != nullptr && left_ != nullptr; }

  // Sends [from, from + count) of the values, receives as much to the staging memory at `to`.
  void exchange(const Slices& slices, size_t from, size_t count, size_t to, size_t expected) {
    const size_t slice = slices.bytes / 4;
    const auto of = [slice](size_t i, size_t all) { return std::min(slice, all - i * slice) * 4; };
    const size_t sends = (count + slice - 1) / slice;
    const size_t receives = (expected + slice - 1) / slice;
    std::vector<void*> sending(sends, kStale), receiving(receives, kStale);
    size_t posted = 0, sent = 0, offered = 0, received = 0;
    const Nanoseconds deadline = now_ns() + 30_s;
    while ((sent < sends || received < receives) && now_ns() < deadline) {
      if (offered < receives && offered - received < slices.depth) {
        ASSERT_EQ(net().irecv(left_, staging.data() + to + offered * slice, slices.bytes,
                              received_to_, &receiving[offered]),
                  Result::success)
            << last_warning();
        if (receiving[offered] != nullptr) ++offered;
      }
      if (posted < sends && posted - sent < slices.depth) {
        ASSERT_EQ(net().isend(right_, values.data() + from + posted * slice, of(posted, count),
                              sent_from_, &sending[posted]),
                  Result::success)
            << last_warning();
        if (sending[posted] != nullptr) ++posted;
      }
      int is_done = 0;
      int bytes = -1;
      if (received < offered) {
        ASSERT_EQ(net().test(receiving[received], &is_done, &bytes), Result::success)
            << last_warning();
        if (is_done != 0) {
          ASSERT_EQ(static_cast<size_t>(bytes), of(received, expected));
          ++received;
        }
      }
      is_done = 0;
      if (sent < posted) {
        ASSERT_EQ(net().test(sending[sent], &is_done, &bytes), Result::success) << last_warning();
        if (is_done != 0) ++sent;
      }
    }
    ASSERT_EQ(sent, sends) << "stands still";
    ASSERT_EQ(received, receives) << "stands still";
  }

  std::vector<uint32_t> values, staging;

 private:
  static constexpr size_t kRoomBehind = 1_MiB / 4;  // receives are of whole slices

  Net& net() { return *communicator_.net; }

  Communicator communicator_;
  void* listener_ = nullptr;
  void* right_ = nullptr;
  void* left_ = nullptr;
  void* sent_from_ = nullptr;
  void* received_to_ = nullptr;
};

uint32_t value_of(int32_t rank, size_t i) {
  return static_cast<uint32_t>(i * 2654435761u) + static_cast<uint32_t>(rank) * 40503u;
}

// An all-reduce round the ring: reduce-scatter, then all-gather.
void all_reduce(Neighbours& ring, int32_t rank, int32_t size, const Slices& slices) {
  const size_t count = ring.values.size();
  const auto ranks = static_cast<size_t>(size);
  for (size_t i = 0; i < count; ++i) ring.values[i] = value_of(rank, i);
  const auto begin_of = [&](size_t chunk) { return chunk * count / ranks; };
  const auto bytes_of = [&](size_t chunk) { return begin_of(chunk + 1) - begin_of(chunk); };
  const auto chunk_at = [&](int32_t step) {
    return static_cast<size_t>(((rank - step) % size + size) % size);
  };
  for (int32_t step = 0; step < 2 * (size - 1); ++step) {
    const bool is_gather = step >= size - 1;
    const size_t mine = chunk_at(step);
    const size_t theirs = chunk_at(step + 1);
    ASSERT_NO_FATAL_FAILURE(
        ring.exchange(slices, begin_of(mine), bytes_of(mine), begin_of(theirs), bytes_of(theirs)));
    for (size_t i = begin_of(theirs); i < begin_of(theirs + 1); ++i)
      ring.values[i] = is_gather ? ring.staging[i] : ring.values[i] + ring.staging[i];
  }
  size_t wrong = 0;
  for (size_t i = 0; i < count; ++i) {
    uint32_t sum = 0;
    for (int32_t other = 0; other < size; ++other) sum += value_of(other, i);
    wrong += ring.values[i] != sum ? 1 : 0;
  }
  EXPECT_EQ(wrong, 0u) << slices.name << ", " << size << " ranks";
}

class NcclNetRing : public NcclNet {};

TEST_P(NcclNetRing, Rings_of_2_3_and_8_ranks_reduce_in_slices_as_NCCL_cuts_them) {
  const int version = GetParam();
  for (const int32_t size : {2, 3, 8}) {
    RankCrew crew(size, [=](int32_t rank, Wire& parent) {
      // No chunk is a whole number of slices; the receives behind the last have room for one.
      Neighbours ring(version, parent, 8_MiB / 4 + 1013);
      ASSERT_TRUE(ring.is_whole());
      for (const Slices& slices : kSlices)
        ASSERT_NO_FATAL_FAILURE(all_reduce(ring, rank, size, slices));
      parent.meet();  // nobody closes while a neighbour still waits
    });
    std::vector<NetHandle> handles;
    for (int32_t rank = 0; rank < size; ++rank)
      handles.push_back(crew.wire(rank).recv<NetHandle>());
    for (int32_t rank = 0; rank < size; ++rank)
      crew.wire(rank).send(handles[static_cast<size_t>((rank + 1) % size)]);
    for (int32_t rank = 0; rank < size; ++rank) crew.wire(rank).meet();
    crew.expect_success();
  }
}

// More than 2^31 bytes on one connection, in the largest messages that NCCL sends.
TEST_P(NcclNetRing, A_gigabyte_arrives_three_times) {
  const auto with_memory = [](Net& net, void* comm, Wire& peer, const auto& body) {
    std::vector<std::byte> memory(1_GiB);
    void* registered = nullptr;
    ASSERT_EQ(net.reg_mr(comm, memory.data(), memory.size(), kPointerHost, &registered),
              Result::success);
    body(memory, registered);
    peer.meet();
    EXPECT_EQ(net.dereg_mr(comm, registered), Result::success);
  };
  pair(
      [&](Communicator& communicator, void* comm, Wire& peer) {
        Net& net = *communicator.net;
        with_memory(net, comm, peer, [&](std::vector<std::byte>& memory, void* registered) {
          paint(memory.data(), memory.size(), 1);
          for (int i = 0; i < 3; ++i) {
            void* request = nullptr;
            const Nanoseconds deadline = now_ns() + 30_s;
            while (request == nullptr && now_ns() < deadline)
              ASSERT_EQ(net.isend(comm, memory.data(), 1_GiB, registered, &request),
                        Result::success)
                  << last_warning();
            ASSERT_NE(request, nullptr);
            EXPECT_EQ(finish(net, request), static_cast<int>(1_GiB));
          }
        });
        EXPECT_EQ(net.close_send(comm), Result::success);
      },
      [&](Communicator& communicator, void* comm, Wire& peer) {
        Net& net = *communicator.net;
        with_memory(net, comm, peer, [&](std::vector<std::byte>& memory, void* registered) {
          for (int i = 0; i < 3; ++i) {
            void* request = nullptr;
            ASSERT_EQ(net.irecv(comm, memory.data(), 1_GiB, registered, &request), Result::success);
            ASSERT_NE(request, nullptr);
            EXPECT_EQ(finish(net, request), static_cast<int>(1_GiB));
          }
          EXPECT_EQ(first_wrong(memory.data(), memory.size(), 1), memory.size());
        });
        EXPECT_EQ(net.close_recv(comm), Result::success);
      });
}

INSTANTIATE_TEST_SUITE_P(Versions, NcclNetRing, testing::Values(kOldestVersion, kNewestVersion),
                         [](const auto& version) { return "v" + std::to_string(version.param); });

}  // namespace
}  // namespace noria::test
