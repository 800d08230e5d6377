// Reducers on devices, given what they cannot take, and while devices, NCCL or ranks fail.
#include <gtest/gtest.h>

#include <barrier>
#include <string>

#include "tests/support/device_rank.hpp"

namespace noria::test {
namespace {

constexpr int kOutOfMemory = 2, kLaunchFailed = 719, kNcclRemoteError = 6;

// Two ranks, and a place where both are at once.
struct Pair {
  DeviceRank& mine;
  std::barrier<>& meeting;
};
void run_pair(const noria_reducer_config& config, uint32_t timeout_ms,
              const std::function<void(Pair)>& body) {
  standin::reset(5);
  const noria_unique_id id = make_job_id();
  std::barrier meeting(2);
  run_rank_threads(2, [&](int32_t rank) {
    DeviceRank mine(id, rank, 2, small_model(), config, 2, timeout_ms);
    body({mine, meeting});
  });
}
void run_pair(bool arena, uint32_t timeout_ms, const std::function<void(Pair)>& body) {
  run_pair(device_config(arena), timeout_ms, body);
}

// ---- what it does not take ----------------------------------------------------------------------

TEST(DeviceReducerFaults, What_a_reducer_on_a_device_does_not_do_is_refused_by_name) {
  run_device_job(1, 1, small_model(), device_config(true), [](DeviceRank& mine) {
    const auto refused = [&](noria_status code, const char* name, auto change) {
      noria_reducer_config config = device_config(true);
      change(config);
      noria_reducer* made = nullptr;
      expect_failure(noria_reducer_create(mine.comm, &config, &made), code, name);
    };
    refused(NORIA_E_UNSUPPORTED, "nonfinite",
            [](auto& config) { config.nonfinite = NORIA_NONFINITE_ERROR; });
    refused(NORIA_E_ARG, "device_kind is 7", [](auto& config) { config.device_kind = 7; });
    refused(NORIA_E_ARG, "max_in_flight", [](auto& config) {
      config.device_kind = NORIA_STREAM_HOST;
      config.max_in_flight = 2;
    });
    const auto hook = [](const noria_hook_bucket*, char*, size_t, void*) -> int32_t { return 0; };
    expect_failure(noria_reducer_set_hook(mine.reducer, NORIA_HOOK_BEFORE, hook, nullptr),
                   NORIA_E_UNSUPPORTED, "device");
  });
}

TEST(DeviceReducerFaults, A_communicator_of_the_host_has_no_reducers_on_devices) {
  const noria_unique_id id = make_job_id();
  noria_comm_config comm_config = NORIA_COMM_CONFIG_INIT;
  comm_config.rank = 0;
  comm_config.size = 1;
  comm_config.id = &id;
  noria_comm* comm = nullptr;
  expect_ok(noria_comm_create(&comm_config, &comm));
  noria_reducer_config config = device_config(false);
  noria_reducer* reducer = nullptr;
  expect_failure(noria_reducer_create(comm, &config, &reducer), NORIA_E_ARG, "of the host");
  // Expect: nor does one on the host take streams of a device.
  config.device_kind = NORIA_STREAM_HOST;
  expect_ok(noria_reducer_create(comm, &config, &reducer));
  expect_ok(noria_reducer_seal(reducer));
  expect_ok(noria_step_begin(reducer, 0));
  const noria_stream stream{sizeof(noria_stream), NORIA_STREAM_CUDA, nullptr, 0};
  EXPECT_NE(noria_grad_ready(reducer, 0, nullptr, &stream), NORIA_OK);
  EXPECT_NE(noria_step_end(reducer, &stream, nullptr), NORIA_OK);
  expect_ok(noria_step_end(reducer, nullptr, nullptr));
  noria_reducer_destroy(reducer);
  noria_comm_destroy(comm);
}

TEST(DeviceReducerFaults, Gradients_that_lie_wrong_are_refused_by_name_and_may_come_right) {
  run_device_job(2, 2, small_model(), device_config(false), [](DeviceRank& mine) {
    mine.seal();
    uint64_t elsewhere = 0;
    {
      const standin::OnDevice other(4);
      ASSERT_EQ(cuMemAlloc_v2(&elsewhere, mine.bytes(kA)), 0);
    }
    mine.begin();
    const noria_stream from = mine.stream(mine.streams[0]);
    std::vector<float> of_host(3'000);
    const auto give = [&](const void* grad) {
      return noria_grad_ready(mine.reducer, kA, grad, &from);
    };
    expect_failure(give(reinterpret_cast<void*>(elsewhere)), NORIA_E_ARG, "'a'");
    expect_failure(give(of_host.data()), NORIA_E_ARG, "'a'");
    expect_failure(give(nullptr), NORIA_E_ARG, "'a'");
    expect_failure(give(static_cast<char*>(mine.pointer(kB)) + 2), NORIA_E_ARG, "multiple of 4");
    expect_failure(noria_grad_ready(mine.reducer, 99, mine.pointer(kA), &from), NORIA_E_ARG,
                   "no tensor has id 99");
    // Expect: none of them counted.
    mine.give_all(0, 1);
    expect_ok(mine.end());
    mine.expect_results(0);
    expect_failure(mine.ready(kA, mine.streams[0]), NORIA_E_STATE, "no step open");
    const standin::OnDevice other(4);
    EXPECT_EQ(cuMemFree_v2(elsewhere), 0);
  });
}

TEST(DeviceReducerFaults, Streams_of_another_device_are_refused) {
  run_device_job(2, 2, small_model(), device_config(true), [](DeviceRank& mine) {
    mine.seal();
    mine.begin();
    {
      standin::OnDevice other(5);
      noria_stream from = mine.stream(other.stream());
      expect_failure(noria_grad_ready(mine.reducer, kA, nullptr, &from), NORIA_E_ARG, "context");
      expect_failure(noria_step_end(mine.reducer, &from, nullptr), NORIA_E_ARG, "context");
      from.device = 5;
      expect_failure(noria_grad_ready(mine.reducer, kA, nullptr, &from), NORIA_E_ARG, "device");
      const void* place = nullptr;
      expect_failure(noria_grad_result(mine.reducer, kA, &from, 0, &place), NORIA_E_ARG, "device");
    }
    // Expect: the step goes on.
    mine.give_all(0, 1);
    expect_ok(mine.end());
    mine.expect_results(0);
  });
}

TEST(DeviceReducerFaults, Shapes_that_are_not_contiguous_are_refused_by_name) {
  run_device_job(1, 1, small_model(), device_config(true), [](DeviceRank& mine) {
    noria_tensor_desc tensor = NORIA_TENSOR_DESC_INIT;
    tensor.name = "conv.weight";
    tensor.numel = 6;
    tensor.ndim = 2;
    uint32_t id = 0;
    expect_failure(noria_reducer_add(mine.reducer, &tensor, &id), NORIA_E_ARG, "shape is NULL");
    const int64_t shape[] = {2, 3}, by_columns[] = {1, 2}, by_rows[] = {3, 1};
    tensor.shape = shape;
    tensor.strides = by_columns;
    expect_failure(noria_reducer_add(mine.reducer, &tensor, &id), NORIA_E_ARG, "'conv.weight'");
    tensor.strides = by_rows;
    expect_ok(noria_reducer_add(mine.reducer, &tensor, &id));
    tensor.ndim = 65;
    expect_failure(noria_reducer_add(mine.reducer, &tensor, &id), NORIA_E_ARG, "65 dimensions");
  });
}

// ---- ranks' mistakes ----------------------------------------------------------------------------

class DeviceReducerFaults : public testing::TestWithParam<bool> {};  // arena
INSTANTIATE_TEST_SUITE_P(Modes, DeviceReducerFaults, testing::Values(true, false),
                         [](const auto& mode) { return mode.param ? "Arena" : "Copy"; });

TEST_P(DeviceReducerFaults, A_missing_gradient_fails_the_step_on_all_ranks_and_reset_goes_on) {
  for (uint64_t seed = 1; seed <= 3; ++seed)
    run_device_job(3, seed, small_model(), device_config(GetParam()), [](DeviceRank& mine) {
      mine.seal();
      for (uint64_t step = 0; step < 2; ++step) {
        mine.begin();
        for (const uint32_t id : {kD, kC, kB, kA})
          if (mine.rank != 1 || id != kB) expect_ok(mine.give(id, step, mine.streams[id % 2]));
        expect_failure(mine.end(), NORIA_E_MISSING, "rank 1 did not give 'b'");
        expect_ok(noria_reducer_reset(mine.reducer));
        mine.run_good_step(step, 7);
      }
    });
}

TEST_P(DeviceReducerFaults, A_gradient_that_is_given_twice_fails_the_step_on_all_ranks) {
  run_device_job(2, 4, small_model(), device_config(GetParam()), [](DeviceRank& mine) {
    mine.seal();
    mine.begin();
    mine.give_all(0, 1);
    if (mine.rank == 0) expect_failure(mine.ready(kC, mine.streams[0]), NORIA_E_DUP_READY, "'c'");
    expect_failure(mine.end(), NORIA_E_DUP_READY, "'c'");
    expect_ok(noria_reducer_reset(mine.reducer));
    mine.run_good_step(1, 2);
  });
}

TEST_P(DeviceReducerFaults, A_step_may_be_left_half_way) {
  run_device_job(2, 6, small_model(), device_config(GetParam()), [](DeviceRank& mine) {
    mine.seal();
    mine.begin();
    for (const uint32_t id : {kD, kC}) expect_ok(mine.give(id, 0, mine.streams[0]));
    if (mine.rank == 0) expect_ok(noria_reducer_reset(mine.reducer));
    if (mine.rank == 1) {
      expect_failure(mine.end(), NORIA_E_ABORTED, "rank 0");
      expect_ok(noria_reducer_reset(mine.reducer));
    }
    mine.run_good_step(1, 2);
  });
}

// ---- devices, NCCL and ranks that fail ----------------------------------------------------------

TEST_P(DeviceReducerFaults, Without_memory_seal_fails_on_all_ranks_and_may_be_called_again) {
  // Of both ranks together: views are one piece of memory on each, copies more.
  for (uint64_t nth = 1; nth <= (GetParam() ? 2U : 5U); ++nth)
    run_pair(GetParam(), 20'000, [&](Pair pair) {
      pair.meeting.arrive_and_wait();
      if (pair.mine.rank == 0) standin::fail_call("cuMemAlloc", nth, kOutOfMemory);
      pair.meeting.arrive_and_wait();
      expect_failure(noria_reducer_seal(pair.mine.reducer), NORIA_E_NOMEM, "bytes");
      pair.mine.seal();
      pair.mine.run_good_step(0, 3);
    });
}

TEST_P(DeviceReducerFaults, A_call_of_the_driver_that_fails_in_a_step_fails_all_ranks) {
  for (const char* call : {"cuEventRecord", "cuStreamWaitEvent"})
    run_pair(GetParam(), 20'000, [&](Pair pair) {
      DeviceRank& mine = pair.mine;
      mine.seal();
      mine.run_good_step(0, 3);
      mine.begin();
      for (const uint32_t id : {kA, kB, kC, kD}) mine.write(id, 1, mine.streams[0]);
      pair.meeting.arrive_and_wait();
      if (mine.rank == 1) {
        standin::fail_call(call, 1, kLaunchFailed);
        for (const uint32_t id : {kD, kC}) mine.ready(id, mine.streams[0]);
      }
      pair.meeting.arrive_and_wait();
      for (const uint32_t id : {kA, kB}) mine.ready(id, mine.streams[0]);
      if (mine.rank == 0)
        for (const uint32_t id : {kD, kC}) mine.ready(id, mine.streams[0]);
      expect_failure(mine.end(), NORIA_E_DEVICE, call);
      // Expect: for good, in the same words.
      expect_failure(noria_reducer_reset(mine.reducer), NORIA_E_DEVICE, call);
      expect_failure(noria_step_begin(mine.reducer, 0), NORIA_E_DEVICE, "rank 1");
    });
}

TEST(DeviceReducerFaults, What_fails_while_an_unused_view_is_kept_fails_all_ranks) {
  struct Case {
    const char* call;
    uint64_t nth;  // of both ranks together: each saves one view before any is put back
    int code;
    noria_status status;
    const char* text;
  };
  for (const Case& one : std::vector<Case>{
           {"cuDeviceGetAttribute", 1, kLaunchFailed, NORIA_E_DEVICE, "cuDeviceGetAttribute"},
           {"cuMemAllocAsync", 1, kOutOfMemory, NORIA_E_NOMEM, "take NORIA_UNUSED_ZERO"},
           {"cuMemcpyDtoDAsync", 1, kLaunchFailed, NORIA_E_DEVICE, "cuMemcpyDtoDAsync"},
           {"cuMemcpyDtoDAsync", 3, kLaunchFailed, NORIA_E_DEVICE, "cuMemcpyDtoDAsync"}}) {
    SCOPED_TRACE(std::string(one.call) + " " + std::to_string(one.nth));
    noria_reducer_config config = device_config(true);
    config.unused = NORIA_UNUSED_KEEP;
    run_pair(config, 20'000, [&](Pair pair) {
      DeviceRank& mine = pair.mine;
      mine.seal();
      mine.run_good_step(0, 3);
      pair.meeting.arrive_and_wait();
      if (mine.rank == 0) standin::fail_call(one.call, one.nth, one.code);
      pair.meeting.arrive_and_wait();
      noria_status status = NORIA_OK;
      // What fails behind the verdict the other rank hears of in its next step.
      for (uint64_t step = 1; step < 3 && status == NORIA_OK; ++step) {
        status = noria_step_begin(mine.reducer, 0);
        if (status != NORIA_OK) break;
        for (const uint32_t id : {kA, kC, kD}) mine.ready(id, mine.streams[0]);
        status = mine.end();
      }
      expect_failure(status, one.status, one.text);
      // Expect: for good.
      expect_failure(noria_reducer_reset(mine.reducer), one.status, one.text);
    });
  }
}

TEST_P(DeviceReducerFaults, An_error_that_NCCL_finds_later_fails_all_ranks) {
  run_pair(GetParam(), 20'000, [](Pair pair) {
    DeviceRank& mine = pair.mine;
    mine.seal();
    mine.run_good_step(0, 3);
    mine.begin();
    pair.meeting.arrive_and_wait();
    if (mine.rank == 0) {
      standin::stall_rank(1);  // so that the step is under way when it is found
      standin::fail_rank(1, kNcclRemoteError);
    }
    pair.meeting.arrive_and_wait();
    for (const uint32_t id : {kA, kB, kC, kD}) {
      mine.write(id, 1, mine.streams[0]);
      mine.ready(id, mine.streams[0]);
    }
    const noria_status status = noria_step_end(mine.reducer, nullptr, nullptr);
    EXPECT_NE(status, NORIA_OK);
    EXPECT_TRUE(contains(last_error(), "NCCL")) << last_error();
    EXPECT_EQ(noria_reducer_reset(mine.reducer), status);
  });
}

TEST_P(DeviceReducerFaults, A_reduction_that_stands_still_fails_by_the_time_out) {
  run_pair(GetParam(), 1'500, [](Pair pair) {
    DeviceRank& mine = pair.mine;
    mine.seal();
    mine.begin();
    pair.meeting.arrive_and_wait();
    if (mine.rank == 0) standin::stall_rank(1);
    pair.meeting.arrive_and_wait();
    mine.give_all(0, 1);
    expect_failure(noria_step_end(mine.reducer, nullptr, nullptr), NORIA_E_TIMEOUT, "");
  });
}

TEST_P(DeviceReducerFaults, A_steps_own_time_out_bounds_its_reductions) {
  noria_reducer_config config = device_config(GetParam());
  config.step_timeout_ms = 500;
  standin::reset(5);
  const noria_unique_id id = make_job_id();
  std::barrier meeting(2);
  run_rank_threads(2, [&](int32_t rank) {
    constexpr uint32_t kHours = 86'400'000;
    DeviceRank mine(id, rank, 2, small_model(), config, 2, kHours);
    mine.seal();
    mine.run_good_step(0, 3);
    mine.begin();
    meeting.arrive_and_wait();
    if (rank == 0) standin::stall_rank(1);
    meeting.arrive_and_wait();
    mine.give_all(1, 1);
    // Expect: long before the communicator's.
    expect_failure(noria_step_end(mine.reducer, nullptr, nullptr), NORIA_E_TIMEOUT,
                   "of NCCL has made no progress for 0.5 s");
    expect_failure(noria_comm_status(mine.comm), NORIA_E_TIMEOUT, "step_timeout_ms");
  });
}

// What this rank gave comes with `producer`, which stands still on every rank.
void end_beside_a_producer_that_hangs(DeviceRank& mine, std::barrier<>& meeting) {
  mine.seal();
  mine.run_good_step(0, 3);
  mine.begin();
  void* const producer = mine.streams[0];
  standin::hold(producer);
  for (const uint32_t id : {kD, kC}) expect_ok(mine.give(id, 1, mine.streams[1]));
  for (const uint32_t id : {kB, kA}) expect_ok(mine.give(id, 1, producer));
  // Expect: the bucket that waits, its tensors and the stream.
  expect_failure(noria_step_end(mine.reducer, nullptr, nullptr), NORIA_E_TIMEOUT,
                 "of 'b' (1 of 4 tensors) waits for its gradients, to which stream 0x");
  EXPECT_TRUE(contains(last_error(), "has not come")) << last_error();
  expect_ok(noria_comm_status(mine.comm));
  expect_ok(noria_reducer_reset(mine.reducer));
  // Expect: the next step is like any other, once the stream has come on.
  meeting.arrive_and_wait();
  standin::release(producer);
  for (void* const ours : standin::urgent_streams(mine.rank)) mine.on.order(ours, mine.consumer);
  mine.run_good_step(2, 7);
}

TEST_P(DeviceReducerFaults, Producers_that_hang_fail_the_step_within_its_time_out) {
  noria_reducer_config config = device_config(GetParam());
  config.step_timeout_ms = 300;
  for (const int32_t ranks : {1, 2}) {
    std::barrier meeting(ranks);
    run_device_job(ranks, 5, small_model(), config,
                   [&](DeviceRank& mine) { end_beside_a_producer_that_hangs(mine, meeting); });
  }
}

// A missing gradient is every rank's failure, though one of them waits for its device.
TEST_P(DeviceReducerFaults, A_producer_that_hangs_holds_up_nobodys_verdict) {
  noria_reducer_config config = device_config(GetParam());
  config.step_timeout_ms = 300;
  std::barrier meeting(2);
  run_device_job(2, 5, small_model(), config, [&](DeviceRank& mine) {
    mine.seal();
    mine.begin();
    void* const producer = mine.streams[0];
    standin::hold(producer);
    for (const uint32_t id : {kD, kC, kB}) expect_ok(mine.give(id, 0, producer));
    if (mine.rank == 0) expect_ok(mine.give(kA, 0, producer));
    expect_failure(noria_step_end(mine.reducer, nullptr, nullptr), NORIA_E_MISSING,
                   "rank 1 did not give 'a'");
    meeting.arrive_and_wait();
    standin::release(producer);
    for (void* const ours : standin::urgent_streams(mine.rank)) mine.on.order(ours, mine.consumer);
    expect_ok(noria_reducer_reset(mine.reducer));
    mine.run_good_step(1, 7);
  });
}

TEST_P(DeviceReducerFaults, A_rank_that_never_comes_to_the_end_is_named) {
  run_pair(GetParam(), 1'500, [](Pair pair) {
    DeviceRank& mine = pair.mine;
    mine.seal();
    mine.begin();
    if (mine.rank == 0) {
      mine.give_all(0, 1);
      expect_failure(mine.end(), NORIA_E_TIMEOUT, "rank 1");
    }
    pair.meeting.arrive_and_wait();
    if (mine.rank == 1) expect_failure(mine.end(), NORIA_E_TIMEOUT, "rank 1");
  });
}

TEST_P(DeviceReducerFaults, A_reducer_destroyed_in_a_step_aborts_it_everywhere) {
  run_pair(GetParam(), 20'000, [](Pair pair) {
    DeviceRank& mine = pair.mine;
    mine.seal();
    mine.begin();
    for (const uint32_t id : {kD, kC}) expect_ok(mine.give(id, 0, mine.streams[0]));
    pair.meeting.arrive_and_wait();
    if (mine.rank == 1) {
      noria_reducer_destroy(mine.reducer);
      mine.reducer = nullptr;
      return;
    }
    expect_failure(mine.end(), NORIA_E_ABORTED, "rank 1 destroyed its reducer");
  });
}

}  // namespace
}  // namespace noria::test
