// Groups of receives through the table of every version: uneven sizes and tags, any order of sends.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "base/units.hpp"
#include "tests/support/nccl_pair.hpp"
#include "tests/support/pattern.hpp"

namespace noria::test {
namespace {

using plugin::abi::kPointerHost;

class NcclNetGroup : public NcclNet {};

// Groups of receives: sizes, tags and the order of sends follow from the group's number.
struct Group {
  static constexpr size_t kRoom = 64_KiB;

  explicit Group(size_t which) : number(which), members(1 + which * 5 % kMost) {}
  // Among the tags of a group some are equal.
  int tag(size_t i) const { return static_cast<int>((number + i) % 5) - 1; }
  size_t bytes(size_t i) const {
    return (number + i) % 4 == 0 ? 0 : (number * 7919 + i * 104729) % kRoom;
  }
  size_t room(size_t i) const { return bytes(i) == 0 && i % 2 == 0 ? 0 : kRoom; }
  uint64_t seed(size_t i) const { return number * kMost + i; }
  // Which member is sent as the k-th: by tags, in an order that is another in each group.
  std::vector<size_t> send_order() const {
    std::vector<size_t> order(members);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return (tag(a) + 1) * static_cast<int>(1 + number % 4) % 5 <
             (tag(b) + 1) * static_cast<int>(1 + number % 4) % 5;
    });
    return order;
  }

  static constexpr size_t kMost = 8;
  size_t number;
  size_t members;
};
constexpr size_t kGroups = 200;

void send_groups(Net& net, void* comm, std::vector<std::byte>& memory, void* registered,
                 size_t depth) {
  std::vector<std::pair<void*, size_t>> requests;  // and bytes
  std::vector<size_t> first_of;                    // of each group, its first request
  size_t done = 0;
  const Nanoseconds deadline = now_ns() + 60_s;
  const auto test_oldest = [&] {
    int is_done = -1;
    int bytes = -1;
    ASSERT_EQ(net.test(requests[done].first, &is_done, &bytes), Result::success) << last_warning();
    if (is_done != 1) return;
    EXPECT_EQ(static_cast<size_t>(bytes), requests[done].second);
    ++done;
  };
  for (size_t number = 0; number < kGroups; ++number) {
    const Group group(number);
    // The memory of the group `depth` before is free again.
    const size_t first = requests.size();
    first_of.push_back(first);
    while (number >= depth && done < first_of[number - depth + 1] && now_ns() < deadline)
      ASSERT_NO_FATAL_FAILURE(test_oldest());
    for (const size_t i : group.send_order()) {
      std::byte* const data = memory.data() + (number % depth * Group::kMost + i) * Group::kRoom;
      paint(data, group.bytes(i), group.seed(i));
      void* const mine = group.bytes(i) != 0 ? registered : nullptr;
      void* request = kStale;
      // A tag that no receive has.  Expect: not yet.
      ASSERT_EQ(net.isend(comm, data, group.bytes(i), mine, &request, 99), Result::success);
      ASSERT_EQ(request, nullptr);
      while (request == nullptr && now_ns() < deadline) {
        request = kStale;
        ASSERT_EQ(net.isend(comm, data, group.bytes(i), mine, &request, group.tag(i)),
                  Result::success)
            << last_warning();
        if (request == nullptr && done < first) test_oldest();
      }
      ASSERT_NE(request, nullptr) << "gave up after 60 s";
      requests.emplace_back(request, group.bytes(i));
    }
  }
  while (done < requests.size() && now_ns() < deadline) ASSERT_NO_FATAL_FAILURE(test_oldest());
  EXPECT_EQ(done, requests.size()) << "gave up after 60 s";
}

void receive_groups(Net& net, void* comm, std::vector<std::byte>& memory, void* registered,
                    size_t depth) {
  std::vector<void*> requests;
  size_t done = 0;
  const Nanoseconds deadline = now_ns() + 60_s;
  const auto place = [&](size_t number, size_t i) {
    return memory.data() + (number % depth * Group::kMost + i) * Group::kRoom;
  };
  while (done < kGroups && now_ns() < deadline) {
    if (requests.size() < kGroups && requests.size() - done < depth) {
      const Group group(requests.size());
      std::array<void*, Group::kMost> data{}, memories{};
      std::array<size_t, Group::kMost> rooms{};
      std::array<int, Group::kMost> tags{};
      for (size_t i = 0; i < group.members; ++i) {
        data[i] = place(group.number, i);
        rooms[i] = group.room(i);
        tags[i] = group.tag(i);
        memories[i] = rooms[i] != 0 ? registered : nullptr;
      }
      void* request = kOptional;
      ASSERT_EQ(net.irecv_group(comm, static_cast<int>(group.members), data.data(), rooms.data(),
                                tags.data(), memories.data(), &request),
                Result::success)
          << last_warning();
      ASSERT_NE(request, kOptional);
      if (request != nullptr) requests.push_back(request);
    }
    if (done == requests.size()) continue;
    const Group group(done);
    int is_done = -1;
    std::array<int, Group::kMost + 1> sizes;
    sizes.fill(-7);
    ASSERT_EQ(net.test(requests[done], &is_done, sizes.data()), Result::success) << last_warning();
    if (is_done != 1) continue;
    // Expect: as many sizes as receives, and those bytes.
    for (size_t i = 0; i < group.members; ++i) {
      ASSERT_EQ(static_cast<size_t>(sizes[i]), group.bytes(i)) << "group " << done << " part " << i;
      ASSERT_EQ(first_wrong(place(done, i), group.bytes(i), group.seed(i)), group.bytes(i));
    }
    EXPECT_EQ(sizes[group.members], -7);
    std::array<void*, Group::kMost> data{}, memories{};
    void* flush = kStale;
    ASSERT_EQ(net.iflush_group(comm, static_cast<int>(group.members), data.data(), sizes.data(),
                               memories.data(), &flush),
              Result::success);
    ASSERT_EQ(flush, nullptr) << "host memory needs no flush";
    ++done;
  }
  EXPECT_EQ(done, kGroups) << "gave up after 60 s";
}

TEST_P(NcclNetGroup, Groups_of_uneven_sizes_and_tags_arrive_whatever_the_order_of_sends) {
  for (const size_t depth : {size_t{8}, size_t{32}}) {
    const auto drive = [depth](auto side, auto close) {
      return [=](Communicator& communicator, void* comm, Wire& peer) {
        Net& net = *communicator.net;
        std::vector<std::byte> memory(depth * Group::kMost * Group::kRoom);
        void* registered = nullptr;
        ASSERT_EQ(net.reg_mr(comm, memory.data(), memory.size(), kPointerHost, &registered),
                  Result::success);
        side(net, comm, memory, registered, depth);
        EXPECT_EQ(net.dereg_mr(comm, registered), Result::success);
        peer.meet();
        EXPECT_EQ((net.*close)(comm), Result::success);
      };
    };
    pair(drive(send_groups, &Net::close_send), drive(receive_groups, &Net::close_recv));
  }
}

TEST_P(NcclNetGroup, Receives_32_groups_of_8_at_once_and_256_sends) {
  alone([] {
    const Communicator communicator(GetParam());
    Net& net = *communicator.net;
    Ends ends;
    ASSERT_NO_FATAL_FAILURE(connect_to_itself(net, communicator.context, &ends));
    void* const sending = ends.sending;
    void* const receiving = ends.receiving;
    std::array<void*, 8> none{};
    std::array<size_t, 8> no_bytes{};
    std::array<int, 8> tags{1, 2, 3, 4, 5, 6, 7, 8};
    std::vector<void*> received, sent;
    const Nanoseconds deadline = now_ns() + 30_s;
    while (received.size() < 32 && now_ns() < deadline) {
      void* request = kStale;
      ASSERT_EQ(net.irecv_group(receiving, 8, none.data(), no_bytes.data(), tags.data(),
                                none.data(), &request),
                Result::success);
      if (request != nullptr) received.push_back(request);
    }
    ASSERT_EQ(received.size(), 32u);
    while (sent.size() < 256 && now_ns() < deadline) {
      void* request = kStale;
      ASSERT_EQ(
          net.isend(sending, nullptr, 0, nullptr, &request, static_cast<int>(8 - sent.size() % 8)),
          Result::success);
      if (request != nullptr) sent.push_back(request);
    }
    ASSERT_EQ(sent.size(), 256u);
    // One more of each.  Expect: not yet.
    void* request = kStale;
    ASSERT_EQ(net.isend(sending, nullptr, 0, nullptr, &request), Result::success);
    EXPECT_EQ(request, nullptr);
    ASSERT_EQ(net.irecv(receiving, nullptr, 0, nullptr, &request), Result::success);
    EXPECT_EQ(request, nullptr);
    for (void* one : sent) EXPECT_EQ(finish(net, one), 0);
    for (void* one : received) {
      int is_done = 0;
      while (is_done == 0) ASSERT_EQ(net.test(one, &is_done, nullptr), Result::success);
    }
    close_both(net, ends);
  });
}

TEST_P(NcclNetGroup, A_group_that_cannot_be_is_refused_with_a_line) {
  alone([] {
    const Communicator communicator(GetParam());
    Net& net = *communicator.net;
    Ends ends;
    ASSERT_NO_FATAL_FAILURE(connect_to_itself(net, communicator.context, &ends));
    void* const receiving = ends.receiving;
    std::array<std::byte, 16> memory{};
    void* registered = nullptr;
    ASSERT_EQ(net.reg_mr(receiving, memory.data(), memory.size(), kPointerHost, &registered),
              Result::success);
    std::array<void*, 9> data{}, memories{};
    data.fill(memory.data());
    memories.fill(registered);
    std::array<size_t, 9> bytes{};
    bytes.fill(8);
    std::array<int, 9> tags{};
    const auto refuses = [&](int count, void** places, size_t* rooms, int* wanted,
                             void** registrations) {
      forget_logged_lines();
      void* request = kStale;
      const Result result =
          net.irecv_group(receiving, count, places, rooms, wanted, registrations, &request);
      EXPECT_EQ(request, nullptr);
      return result == Result::invalid_argument && contains(last_warning(), "irecv");
    };
    for (const int count : {-1, 0, 9})
      EXPECT_TRUE(refuses(count, data.data(), bytes.data(), tags.data(), memories.data())) << count;
    EXPECT_TRUE(refuses(8, nullptr, bytes.data(), tags.data(), memories.data()));
    EXPECT_TRUE(refuses(8, data.data(), nullptr, tags.data(), memories.data()));
    EXPECT_TRUE(refuses(8, data.data(), bytes.data(), nullptr, memories.data()));
    EXPECT_TRUE(refuses(8, data.data(), bytes.data(), tags.data(), nullptr));
    memories[7] = nullptr;
    EXPECT_TRUE(refuses(8, data.data(), bytes.data(), tags.data(), memories.data()));
    for (const int count : {-1, 0, 9}) {
      void* request = kStale;
      forget_logged_lines();
      EXPECT_EQ(net.iflush_group(receiving, count, data.data(), nullptr, memories.data(), &request),
                Result::invalid_argument);
      EXPECT_EQ(request, nullptr);
      EXPECT_TRUE(contains(last_warning(), "iflush")) << last_warning();
    }
    // A part that is too long for its memory.  Expect: the request fails, told by test().
    memories[7] = registered;
    bytes[7] = 17;
    void* request = nullptr;
    ASSERT_EQ(net.irecv_group(receiving, 8, data.data(), bytes.data(), tags.data(), memories.data(),
                              &request),
              Result::success);
    ASSERT_NE(request, nullptr);
    int is_done = 0;
    std::array<int, 8> sizes{};
    EXPECT_EQ(net.test(request, &is_done, sizes.data()), Result::invalid_usage);
    EXPECT_TRUE(contains(last_warning(), "outside of the registered memory")) << last_warning();
    EXPECT_EQ(net.dereg_mr(receiving, registered), Result::success);
    close_both(net, ends);
  });
}

INSTANTIATE_TEST_SUITE_P(Versions, NcclNetGroup, testing::Range(kOldestVersion, kNewestVersion + 1),
                         [](const auto& version) { return "v" + std::to_string(version.param); });

}  // namespace
}  // namespace noria::test
