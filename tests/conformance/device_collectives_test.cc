// Collectives of GPUs through the C API, on the stand-in: right, in the order of the stream that
// was given, and without a host that waits. Every test ends without a violation, and without an
// object that is left.
#include "tests/support/gpu_rank.hpp"

#include <latch>

#include "tests/support/cuda_standin/nccl.hpp"

namespace noria::test {
namespace {

using standin::OnDevice;

class DeviceCollectivesTest : public testing::TestWithParam<uint64_t> {
 protected:
  void SetUp() override { standin::reset(GetParam()); }
  void TearDown() override {
    EXPECT_EQ(standin::violations(), std::vector<std::string>());
    EXPECT_EQ(standin::objects_alive(), 0u);
  }
};

INSTANTIATE_TEST_SUITE_P(Seeds, DeviceCollectivesTest, testing::Range<uint64_t>(0, 6));

// ---- results ------------------------------------------------------------------------------------

TEST_P(DeviceCollectivesTest, An_all_reduce_comes_behind_its_stream_and_before_what_follows) {
  constexpr size_t kCount = 1000;
  run_gpu_ranks(3, [](GpuRank& mine) {
    for (int round = 0; round < 3; ++round) {
      const uint64_t in = mine.given(values_of(mine.rank, kCount));
      const uint64_t out = mine.on.memory<float>(kCount);
      expect_ok(mine.sum(in, out, kCount));
      // Expect: the sums, and the input as it was.
      EXPECT_EQ(mine.read(out, kCount), sums_of(3, kCount));
      EXPECT_EQ(mine.read(in, kCount), values_of(mine.rank, kCount));
    }
  });
}

TEST_P(DeviceCollectivesTest, Operations_and_types_are_the_hosts) {
  run_gpu_ranks(4, [](GpuRank& mine) {
    const noria_stream queue = mine.stream(mine.main);
    const auto reduce = [&]<class T>(T value, noria_dtype dtype, noria_op op) {
      const uint64_t at = mine.on.memory<T>(5);
      mine.on.write(mine.main, at, std::vector<T>(5, value));
      void* const place = mine.pointer<void>(at);
      expect_ok(noria_all_reduce(mine.comm, place, place, 5, dtype, op, &queue, nullptr));
      return mine.on.read<T>(mine.main, at, 5)[4];
    };
    EXPECT_EQ(reduce(static_cast<float>(mine.rank), NORIA_FLOAT32, NORIA_AVG), 1.5F);
    EXPECT_EQ(reduce(static_cast<double>(mine.rank), NORIA_FLOAT64, NORIA_SUM), 6.0);
    EXPECT_EQ(reduce(int32_t{mine.rank}, NORIA_INT32, NORIA_MAX), 3);
    EXPECT_EQ(reduce(int64_t{mine.rank + 1}, NORIA_INT64, NORIA_PROD), 24);
    EXPECT_EQ(reduce(int64_t{mine.rank + 1}, NORIA_INT64, NORIA_MIN), 1);
  });
}

TEST_P(DeviceCollectivesTest, Broadcast_and_blocks_of_one_size) {
  run_gpu_ranks(3, [](GpuRank& mine) {
    const noria_stream queue = mine.stream(mine.main);
    const auto self = static_cast<size_t>(mine.rank);
    // What the root has; elsewhere the input is not looked at.
    const uint64_t sent = mine.given(values_of(mine.rank, 4));
    const uint64_t got = mine.on.memory<float>(4);
    expect_ok(noria_broadcast(mine.comm, mine.rank == 1 ? mine.pointer<void>(sent) : nullptr,
                              mine.pointer<void>(got), 4, NORIA_FLOAT32, 1, &queue, nullptr));
    EXPECT_EQ(mine.read(got, 4), values_of(1, 4));

    // Reduce and scatter, then gather in place.
    const uint64_t all = mine.given(values_of(mine.rank, 6));
    const uint64_t block = all + self * 2 * sizeof(float);
    expect_ok(noria_reduce_scatter(mine.comm, mine.pointer<void>(all), mine.pointer<void>(block), 2,
                                   NORIA_FLOAT32, NORIA_SUM, &queue, nullptr));
    expect_ok(noria_all_gather(mine.comm, mine.pointer<void>(block), mine.pointer<void>(all), 2,
                               NORIA_FLOAT32, &queue, nullptr));
    EXPECT_EQ(mine.read(all, 6), sums_of(3, 6));
  });
}

TEST_P(DeviceCollectivesTest, Blocks_of_different_sizes_and_of_none) {
  run_gpu_ranks(3, [](GpuRank& mine) {
    const noria_stream queue = mine.stream(mine.main);
    const std::vector<uint64_t> counts{3, 0, 5}, edges{0, 3, 3, 8};
    const auto self = static_cast<size_t>(mine.rank);
    const uint64_t all = mine.given(values_of(mine.rank, 8));
    const uint64_t block = counts[self] != 0 ? mine.on.memory<float>(counts[self]) : 0;
    expect_ok(noria_reduce_scatter_v(mine.comm, mine.pointer<void>(all), mine.pointer<void>(block),
                                     counts.data(), NORIA_FLOAT32, NORIA_SUM, &queue, nullptr));
    const uint64_t gathered = mine.on.memory<float>(8);
    expect_ok(noria_all_gather_v(mine.comm, mine.pointer<void>(block), mine.pointer<void>(gathered),
                                 counts.data(), NORIA_FLOAT32, &queue, nullptr));
    EXPECT_EQ(mine.read(gathered, 8), sums_of(3, 8));
    // Expect: the other blocks of what was reduced are as they were.
    EXPECT_EQ(mine.read(all, 8), values_of(mine.rank, 8));
  });
}

TEST_P(DeviceCollectivesTest, One_rank_has_its_own_values) {
  run_gpu_ranks(1, [](GpuRank& mine) {
    const uint64_t in = mine.given(values_of(0, 10)), out = mine.on.memory<float>(10);
    expect_ok(mine.sum(in, out, 10, nullptr, NORIA_AVG));
    EXPECT_EQ(mine.read(out, 10), values_of(0, 10));
    const noria_stream queue = mine.stream(mine.main);
    expect_ok(noria_barrier(mine.comm, &queue, nullptr));
  });
}

TEST_P(DeviceCollectivesTest, More_operations_than_are_remembered) {
  run_gpu_ranks(2, [](GpuRank& mine) {
    const uint64_t at = mine.given({1.0F});
    for (int i = 0; i < 100; ++i) expect_ok(mine.sum(at, at, 1, nullptr, NORIA_AVG));
    EXPECT_EQ(mine.read(at, 1), std::vector<float>{1.0F});
  });
}

TEST_P(DeviceCollectivesTest, Nothing_is_reduced_without_a_word) {
  run_gpu_ranks(2, [](GpuRank& mine) {
    noria_work* work = nullptr;
    expect_ok(mine.sum(0, 0, 0, &work));
    expect_ok(noria_work_wait(work, 10'000));
    noria_work_release(work);
  });
}

// ---- order and waiting --------------------------------------------------------------------------

TEST_P(DeviceCollectivesTest, The_host_waits_for_nothing) {
  std::latch all(2);
  run_gpu_ranks(2, [&](GpuRank& mine) {
    const uint64_t at = mine.given({1.0F});
    standin::hold(mine.main);
    noria_work* work = nullptr;
    for (int i = 0; i < 3; ++i) expect_ok(mine.sum(at, at, 1));
    expect_ok(mine.sum(at, at, 1, &work));
    // Expect: all calls are back, and nothing has happened.
    EXPECT_EQ(noria_work_test(work), NORIA_IN_PROGRESS);
    EXPECT_EQ(noria_work_wait(work, 1), NORIA_E_TIMEOUT);
    EXPECT_NE(last_error().find("wait for it again"), std::string::npos);
    all.arrive_and_wait();
    standin::release(mine.main);
    expect_ok(noria_work_wait(work, 0));
    EXPECT_EQ(noria_work_test(work), NORIA_OK);
    noria_work_release(work);
    EXPECT_EQ(mine.read(at, 1), std::vector<float>{16.0F});
  });
}

TEST_P(DeviceCollectivesTest, A_barrier_holds_back_the_stream_until_all_have_come) {
  std::latch looked(2);
  run_gpu_ranks(2, [&](GpuRank& mine) {
    const noria_stream queue = mine.stream(mine.main);
    if (mine.rank == 1) standin::hold(mine.main);
    noria_work* work = nullptr;
    expect_ok(noria_barrier(mine.comm, &queue, &work));
    // Expect: no rank is through while rank 1's stream has not come to it.
    EXPECT_EQ(noria_work_test(work), NORIA_IN_PROGRESS);
    looked.arrive_and_wait();
    if (mine.rank == 1) standin::release(mine.main);
    expect_ok(noria_work_wait(work, 0));
    noria_work_release(work);
  });
}

TEST_P(DeviceCollectivesTest, Each_call_has_the_stream_that_it_is_given) {
  run_gpu_ranks(2, [](GpuRank& mine) {
    std::vector<uint64_t> at;
    std::vector<void*> streams;
    for (size_t i = 0; i < 20; ++i) {
      streams.push_back(mine.on.stream());
      at.push_back(mine.on.memory<float>(8));
      mine.on.write(streams[i], at[i], std::vector<float>(8, static_cast<float>(i)));
      const noria_stream queue = mine.stream(streams[i]);
      expect_ok(noria_all_reduce(mine.comm, mine.pointer<void>(at[i]), mine.pointer<void>(at[i]), 8,
                                 NORIA_FLOAT32, NORIA_SUM, &queue, nullptr));
    }
    for (size_t i = 0; i < streams.size(); ++i)
      EXPECT_EQ(mine.on.read<float>(streams[i], at[i], 8),
                std::vector<float>(8, 2.0F * static_cast<float>(i)));
  });
}

TEST_P(DeviceCollectivesTest, CUDAs_default_streams_are_streams) {
  run_gpu_ranks(2, [](GpuRank& mine) {
    for (const uintptr_t handle : {uintptr_t{0}, uintptr_t{1}, uintptr_t{2}}) {
      void* const of_cuda = reinterpret_cast<void*>(handle);
      const uint64_t at = mine.on.memory<float>(4);
      mine.on.write(of_cuda, at, std::vector<float>(4, 3.0F));
      const noria_stream queue = mine.stream(of_cuda);
      expect_ok(noria_all_reduce(mine.comm, mine.pointer<void>(at), mine.pointer<void>(at), 4,
                                 NORIA_FLOAT32, NORIA_SUM, &queue, nullptr));
      EXPECT_EQ(mine.on.read<float>(of_cuda, at, 4), std::vector<float>(4, 6.0F));
    }
  });
}

TEST_P(DeviceCollectivesTest, Works_are_kept_as_long_as_they_are_held) {
  run_gpu_ranks(2, [](GpuRank& mine) {
    const uint64_t at = mine.given({1.0F});
    std::vector<noria_work*> works(70);
    for (noria_work*& work : works) expect_ok(mine.sum(at, at, 1, &work, NORIA_AVG));
    for (noria_work* const work : works) {
      expect_ok(noria_work_wait(work, 0));
      noria_work_release(work);
    }
    // Expect: their events serve again.
    const uint64_t made = standin::calls("cuEventCreate");
    for (int i = 0; i < 10; ++i) {
      noria_work* work = nullptr;
      expect_ok(mine.sum(at, at, 1, &work, NORIA_AVG));
      expect_ok(noria_work_wait(work, 0));
      noria_work_release(work);
    }
    EXPECT_EQ(standin::calls("cuEventCreate"), made);
  });
}

// ---- whose context, whose communicator ----------------------------------------------------------

TEST_P(DeviceCollectivesTest, The_threads_own_context_is_current_again) {
  run_gpu_ranks(2, [](GpuRank& mine) {
    const uint64_t at = mine.given({2.0F});
    {
      const OnDevice elsewhere(mine.rank + 4);
      expect_ok(mine.sum(at, at, 1));
      void* current = nullptr;
      EXPECT_EQ(cuCtxGetCurrent(&current), 0);
      EXPECT_EQ(current, elsewhere.context());
    }
    EXPECT_EQ(mine.read(at, 1), std::vector<float>{4.0F});
  });
}

TEST_P(DeviceCollectivesTest, The_current_device_is_taken_where_none_is_named) {
  const noria_unique_id id = make_job_id();
  noria_comm_config config = gpu_config(id, 0, 1);
  config.device = -1;
  for (const int device : {0, 3}) {
    const OnDevice on(device);
    noria_comm* comm = nullptr;
    expect_ok(noria_comm_create(&config, &comm));
    noria_comm_info info{};
    info.struct_size = sizeof info;
    expect_ok(noria_observe_comm(comm, &info));
    EXPECT_NE(std::string(info.gpu).find("CUDA device " + std::to_string(device)),
              std::string::npos)
        << info.gpu;
    noria_comm_destroy(comm);
  }
}

TEST_P(DeviceCollectivesTest, The_hosts_collectives_go_on_as_ever) {
  run_gpu_ranks(2, [](GpuRank& mine) {
    std::vector<float> values = values_of(mine.rank, 100'000);
    expect_ok(noria_all_reduce(mine.comm, values.data(), values.data(), values.size(),
                               NORIA_FLOAT32, NORIA_SUM, nullptr, nullptr));
    EXPECT_EQ(values, sums_of(2, values.size()));
    expect_ok(noria_barrier(mine.comm, nullptr, nullptr));
    const noria_comm_info info = mine.info();
    EXPECT_EQ(info.nccl, 1u);
    EXPECT_GE(info.nccl_version, 21900u);
  });
}

TEST_P(DeviceCollectivesTest, A_callers_communicator_is_used_and_stays_the_callers) {
  standin::UniqueId nccl_id;
  ASSERT_EQ(ncclGetUniqueId(&nccl_id), 0);
  const noria_unique_id id = make_job_id();
  run_rank_threads(2, [&](int32_t rank) {
    OnDevice on(rank);
    void* theirs = nullptr;
    ASSERT_EQ(ncclCommInitRank(&theirs, 2, nccl_id, rank), 0);
    {
      noria_comm_config config = gpu_config(id, rank, 2);
      config.nccl_comm = theirs;
      GpuRank mine(config);
      const uint64_t at = mine.given({5.0F});
      expect_ok(mine.sum(at, at, 1));
      EXPECT_EQ(mine.read(at, 1), std::vector<float>{10.0F});
      EXPECT_EQ(mine.info().nccl, 2u);
    }
    // Expect: it is whole.
    const uint64_t at = on.memory<float>(1);
    on.write<float>(nullptr, at, {1.0F});
    void* const place = reinterpret_cast<void*>(at);
    ASSERT_EQ(ncclAllReduce(place, place, 1, NORIA_FLOAT32, NORIA_SUM, theirs, nullptr), 0);
    EXPECT_EQ(on.read<float>(nullptr, at, 1), std::vector<float>{2.0F});
    ASSERT_EQ(ncclCommDestroy(theirs), 0);
  });
}

TEST_P(DeviceCollectivesTest, A_split_of_GPUs_is_of_GPUs) {
  run_gpu_ranks(4, [](GpuRank& mine) {
    noria_comm* half = nullptr;
    expect_ok(noria_comm_split(mine.comm, mine.rank % 2, 0, &half));
    const uint64_t at = mine.given({static_cast<float>(mine.rank)});
    const noria_stream queue = mine.stream(mine.main);
    expect_ok(noria_all_reduce(half, mine.pointer<void>(at), mine.pointer<void>(at), 1,
                               NORIA_FLOAT32, NORIA_SUM, &queue, nullptr));
    EXPECT_EQ(mine.read(at, 1), std::vector<float>{mine.rank % 2 == 0 ? 2.0F : 4.0F});
    noria_comm_destroy(half);
  });
}

}  // namespace
}  // namespace noria::test
