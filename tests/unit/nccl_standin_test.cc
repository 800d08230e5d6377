// The stand-in as NCCL: sums, hangs, aborts and errors.
#include <gtest/gtest.h>

#include <climits>
#include <functional>
#include <latch>
#include <thread>

#include "tests/support/cuda_standin/nccl.hpp"
#include "tests/support/cuda_standin/on_device.hpp"

namespace noria::standin {
namespace {

constexpr int kInt32 = 2;
constexpr int kFloat16 = 6;
constexpr int kFloat32 = 7;
constexpr int kBfloat16 = 9;
constexpr int kSum = 0;
constexpr int kMax = 2;
constexpr int kAvg = 4;

// One rank on its device with its communicator and a stream.
struct Rank {
  Rank(int ranks, const UniqueId& id, int number) : rank(number), device(number) {
    EXPECT_EQ(ncclCommInitRank(&comm, ranks, id, number), kNcclSuccess);
    stream = device.stream();
  }
  void destroy() { EXPECT_EQ(ncclCommDestroy(comm), kNcclSuccess); }

  int rank;
  OnDevice device;
  void* comm = nullptr;
  void* stream = nullptr;
};

class NcclStandinTest : public testing::TestWithParam<uint64_t> {
 protected:
  void SetUp() override { reset(GetParam()); }
  void TearDown() override {
    EXPECT_EQ(violations(), std::vector<std::string>());
    EXPECT_EQ(objects_alive(), 0u);
  }

  static void each(int ranks, const std::function<void(Rank&)>& work) {
    UniqueId id;
    ASSERT_EQ(ncclGetUniqueId(&id), kNcclSuccess);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] {
        Rank own(ranks, id, rank);
        work(own);
      });
    for (std::thread& thread : threads) thread.join();
  }
  // Of each rank `in` by its number.
  template <class T>
  static void expect_all_reduce(int dtype, int op, const std::function<T(int)>& in, T expected) {
    each(4, [&](Rank& own) {
      const uint64_t at = own.device.memory<T>(100);
      own.device.write(own.stream, at, std::vector<T>(100, in(own.rank)));
      const void* const place = reinterpret_cast<void*>(at);
      ASSERT_EQ(
          ncclAllReduce(place, reinterpret_cast<void*>(at), 100, dtype, op, own.comm, own.stream),
          kNcclSuccess);
      EXPECT_EQ(own.device.read<T>(own.stream, at, 100), std::vector<T>(100, expected));
      own.destroy();
    });
  }
};

INSTANTIATE_TEST_SUITE_P(Seeds, NcclStandinTest, testing::Range<uint64_t>(0, 6));

TEST_P(NcclStandinTest, Adds_what_all_ranks_gave) {
  expect_all_reduce<float>(
      kFloat32, kSum, [](int rank) { return static_cast<float>(rank) + 0.5F; }, 8.0F);
  expect_all_reduce<float>(
      kFloat32, kAvg, [](int rank) { return static_cast<float>(rank) + 0.5F; }, 2.0F);
  expect_all_reduce<int32_t>(
      kInt32, kSum, [](int rank) { return rank - 3; }, -6);
  expect_all_reduce<int32_t>(
      kInt32, kMax, [](int rank) { return rank * 7; }, 21);
  // 2048 + 1 has no f16: each addition rounds to even.
  expect_all_reduce<uint16_t>(
      kFloat16, kSum,
      [](int rank) { return uint16_t{rank == 0 ? uint16_t{0x6800} : uint16_t{0x3C00}}; }, 0x6800);
  expect_all_reduce<uint16_t>(
      kBfloat16, kSum, [](int) { return uint16_t{0x3F80}; }, 0x4080);
}

TEST_P(NcclStandinTest, Scatters_gathers_and_broadcasts) {
  each(3, [](Rank& own) {
    const uint64_t all = own.device.memory<float>(6);
    const uint64_t part = own.device.memory<float>(2);
    void* const at_all = reinterpret_cast<void*>(all);
    void* const at_part = reinterpret_cast<void*>(part);
    own.device.write<float>(own.stream, all, {0, 1, 2, 3, 4, 5});
    ASSERT_EQ(ncclReduceScatter(at_all, at_part, 2, kFloat32, kSum, own.comm, own.stream),
              kNcclSuccess);
    const auto first = static_cast<float>(own.rank * 6);
    EXPECT_EQ(own.device.read<float>(own.stream, part, 2), (std::vector<float>{first, first + 3}));
    ASSERT_EQ(ncclAllGather(at_part, at_all, 2, kFloat32, own.comm, own.stream), kNcclSuccess);
    EXPECT_EQ(own.device.read<float>(own.stream, all, 6), (std::vector<float>{0, 3, 6, 9, 12, 15}));
    own.device.write<float>(own.stream, part, {first, first});
    ASSERT_EQ(ncclBroadcast(at_part, at_part, 2, kFloat32, 1, own.comm, own.stream), kNcclSuccess);
    EXPECT_EQ(own.device.read<float>(own.stream, part, 2), (std::vector<float>{6, 6}));
    ASSERT_EQ(ncclReduce(at_part, at_all, 2, kFloat32, kSum, 2, own.comm, own.stream),
              kNcclSuccess);
    const float sum = own.rank == 2 ? 18 : 0;
    EXPECT_EQ(own.device.read<float>(own.stream, all, 1), std::vector<float>{sum});
    own.destroy();
  });
}

TEST_P(NcclStandinTest, Groups_are_one_launch) {
  each(2, [](Rank& own) {
    const uint64_t at = own.device.memory<float>(4);
    own.device.write<float>(own.stream, at, {1, 2, 3, 4});
    ASSERT_EQ(ncclGroupStart(), kNcclSuccess);
    for (uint64_t i = 0; i < 4; ++i) {
      void* const place = reinterpret_cast<void*>(at + i * sizeof(float));
      ASSERT_EQ(ncclAllReduce(place, place, 1, kFloat32, kSum, own.comm, own.stream), kNcclSuccess);
    }
    EXPECT_EQ(ncclGroupEnd(), kNcclSuccess);
    EXPECT_EQ(own.device.read<float>(own.stream, at, 4), (std::vector<float>{2, 4, 6, 8}));
    own.destroy();
  });
}

TEST_P(NcclStandinTest, Is_checked_as_any_kernel) {
  each(2, [](Rank& own) {
    const uint64_t at = own.device.memory<float>(4);
    void* const place = reinterpret_cast<void*>(at);
    void* const other = own.device.stream();
    own.device.write<float>(own.stream, at, {1, 2, 3, 4}, "producer");
    ASSERT_EQ(ncclAllReduce(place, place, 4, kFloat32, kSum, own.comm, other), kNcclSuccess);
    own.destroy();
  });
  // Expect: one missing wait a rank.
  const std::vector<std::string> found = violations();
  ASSERT_EQ(found.size(), 2u);
  EXPECT_NE(found[0].find("producer"), std::string::npos) << found[0];
  EXPECT_NE(found[0].find("ncclAllReduce"), std::string::npos) << found[0];
}

TEST_P(NcclStandinTest, Abort_ends_what_waits_for_a_rank_that_never_comes) {
  each(2, [](Rank& own) {
    const uint64_t at = own.device.memory<float>(4);
    void* const place = reinterpret_cast<void*>(at);
    if (own.rank == 1) return own.destroy();
    own.device.write<float>(own.stream, at, {1, 2, 3, 4});
    ASSERT_EQ(ncclAllReduce(place, place, 4, kFloat32, kSum, own.comm, own.stream), kNcclSuccess);
    EXPECT_FALSE(finish());
    EXPECT_EQ(cuStreamQuery(own.stream), kNotReady);
    ASSERT_EQ(ncclCommAbort(own.comm), kNcclSuccess);
    EXPECT_EQ(own.device.read<float>(own.stream, at, 4), (std::vector<float>{1, 2, 3, 4}));
  });
}

TEST_P(NcclStandinTest, A_rank_that_is_stalled_holds_all_up) {
  std::latch both(2);
  std::latch both_told(2);
  each(2, [&](Rank& own) {
    const uint64_t at = own.device.memory<float>(4);
    void* const place = reinterpret_cast<void*>(at);
    stall_rank(1);
    both.arrive_and_wait();
    ASSERT_EQ(ncclAllReduce(place, place, 4, kFloat32, kSum, own.comm, own.stream), kNcclSuccess);
    EXPECT_EQ(cuStreamQuery(own.stream), kNotReady);
    both_told.arrive_and_wait();
    ASSERT_EQ(ncclCommAbort(own.comm), kNcclSuccess);
    ASSERT_EQ(cuStreamSynchronize(own.stream), kSuccess);
  });
}

TEST_P(NcclStandinTest, What_does_not_fit_together_is_an_error_on_all_ranks) {
  each(2, [](Rank& own) {
    const uint64_t at = own.device.memory<float>(4);
    void* const place = reinterpret_cast<void*>(at);
    const size_t count = own.rank == 0 ? 4 : 3;
    ASSERT_EQ(ncclAllReduce(place, place, count, kFloat32, kSum, own.comm, own.stream),
              kNcclSuccess);
    int error = 0;
    while (error == kNcclSuccess) {
      ASSERT_EQ(cuStreamQuery(own.stream), kNotReady);
      ASSERT_EQ(ncclCommGetAsyncError(own.comm, &error), kNcclSuccess);
    }
    EXPECT_EQ(error, kNcclInternalError);
    EXPECT_NE(std::string(ncclGetLastError(own.comm)).find("do not fit"), std::string::npos);
    EXPECT_EQ(ncclAllReduce(place, place, 1, kFloat32, kSum, own.comm, own.stream),
              kNcclInternalError);
    ASSERT_EQ(ncclCommAbort(own.comm), kNcclSuccess);
  });
}

TEST_P(NcclStandinTest, A_rank_fails_when_it_is_told_to) {
  each(1, [](Rank& own) {
    fail_rank(0, kNcclRemoteError);
    int error = 0;
    ASSERT_EQ(ncclCommGetAsyncError(own.comm, &error), kNcclSuccess);
    EXPECT_EQ(error, kNcclRemoteError);
    ASSERT_EQ(ncclCommAbort(own.comm), kNcclSuccess);
  });
}

TEST_P(NcclStandinTest, One_that_does_not_block_is_asked_until_it_is_done) {
  UniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), kNcclSuccess);
  const auto settle = [](void* comm) {
    int state = kNcclInProgress;
    while (state == kNcclInProgress) {
      EXPECT_EQ(ncclCommGetAsyncError(comm, &state), kNcclSuccess);
      std::this_thread::yield();
    }
    return state;
  };
  const auto rank = [&](int number) {
    OnDevice device(number);
    void* const stream = device.stream();
    const uint64_t at = device.memory<float>(1);
    void* const place = reinterpret_cast<void*>(at);
    NcclConfig config{.size = sizeof config, .magic = 0xcafebeef, .version = 21900, .blocking = 0};
    void* comm = nullptr;
    ASSERT_EQ(ncclCommInitRankConfig(&comm, 2, id, number, &config), kNcclInProgress);
    ASSERT_EQ(settle(comm), kNcclSuccess);
    for (float step = 1; step < 10; ++step) {
      device.write<float>(stream, at, {step});
      ASSERT_LE(ncclAllReduce(place, place, 1, kFloat32, kSum, comm, stream) % kNcclInProgress, 0);
      ASSERT_EQ(settle(comm), kNcclSuccess);
      EXPECT_EQ(device.read<float>(stream, at, 1), std::vector<float>{2 * step});
    }
    ASSERT_EQ(ncclCommFinalize(comm), kNcclSuccess);
    ASSERT_EQ(ncclCommDestroy(comm), kNcclSuccess);
  };
  std::thread other(rank, 1);
  rank(0);
  other.join();
}

TEST_P(NcclStandinTest, Refuses_two_ranks_on_one_device) {
  UniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), kNcclSuccess);
  const OnDevice device(0);
  void* comms[2] = {};
  ASSERT_EQ(ncclGroupStart(), kNcclSuccess);
  ASSERT_EQ(ncclCommInitRank(&comms[0], 2, id, 0), kNcclSuccess);
  ASSERT_EQ(ncclCommInitRank(&comms[1], 2, id, 1), kNcclSuccess);
  EXPECT_EQ(ncclGroupEnd(), kNcclInvalidUsage);
  EXPECT_NE(std::string(ncclGetLastError(comms[0])).find("Duplicate GPU"), std::string::npos);
  for (void* const comm : comms) ASSERT_EQ(ncclCommAbort(comm), kNcclSuccess);
}

TEST_P(NcclStandinTest, Knows_what_it_is_and_what_was_registered) {
  set_nccl_version(21805);
  int version = 0;
  ASSERT_EQ(ncclGetVersion(&version), kNcclSuccess);
  EXPECT_EQ(version, 21805);
  each(1, [](Rank& own) {
    int value = -1;
    ASSERT_EQ(ncclCommCount(own.comm, &value), kNcclSuccess);
    EXPECT_EQ(value, 1);
    ASSERT_EQ(ncclCommUserRank(own.comm, &value), kNcclSuccess);
    EXPECT_EQ(value, 0);
    ASSERT_EQ(ncclCommCuDevice(own.comm, &value), kNcclSuccess);
    EXPECT_EQ(value, 0);
    uint64_t at = 0;
    void* handle = nullptr;
    ASSERT_EQ(cuMemAlloc_v2(&at, 64), kSuccess);
    ASSERT_EQ(ncclCommRegister(own.comm, reinterpret_cast<void*>(at), 64, &handle), kNcclSuccess);
    EXPECT_EQ(ncclCommRegister(own.comm, reinterpret_cast<void*>(at), 65, &handle),
              kNcclInvalidArgument);
    ASSERT_EQ(cuMemFree_v2(at), kSuccess);
    EXPECT_EQ(violations().size(), 1u);
    ASSERT_EQ(ncclCommDeregister(own.comm, handle), kNcclSuccess);
    own.destroy();
  });
}

}  // namespace
}  // namespace noria::standin
