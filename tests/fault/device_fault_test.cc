// Communicators of GPUs when something goes wrong: refused in words before anything is under way,
// and afterwards the first cause, on all ranks, with no stream that waits for ever.
#include <cstdlib>
#include <latch>

#include "tests/support/cuda_standin/nccl.hpp"
#include "tests/support/gpu_rank.hpp"

namespace noria::test {
namespace {

using standin::OnDevice;

constexpr int kNoSuchError = 12345;
constexpr int kLaunchFailed = 719;
constexpr int kIllegalAddress = 700;
constexpr int kOutOfMemory = 2;

// The stand-in by another name: libraries are remembered by theirs.
std::string other_name_of(const char* variable) {
  const std::string path = std::getenv(variable);
  return path.substr(0, path.rfind('/')) + "/./" + path.substr(path.rfind('/') + 1);
}

class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name), before_(std::getenv(name)) {
    ::setenv(name, value.c_str(), 1);
  }
  ~Variable() { ::setenv(name_, before_.c_str(), 1); }

 private:
  const char* name_;
  const std::string before_;
};

void set_up(uint64_t seed) { standin::reset(seed); }
void tear_down() {
  EXPECT_EQ(standin::violations(), std::vector<std::string>());
  EXPECT_EQ(standin::objects_alive(), 0u);
}

// ---- refused at once ----------------------------------------------------------------------------

class DeviceRefusalTest : public testing::Test {
 protected:
  void SetUp() override { set_up(1); }
  void TearDown() override { tear_down(); }

  static void expect_refused(noria_status code, const std::string& part,
                             const std::function<void(noria_comm_config&)>& adjust = {}) {
    const noria_unique_id id = make_job_id();
    noria_comm_config config = gpu_config(id, 0, 1);
    if (adjust) adjust(config);
    noria_comm* comm = nullptr;
    expect_failure(noria_comm_create(&config, &comm), code, part);
    EXPECT_EQ(comm, nullptr);
  }
};

TEST_F(DeviceRefusalTest, Without_CUDAs_driver_or_NCCL_it_says_which_is_not_there) {
  {
    const Variable cuda("NORIA_CUDA", "/nowhere/libcuda.so.1");
    expect_refused(NORIA_E_DEVICE, "cannot load CUDA's driver library: /nowhere/libcuda.so.1");
  }
  {
    const Variable cuda("NORIA_CUDA", "libm.so.6");
    expect_refused(NORIA_E_UNSUPPORTED, "libm.so.6 has no cuInit");
  }
  {
    const Variable nccl("NORIA_NCCL", "/nowhere/libnccl.so.2");
    expect_refused(NORIA_E_UNSUPPORTED, "cannot load NCCL: /nowhere/libnccl.so.2");
  }
  {
    const Variable nccl("NORIA_NCCL", "libm.so.6");
    expect_refused(NORIA_E_UNSUPPORTED, "libm.so.6 tells no version");
  }
  {
    const Variable nccl("NORIA_NCCL", std::getenv("TEST_BARE_NCCL"));
    expect_refused(NORIA_E_UNSUPPORTED, "has no ncclGetErrorString");
  }
}

TEST_F(DeviceRefusalTest, An_old_NCCL_is_told_with_the_version_that_is_needed) {
  const Variable nccl("NORIA_NCCL", other_name_of("NORIA_NCCL"));
  standin::set_nccl_version(21805);
  expect_refused(NORIA_E_UNSUPPORTED, "is NCCL 2.18.5, and 2.19.0 or later is needed");
  standin::set_nccl_version(2708);
  expect_refused(NORIA_E_UNSUPPORTED, "is NCCL 2.7.8");
  standin::set_nccl_version(0);
}

TEST_F(DeviceRefusalTest, A_driver_that_does_not_start_is_told_in_its_words) {
  const Variable cuda("NORIA_CUDA", other_name_of("NORIA_CUDA"));
  standin::fail_call("cuInit", 1, 100);
  expect_refused(NORIA_E_DEVICE, "look at nvidia-smi");
  standin::fail_call("cuInit", 1, kNoSuchError);
  expect_refused(NORIA_E_DEVICE, "cuInit: error 12345");
  // Expect: what failed is tried again.
  const noria_unique_id id = make_job_id();
  const noria_comm_config config = gpu_config(id, 0, 1);
  const GpuRank one(config);
}

TEST_F(DeviceRefusalTest, What_was_asked_for_wrongly) {
  expect_refused(NORIA_E_ARG, "device 99 is none", [](auto& config) { config.device = 99; });
  expect_refused(NORIA_E_ARG, "device -2", [](auto& config) { config.device = -2; });
  expect_refused(NORIA_E_ARG, "device_kind is 7", [](auto& config) { config.device_kind = 7; });
  int nothing = 0;
  expect_refused(NORIA_E_ARG, "that wants NORIA_STREAM_CUDA", [&](auto& config) {
    config.device_kind = NORIA_STREAM_HOST;
    config.nccl_comm = &nothing;
  });
}

// Every call of the driver and of NCCL at the start may fail.
TEST_F(DeviceRefusalTest, Whatever_fails_at_the_start_is_told_and_leaves_nothing) {
  for (const char* call : {"cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName",
                           "cuDevicePrimaryCtxRetain", "cuCtxGetCurrent", "cuCtxPushCurrent",
                           "cuCtxGetStreamPriorityRange", "cuStreamCreateWithPriority",
                           "cuEventCreate", "cuEventRecord", "cuStreamWaitEvent", "cuEventQuery"}) {
    SCOPED_TRACE(call);
    standin::reset(1);
    standin::fail_call(call, 1, kIllegalAddress);
    expect_refused(NORIA_E_DEVICE, std::string(call));
  }
  for (const char* call :
       {"ncclGetUniqueId", "ncclCommInitRankConfig", "ncclCommGetAsyncError", "ncclAllReduce"}) {
    SCOPED_TRACE(call);
    standin::reset(1);
    standin::fail_call(call, 1, standin::kNcclInternalError);
    expect_refused(NORIA_E_DEVICE, std::string(call));
  }
  standin::reset(1);
  standin::fail_call("cuMemAlloc", 1, kOutOfMemory);
  expect_refused(NORIA_E_NOMEM, "4 bytes of CUDA device 0");
}

TEST_F(DeviceRefusalTest, Ranks_that_ask_for_different_things_all_hear_of_it) {
  const auto expect_all = [](noria_status code, const std::string& part,
                             const std::function<void(noria_comm_config&)>& adjust) {
    const noria_unique_id id = make_job_id();
    run_rank_threads(2, [&](int32_t rank) {
      noria_comm_config config = gpu_config(id, rank, 2);
      if (rank == 1) adjust(config);
      noria_comm* comm = nullptr;
      expect_failure(noria_comm_create(&config, &comm), code, part);
    });
  };
  expect_all(NORIA_E_MISMATCH, "the device_kind of rank 0 is NORIA_STREAM_CUDA",
             [](auto& config) { config.device_kind = NORIA_STREAM_HOST; });
  expect_all(NORIA_E_ARG, "rank 1: device 99", [](auto& config) { config.device = 99; });
  int nothing = 0;
  expect_all(NORIA_E_MISMATCH, "rank 1 gave an nccl_comm and rank 0 none",
             [&](auto& config) { config.nccl_comm = &nothing; });
}

TEST_F(DeviceRefusalTest, A_callers_communicator_that_is_another_one) {
  const auto expect_other = [](const std::string& part,
                               const std::function<void(noria_comm_config&)>& adjust) {
    standin::UniqueId nccl_id;
    ASSERT_EQ(ncclGetUniqueId(&nccl_id), 0);
    const noria_unique_id id = make_job_id();
    std::latch refused(2);
    run_rank_threads(2, [&](int32_t rank) {
      const OnDevice on(rank);
      void* theirs = nullptr;
      ASSERT_EQ(ncclCommInitRank(&theirs, 2, nccl_id, rank), 0);
      noria_comm_config config = gpu_config(id, rank, 2);
      config.nccl_comm = theirs;
      adjust(config);
      noria_comm* comm = nullptr;
      expect_failure(noria_comm_create(&config, &comm), NORIA_E_ARG, part);
      refused.arrive_and_wait();
      ASSERT_EQ(ncclCommDestroy(theirs), 0);
    });
  };
  expect_other("nccl_comm: its rank is ",
               [](auto& config) { config.rank = config.device = 1 - config.rank; });
  expect_other("nccl_comm: its device is ", [](auto& config) { config.device += 4; });
  standin::UniqueId nccl_id;
  ASSERT_EQ(ncclGetUniqueId(&nccl_id), 0);
  run_rank_threads(2, [&](int32_t rank) {
    const OnDevice on(rank);
    void* theirs = nullptr;
    ASSERT_EQ(ncclCommInitRank(&theirs, 2, nccl_id, rank), 0);
    if (rank == 0)
      expect_refused(NORIA_E_ARG, "nccl_comm: its size is 2, and this communicator's 1",
                     [&](auto& config) { config.nccl_comm = theirs; });
    ASSERT_EQ(ncclCommDestroy(theirs), 0);
  });
}

TEST_F(DeviceRefusalTest, Memory_and_streams_of_elsewhere_and_nothing_is_lost) {
  run_gpu_ranks(1, [](GpuRank& mine) {
    const uint64_t at = mine.given({1.0F});
    const noria_stream main = mine.stream(mine.main);
    const auto reduce = [&](const void* in, void* out, const noria_stream& queue) {
      return noria_all_reduce(mine.comm, in, out, 1, NORIA_FLOAT32, NORIA_SUM, &queue, nullptr);
    };
    void* const good = mine.pointer<void>(at);
    float of_host = 0;
    expect_failure(reduce(&of_host, good, main), NORIA_E_ARG,
                   "noria_all_reduce: in is not memory of a GPU");
    expect_failure(reduce(good, &of_host, main), NORIA_E_ARG,
                   "noria_all_reduce: out is not memory of a GPU");
    {
      OnDevice elsewhere(5);
      void* const theirs = mine.pointer<void>(elsewhere.memory<float>(1));
      expect_failure(reduce(theirs, theirs, main), NORIA_E_ARG, "is memory of CUDA device 5");
      noria_stream queue = mine.stream(elsewhere.stream());
      expect_failure(reduce(good, good, queue), NORIA_E_ARG, "belongs to another context");
      // Of a default stream the thread's context says whose it is.
      queue.handle = nullptr;
      expect_failure(reduce(good, good, queue), NORIA_E_ARG, "is a default stream");
      queue.device = 5;
      expect_failure(reduce(good, good, queue), NORIA_E_ARG, "noria_stream.device is 5");
    }
    noria_stream strange = main;
    strange.kind = 9;
    expect_failure(reduce(good, good, strange), NORIA_E_ARG, "noria_stream.kind is 9");
    // Expect: the communicator is as good as before.
    expect_ok(noria_comm_status(mine.comm));
    expect_ok(reduce(good, good, main));
    EXPECT_EQ(mine.read(at, 1), std::vector<float>{1.0F});
  });
}

// ---- while something is under way ---------------------------------------------------------------

class DeviceFaultTest : public testing::TestWithParam<uint64_t> {
 protected:
  void SetUp() override { set_up(GetParam()); }
  void TearDown() override { tear_down(); }
};

INSTANTIATE_TEST_SUITE_P(Seeds, DeviceFaultTest, testing::Range<uint64_t>(0, 3));

// The news of another rank's failure comes, or the test's own time-out.
void expect_told(const GpuRank& mine) {
  while (noria_comm_status(mine.comm) == NORIA_OK) std::this_thread::yield();
}

// All that the stream was given ends, and the communicator says why.
void expect_ended(GpuRank& mine, noria_status code, const std::string& part) {
  EXPECT_EQ(cuStreamSynchronize(mine.main), 0);
  expect_failure(noria_comm_status(mine.comm), code, part);
  const uint64_t at = mine.on.memory<float>(1);
  expect_failure(mine.sum(at, at, 1), code, part);
}

TEST_P(DeviceFaultTest, Whatever_call_fails_all_ranks_get_its_words) {
  struct Case {
    const char* call;
    uint64_t nth;
    int code;
  };
  // An operation with a work looks at its memory and its stream, takes an event, records thrice,
  // holds back twice and calls NCCL once.
  for (const Case& one : {Case{"cuPointerGetAttributes", 1, kIllegalAddress},
                          {"cuStreamGetCtx", 1, kIllegalAddress},
                          {"cuEventCreate", 1, kIllegalAddress},
                          {"cuEventRecord", 1, kLaunchFailed},
                          {"cuEventRecord", 2, kLaunchFailed},
                          {"cuEventRecord", 3, kLaunchFailed},
                          {"cuStreamWaitEvent", 1, kIllegalAddress},
                          {"cuStreamWaitEvent", 2, kIllegalAddress},
                          {"ncclAllReduce", 1, standin::kNcclSystemError}}) {
    SCOPED_TRACE(std::string(one.call) + " " + std::to_string(one.nth));
    std::latch first(2), second(2);
    run_gpu_ranks(2, [&](GpuRank& mine) {
      const uint64_t at = mine.given({1.0F});
      noria_work* work = nullptr;
      first.arrive_and_wait();
      if (mine.rank == 1) {
        standin::fail_call(one.call, one.nth, one.code);
        EXPECT_LT(mine.sum(at, at, 1, &work), 0);
        EXPECT_EQ(work, nullptr);
      }
      second.arrive_and_wait();
      // Expect: rank 0 hears of it, and does not wait for what will not come.
      expect_told(mine);
      EXPECT_LT(mine.sum(at, at, 1, &work), 0);
      EXPECT_TRUE(contains(last_error(), std::string("rank 1: CUDA device 1"))) << last_error();
      EXPECT_TRUE(contains(last_error(), one.call)) << last_error();
      EXPECT_EQ(cuStreamSynchronize(mine.main), 0);
    });
  }
}

TEST_P(DeviceFaultTest, What_NCCL_finds_by_itself_fails_all_ranks) {
  std::latch both(2), launched(2);
  run_gpu_ranks(2, [&](GpuRank& mine) {
    const uint64_t at = mine.given({1.0F});
    if (mine.rank == 1) standin::stall_rank(1);
    both.arrive_and_wait();
    noria_work* work = nullptr;
    expect_ok(mine.sum(at, at, 1, &work));
    launched.arrive_and_wait();
    if (mine.rank == 1) standin::fail_rank(1, standin::kNcclRemoteError);
    expect_failure(noria_work_wait(work, 0), NORIA_E_PEER, "rank 1: NCCL: ");
    noria_work_release(work);
    expect_ended(mine, NORIA_E_PEER, "rank 1: NCCL: ");
  });
}

TEST_P(DeviceFaultTest, A_kernel_that_failed_is_found_by_the_watch) {
  std::latch both(2), launched(2), seen(2);
  run_gpu_ranks(2, [&](GpuRank& mine) {
    const uint64_t at = mine.given({1.0F});
    if (mine.rank == 1) standin::stall_rank(1);
    both.arrive_and_wait();
    noria_work* work = nullptr;
    expect_ok(mine.sum(at, at, 1, &work));
    launched.arrive_and_wait();
    if (mine.rank == 1) standin::fail_device(1, kLaunchFailed);
    expect_failure(noria_work_wait(work, 0), NORIA_E_DEVICE, "CUDA_ERROR_LAUNCH_FAILED");
    seen.arrive_and_wait();
    if (mine.rank == 1) standin::fail_device(1, 0);
    noria_work_release(work);
  });
}

TEST_P(DeviceFaultTest, A_rank_that_does_not_come_is_a_time_out_for_all) {
  std::latch told(2);
  run_gpu_ranks(
      2,
      [&](GpuRank& mine) {
        if (mine.rank == 0) {
          const uint64_t at = mine.given({1.0F});
          noria_work* work = nullptr;
          expect_ok(mine.sum(at, at, 1, &work));
          expect_failure(noria_work_wait(work, 0), NORIA_E_TIMEOUT, "though its inputs are there");
          noria_work_release(work);
          EXPECT_EQ(cuStreamSynchronize(mine.main), 0);
        }
        told.arrive_and_wait();
        expect_failure(noria_comm_status(mine.comm), NORIA_E_TIMEOUT, "rank 0: CUDA device 0");
      },
      [](noria_comm_config& config) { config.collective_timeout_ms = 400; });
}

TEST_P(DeviceFaultTest, Inputs_that_are_not_there_yet_are_nobodys_debt) {
  run_gpu_ranks(
      1,
      [&](GpuRank& mine) {
        const uint64_t at = mine.given({1.0F});
        standin::hold(mine.main);
        noria_work* work = nullptr;
        expect_ok(mine.sum(at, at, 1, &work));
        // Expect: many times the time-out later all is well.
        EXPECT_EQ(noria_work_wait(work, 600), NORIA_E_TIMEOUT);
        expect_ok(noria_comm_status(mine.comm));
        standin::release(mine.main);
        expect_ok(noria_work_wait(work, 0));
        noria_work_release(work);
      },
      [](noria_comm_config& config) { config.collective_timeout_ms = 100; });
}

TEST_P(DeviceFaultTest, An_abort_ends_what_is_under_way) {
  std::latch launched(2);
  run_gpu_ranks(2, [&](GpuRank& mine) {
    const uint64_t at = mine.given({1.0F});
    if (mine.rank == 0) expect_ok(mine.sum(at, at, 1));
    launched.arrive_and_wait();
    if (mine.rank == 1) expect_ok(noria_comm_abort(mine.comm, "enough"));
    EXPECT_EQ(cuStreamSynchronize(mine.main), 0);
    expect_told(mine);
    expect_ended(mine, NORIA_E_ABORTED, "rank 1: noria_comm_abort(): enough");
  });
}

TEST_P(DeviceFaultTest, Who_leaves_in_the_midst_of_an_operation_tells_the_others) {
  std::latch launched(2), left(2);
  run_gpu_ranks(2, [&](GpuRank& mine) {
    const uint64_t at = mine.given({1.0F});
    noria_work* work = nullptr;
    if (mine.rank == 1) expect_ok(mine.sum(at, at, 1, &work));
    launched.arrive_and_wait();
    if (mine.rank == 1) {
      mine.destroy();
      EXPECT_EQ(noria_work_wait(work, 0), NORIA_E_ABORTED);
      noria_work_release(work);
      EXPECT_EQ(cuStreamSynchronize(mine.main), 0);
    }
    left.arrive_and_wait();
    if (mine.rank == 1) return;
    expect_told(mine);
    expect_failure(noria_comm_status(mine.comm), NORIA_E_ABORTED, "destroyed while its GPU");
  });
}

// A callers' pair of communicators; whether rank 0's was at work when the other rank failed.
void expect_callers(bool is_under_way, uint32_t state) {
  standin::UniqueId nccl_id;
  ASSERT_EQ(ncclGetUniqueId(&nccl_id), 0);
  const noria_unique_id id = make_job_id();
  std::latch ready(2), over(2);
  run_rank_threads(2, [&](int32_t rank) {
    OnDevice on(rank);
    void* theirs = nullptr;
    ASSERT_EQ(ncclCommInitRank(&theirs, 2, nccl_id, rank), 0);
    {
      noria_comm_config config = gpu_config(id, rank, 2);
      config.nccl_comm = theirs;
      GpuRank mine(config);
      const uint64_t at = mine.given({1.0F});
      if (is_under_way && rank == 0) expect_ok(mine.sum(at, at, 1));
      ready.arrive_and_wait();
      if (rank == 1) expect_ok(noria_comm_abort(mine.comm, nullptr));
      EXPECT_EQ(cuStreamSynchronize(mine.main), 0);
      expect_told(mine);
      over.arrive_and_wait();
      EXPECT_EQ(mine.info().nccl, rank == 0 ? state : 2u);
    }
    // Expect: what was not aborted is the caller's to free.
    if (rank == 1 || state == 2) {
      ASSERT_EQ(ncclCommDestroy(theirs), 0);
    }
  });
}

TEST_P(DeviceFaultTest, A_callers_communicator_is_aborted_only_while_at_work) {
  expect_callers(true, 3);
  expect_callers(false, 2);
}

TEST_P(DeviceFaultTest, A_rank_that_cannot_join_NCCL_is_told_by_all) {
  const noria_unique_id id = make_job_id();
  standin::fail_call("ncclCommInitRankConfig", 1, standin::kNcclSystemError);
  run_rank_threads(2, [&](int32_t rank) {
    const noria_comm_config config = gpu_config(id, rank, 2);
    noria_comm* comm = nullptr;
    expect_failure(noria_comm_create(&config, &comm), NORIA_E_NET, "ncclCommInitRankConfig");
  });
}

}  // namespace
}  // namespace noria::test
