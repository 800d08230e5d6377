// The memory that a reducer tells NCCL of: which it is, when it is told, and that NCCL has
// forgotten it before it goes, in whatever order things end. The stand-in notices what is freed
// while registered, what is registered while an operation is being launched, what is forgotten
// while one is in it, and a communicator that is destroyed before it forgot.
#include <gtest/gtest.h>

#include <latch>

#include "tests/support/cuda_standin/nccl.hpp"
#include "tests/support/device_rank.hpp"

namespace noria::test {
namespace {

// Of the rank, whose device is its own.
uint64_t registered(const DeviceRank& mine) {
  return standin::calls("ncclCommRegister", mine.rank);
}
uint64_t forgotten(const DeviceRank& mine) {
  return standin::calls("ncclCommDeregister", mine.rank);
}
void destroy_reducer(DeviceRank& mine) {
  noria_reducer_destroy(mine.reducer);
  mine.reducer = nullptr;
}
void destroy_comm(DeviceRank& mine) {
  noria_comm_destroy(mine.comm);
  mine.comm = nullptr;
}

// As run_device_job(); nothing is left.
void run_job(int32_t size, const noria_reducer_config& config,
             const std::function<void(DeviceRank&)>& body) {
  const size_t objects = standin::objects_alive();
  run_device_job(size, 4, small_model(), config, body);
  EXPECT_EQ(standin::objects_alive(), objects);
}

class DeviceMemoryOf : public testing::TestWithParam<bool> {};  // arena
INSTANTIATE_TEST_SUITE_P(Modes, DeviceMemoryOf, testing::Values(true, false),
                         [](const auto& mode) { return mode.param ? "Arena" : "Copy"; });

TEST_P(DeviceMemoryOf, NCCL_is_told_at_seal_and_never_in_a_step) {
  run_job(2, device_config(GetParam()), [](DeviceRank& mine) {
    EXPECT_EQ(registered(mine), 0u);
    mine.seal();
    EXPECT_EQ(registered(mine), 1u);
    for (uint64_t step = 0; step < 3; ++step) mine.run_good_step(step, step);
    EXPECT_EQ(registered(mine), 1u);
    EXPECT_EQ(forgotten(mine), 0u);
    destroy_reducer(mine);
    EXPECT_EQ(forgotten(mine), 1u);
  });
}

TEST_P(DeviceMemoryOf, Where_gradients_are_cast_slots_alone_are_NCCLs) {
  noria_reducer_config config = device_config(GetParam());
  config.wire_dtype = NORIA_BFLOAT16;
  run_job(2, config, [](DeviceRank& mine) {
    mine.seal();
    EXPECT_EQ(registered(mine), 1u);
  });
}

TEST_P(DeviceMemoryOf, One_rank_tells_nobody) {
  run_job(1, device_config(GetParam()), [](DeviceRank& mine) {
    mine.seal();
    mine.run_good_step(0, 1);
    EXPECT_EQ(registered(mine), 0u);
  });
}

TEST_P(DeviceMemoryOf, Slots_of_a_new_plan_take_the_place_of_the_old_ones) {
  noria_reducer_config config = device_config(GetParam());
  config.order = NORIA_ORDER_ARRIVAL;
  run_job(2, config, [](DeviceRank& mine) {
    mine.seal();
    for (uint64_t step = 0; step < 3; ++step) mine.run_good_step(step, 3);
    // The arena stays as it is.
    const uint64_t plans = mine.config.arena != 0 ? 1 : 2;
    EXPECT_EQ(registered(mine), plans);
    EXPECT_EQ(forgotten(mine), plans - 1);
  });
}

TEST_P(DeviceMemoryOf, A_reducer_may_outlive_its_communicator) {
  run_job(2, device_config(GetParam()), [](DeviceRank& mine) {
    mine.seal();
    mine.run_good_step(0, 1);
    destroy_comm(mine);
    EXPECT_EQ(forgotten(mine), 1u);
    // Expect: what has ended is told of nothing more.
    destroy_reducer(mine);
    EXPECT_EQ(forgotten(mine), 1u);
  });
}

TEST_P(DeviceMemoryOf, An_abort_takes_the_registrations_with_it) {
  for (const bool is_reducer_first : {true, false}) {
    std::latch ready(2), aborted(2);
    run_job(2, device_config(GetParam()), [&](DeviceRank& mine) {
      mine.seal();
      mine.run_good_step(0, 1);
      ready.arrive_and_wait();
      if (mine.rank == 1) expect_ok(noria_comm_abort(mine.comm, "enough"));
      aborted.arrive_and_wait();
      if (is_reducer_first) destroy_reducer(mine);
      destroy_comm(mine);
    });
  }
}

TEST_P(DeviceMemoryOf, A_callers_communicator_is_left_as_it_was) {
  for (const bool is_reducer_first : {true, false}) {
    standin::reset(4);
    const size_t objects = standin::objects_alive();
    standin::UniqueId nccl_id;
    ASSERT_EQ(ncclGetUniqueId(&nccl_id), 0);
    const noria_unique_id id = make_job_id();
    run_rank_threads(2, [&](int32_t rank) {
      standin::OnDevice on(rank);
      void* theirs = nullptr;
      ASSERT_EQ(ncclCommInitRank(&theirs, 2, nccl_id, rank), 0);
      {
        DeviceRank mine(id, rank, 2, small_model(), device_config(GetParam()), 2, 20'000, theirs);
        mine.seal();
        mine.run_good_step(0, 1);
        EXPECT_EQ(registered(mine), 1u);
        if (is_reducer_first) destroy_reducer(mine);
        destroy_comm(mine);
        EXPECT_EQ(forgotten(mine), 1u);
        // Expect: it may end before a reducer that is left.
        ASSERT_EQ(ncclCommDestroy(theirs), 0);
      }
    });
    EXPECT_EQ(standin::violations(), std::vector<std::string>());
    EXPECT_EQ(standin::objects_alive(), objects);
  }
}

TEST_P(DeviceMemoryOf, A_callers_communicator_that_nobody_aborted_forgets_too) {
  standin::reset(4);
  standin::UniqueId nccl_id;
  ASSERT_EQ(ncclGetUniqueId(&nccl_id), 0);
  const noria_unique_id id = make_job_id();
  std::latch ready(2), aborted(2);
  run_rank_threads(2, [&](int32_t rank) {
    standin::OnDevice on(rank);
    void* theirs = nullptr;
    ASSERT_EQ(ncclCommInitRank(&theirs, 2, nccl_id, rank), 0);
    {
      DeviceRank mine(id, rank, 2, small_model(), device_config(GetParam()), 2, 20'000, theirs);
      mine.seal();
      mine.run_good_step(0, 1);
      ready.arrive_and_wait();
      if (rank == 1) expect_ok(noria_comm_abort(mine.comm, "enough"));
      aborted.arrive_and_wait();
      destroy_comm(mine);
      EXPECT_EQ(forgotten(mine), 1u);
      ASSERT_EQ(ncclCommDestroy(theirs), 0);
    }
  });
  EXPECT_EQ(standin::violations(), std::vector<std::string>());
}

TEST_P(DeviceMemoryOf, What_a_callers_communicator_did_not_forget_is_not_given_back) {
  standin::reset(4);
  standin::UniqueId nccl_id;
  ASSERT_EQ(ncclGetUniqueId(&nccl_id), 0);
  const noria_unique_id id = make_job_id();
  std::latch are_destroyed(2);
  run_rank_threads(2, [&](int32_t rank) {
    standin::OnDevice on(rank);
    void* theirs = nullptr;
    ASSERT_EQ(ncclCommInitRank(&theirs, 2, nccl_id, rank), 0);
    {
      DeviceRank mine(id, rank, 2, small_model(), device_config(GetParam()), 2, 20'000, theirs);
      mine.seal();
      mine.run_good_step(0, 1);
      if (rank == 0) standin::fail_call("ncclCommDeregister", 1, standin::kNcclSystemError);
      destroy_comm(mine);
      destroy_reducer(mine);
    }
    are_destroyed.arrive_and_wait();
    ASSERT_EQ(ncclCommAbort(theirs), 0);
  });
  // Expect: no violation, as of memory that goes while NCCL counts on it.
  EXPECT_EQ(standin::violations(), std::vector<std::string>());
}

TEST_P(DeviceMemoryOf, Steps_go_on_where_NCCL_does_not_like_it) {
  run_job(2, device_config(GetParam()), [](DeviceRank& mine) {
    if (mine.rank == 0) standin::fail_call("ncclCommRegister", 1, standin::kNcclSystemError);
    mine.seal();
    for (uint64_t step = 0; step < 2; ++step) mine.run_good_step(step, step);
  });
}

}  // namespace
}  // namespace noria::test
