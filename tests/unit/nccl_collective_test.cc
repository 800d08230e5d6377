// NCCL as it is called, on the stand-in: what a communicator is made of, and what it answers when
// it is not as it should be. Whole communicators are the business of device_collectives_test.
#include "bucketing/nccl_collective.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "base/log.hpp"
#include "bucketing/comm_device.hpp"
#include "bucketing/control_wire.hpp"
#include "bucketing/device_watch.hpp"
#include "bucketing/engine.hpp"
#include "bucketing/registered_memory.hpp"
#include "tests/support/cuda_standin/nccl.hpp"
#include "tests/support/cuda_standin/on_device.hpp"
#include "tests/support/no_descriptors.hpp"
#include "tests/support/no_threads.hpp"

namespace noria::bucketing {
namespace {

class NcclCollectiveTest : public testing::Test {
 protected:
  void SetUp() override {
    standin::reset(1);
    auto device = CudaDevice::create(std::getenv("NORIA_CUDA"), 0);
    ASSERT_TRUE(device) << device.failure().text;
    device_ = std::move(*device);
    const auto nccl = NcclApi::open(std::getenv("NORIA_NCCL"));
    ASSERT_TRUE(nccl) << nccl.failure().text;
    nccl_ = *nccl;
  }
  void TearDown() override {
    EXPECT_TRUE(standin::finish());
    device_.reset();
    EXPECT_EQ(standin::violations(), std::vector<std::string>());
    EXPECT_EQ(standin::objects_alive(), 0u);
  }
  NcclCollective::Options options(int32_t size = 1) const {
    return {.device = device_.get(), .nccl = nccl_, .rank = 0, .size = size};
  }
  std::unique_ptr<NcclCollective> join() const {
    auto made =
        NcclCollective::join(options(), *NcclCollective::make_id(*nccl_), nullptr, now_ns() + 10_s);
    EXPECT_TRUE(made) << made.failure().text;
    return made ? std::move(*made) : nullptr;
  }
  static void expect(const Failure& failure, noria_status code, const std::string& part) {
    EXPECT_EQ(failure.code, code) << failure.text;
    EXPECT_NE(failure.text.find(part), std::string::npos) << failure.text;
  }

  std::unique_ptr<CudaDevice> device_;
  const NcclApi* nccl_ = nullptr;
};

TEST(NcclVersionTest, Numbers_are_read_as_NCCL_makes_them) {
  EXPECT_EQ(nccl_version_text(22809), "2.28.9");
  EXPECT_EQ(nccl_version_text(21900), "2.19.0");
  EXPECT_EQ(nccl_version_text(2708), "2.7.8");
}

TEST_F(NcclCollectiveTest, A_rank_that_never_comes_is_a_bounded_wait) {
  const auto made =
      NcclCollective::join(options(2), *NcclCollective::make_id(*nccl_), nullptr, now_ns() + 20_ms);
  ASSERT_FALSE(made);
  expect(made.failure(), NORIA_E_TIMEOUT, "NCCL's communicator of 2 ranks was not made");
}

TEST_F(NcclCollectiveTest, After_an_abort_operations_answer_so) {
  const auto nccl = join();
  ASSERT_NE(nccl, nullptr);
  const auto current = device_->make_current();
  nccl->abort();
  EXPECT_TRUE(nccl->was_aborted());
  DeviceOperation& pair = nccl->begin(10_s);
  ASSERT_TRUE(pair.ready.record(nccl->stream().handle()));
  const auto launched = nccl->all_reduce(pair, {});
  ASSERT_FALSE(launched);
  expect(launched.failure(), NORIA_E_ABORTED, "was aborted");
  nccl->leave(now_ns());
}

TEST_F(NcclCollectiveTest, Whoever_looks_leaves_a_launcher_alone) {
  const auto nccl = join();
  ASSERT_NE(nccl, nullptr);
  const auto current = device_->make_current();
  const auto memory = DeviceMemory::allocate(*device_, 64);
  ASSERT_TRUE(memory);
  void* const at = reinterpret_cast<void*>(memory->pointer());
  std::atomic<bool> is_over{false};
  std::thread watch([&] {
    while (!is_over.load()) EXPECT_TRUE(nccl->look());
  });
  for (int i = 0; i < 500; ++i) {
    DeviceOperation& pair = nccl->begin(10_s);
    EXPECT_TRUE(pair.ready.record(nccl->stream().handle()));
    EXPECT_TRUE(nccl->all_reduce(pair, {.in = at, .out = at, .count = 1}));
  }
  is_over.store(true);
  watch.join();
  EXPECT_EQ(cuStreamSynchronize(nccl->stream().handle()), 0);  // before its memory goes
  // Expect: no violation, as after each test: the stand-in says who asked beside the launcher.
}

TEST_F(NcclCollectiveTest, A_group_that_was_begun_is_ended_whatever_failed) {
  const auto nccl = join();
  ASSERT_NE(nccl, nullptr);
  const auto current = device_->make_current();
  const auto memory = DeviceMemory::allocate(*device_, 64);
  ASSERT_TRUE(memory);
  void* const at = reinterpret_cast<void*>(memory->pointer());
  for (const char* call : {"ncclGroupStart", "ncclReduce", "ncclGroupEnd"}) {
    SCOPED_TRACE(call);
    const uint64_t ended = standin::calls("ncclGroupEnd");
    standin::fail_call(call, 1, standin::kNcclInternalError);
    DeviceOperation& pair = nccl->begin(10_s);
    ASSERT_TRUE(pair.ready.record(nccl->stream().handle()));
    const auto launched = nccl->reduce_scatter_v(pair, {.in = at, .out = at, .count = 1}, {0, 1});
    ASSERT_FALSE(launched);
    expect(launched.failure(), NORIA_E_DEVICE, call);
    const bool was_begun = std::string(call) != "ncclGroupStart";
    EXPECT_EQ(standin::calls("ncclGroupEnd") - ended, was_begun ? 1u : 0u);
  }
}

// ---- memory -------------------------------------------------------------------------------------

std::vector<std::string> lines_logged;

class NcclMemoryTest : public NcclCollectiveTest {
 protected:
  void SetUp() override {
    NcclCollectiveTest::SetUp();
    lines_logged.clear();
    set_log_sink([](LogLevel, const char* text) { lines_logged.emplace_back(text); });
    set_log_level(LogLevel::info);
  }
  void TearDown() override {
    set_log_level(LogLevel::warn);
    set_log_sink(&detail::write_to_stderr);
    NcclCollectiveTest::TearDown();
  }
  Outcome<RegisteredMemory> allocate(NcclCollective* nccl, size_t bytes = 4096) const {
    auto made = RegisteredMemory::allocate(*device_, nccl, bytes);
    EXPECT_TRUE(made) << made.failure().text;
    return made;
  }
  static uint64_t registered() { return standin::calls("ncclCommRegister"); }
  static uint64_t forgotten() { return standin::calls("ncclCommDeregister"); }
  static uint64_t lines_with(const std::string& part) {
    return static_cast<uint64_t>(std::count_if(
        lines_logged.begin(), lines_logged.end(),
        [&](const std::string& line) { return line.find(part) != std::string::npos; }));
  }
};

TEST_F(NcclMemoryTest, NCCL_is_told_once_and_forgets_before_the_memory_goes) {
  const auto nccl = join();
  ASSERT_NE(nccl, nullptr);
  {
    auto first = allocate(nccl.get());
    const RegisteredMemory memory = std::move(first).value();
    EXPECT_NE(memory.pointer(), 0u);
    EXPECT_EQ(registered(), 1u);
  }
  EXPECT_EQ(forgotten(), 1u);
  // Expect: nobody is told of nothing, nor where NCCL has no part in it.
  { const auto none = allocate(nccl.get(), 0); }
  { const auto apart = allocate(nullptr); }
  EXPECT_EQ(registered(), 1u);
  EXPECT_EQ(forgotten(), 1u);
}

TEST_F(NcclMemoryTest, Where_NCCL_does_not_like_it_nothing_is_lost_and_it_is_said_once) {
  const auto nccl = join();
  ASSERT_NE(nccl, nullptr);
  for (int i = 0; i < 3; ++i) {
    standin::fail_call("ncclCommRegister", 1, standin::kNcclSystemError);
    const auto memory = allocate(nccl.get());
  }
  EXPECT_EQ(registered(), 3u);
  EXPECT_EQ(forgotten(), 0u);
  EXPECT_EQ(lines_with("ncclCommRegister"), 1u);
}

TEST_F(NcclMemoryTest, What_NCCL_was_told_not_to_register_it_is_not_asked_to_forget) {
  const auto nccl = join();
  ASSERT_NE(nccl, nullptr);
  // As with NCCL_LOCAL_REGISTER=0.
  standin::skip_call("ncclCommRegister", 1);
  { const auto memory = allocate(nccl.get()); }
  nccl->leave(now_ns() + 10_s);
  EXPECT_EQ(registered(), 1u);
  EXPECT_EQ(forgotten(), 0u);
}

TEST_F(NcclMemoryTest, A_library_without_the_function_is_told_nothing) {
  const auto plain = NcclApi::open(std::getenv("TEST_PLAIN_NCCL"));
  ASSERT_TRUE(plain) << plain.failure().text;
  const NcclCollective::Options options{.device = device_.get(), .nccl = *plain};
  const auto nccl = NcclCollective::join(options, {}, nullptr, now_ns() + 10_s);
  ASSERT_TRUE(nccl) << nccl.failure().text;
  const auto memory = allocate(nccl->get());
  ASSERT_TRUE(memory);
  EXPECT_NE(memory->pointer(), 0u);
  EXPECT_EQ(lines_logged, std::vector<std::string>());
}

TEST_F(NcclMemoryTest, What_NCCL_did_not_forget_is_not_given_back_before_the_communicator_ends) {
  const auto nccl = join();
  ASSERT_NE(nccl, nullptr);
  cuda::Pointer kept = 0;
  {
    const auto memory = allocate(nccl.get());
    kept = memory->pointer();
    standin::fail_call("ncclCommDeregister", 1, standin::kNcclSystemError);
  }
  EXPECT_EQ(lines_with("ncclCommDeregister"), 1u);
  EXPECT_EQ(standin::calls("cuMemFree"), 0u);
  // Expect: it is asked once more.
  nccl->leave(now_ns() + 10_s);
  EXPECT_EQ(forgotten(), 2u);
  const auto current = device_->make_current();
  EXPECT_TRUE(device_->api().call<&CudaSymbols::memory_free>(kept));
}

// An operation failed on its way to the stream, and nobody knows how far it came.
void fall_out_of_step(NcclCollective* nccl, cuda::Pointer memory) {
  void* const at = reinterpret_cast<void*>(memory);
  DeviceOperation& pair = nccl->begin(10_s);
  ASSERT_TRUE(pair.ready.record(nccl->stream().handle()));
  standin::fail_call("ncclAllReduce", 1, standin::kNcclInternalError);
  EXPECT_FALSE(nccl->all_reduce(pair, {.in = at, .out = at, .count = 1}));
}

TEST_F(NcclMemoryTest, A_communicator_out_of_step_is_not_asked_to_forget) {
  const auto nccl = join();
  ASSERT_NE(nccl, nullptr);
  cuda::Pointer kept = 0;
  const auto current = device_->make_current();
  {
    const auto memory = allocate(nccl.get());
    kept = memory->pointer();
    fall_out_of_step(nccl.get(), kept);
  }
  // Expect: nobody aborted it, so that its memory is not given back.
  EXPECT_EQ(standin::calls("cuMemFree"), 0u);
  nccl->leave(now_ns() + 10_s);
  EXPECT_EQ(forgotten(), 0u);
  EXPECT_TRUE(device_->api().call<&CudaSymbols::memory_free>(kept));
}

TEST_F(NcclMemoryTest, Memory_of_a_communicator_out_of_step_goes_when_that_is_aborted) {
  const auto nccl = join();
  ASSERT_NE(nccl, nullptr);
  const auto current = device_->make_current();
  std::thread watch;
  {
    const auto memory = allocate(nccl.get());
    fall_out_of_step(nccl.get(), memory->pointer());
    watch = std::thread([&] { nccl->abort(); });
  }
  watch.join();
  EXPECT_EQ(forgotten(), 0u);
  EXPECT_EQ(standin::calls("cuMemFree"), 1u);
}

TEST_F(NcclMemoryTest, Memory_may_outlive_a_communicator_however_that_ends) {
  for (const bool is_aborted : {false, true}) {
    const auto nccl = join();
    ASSERT_NE(nccl, nullptr);
    const uint64_t before = forgotten();
    const auto memory = allocate(nccl.get());
    if (is_aborted)
      nccl->abort();
    else
      nccl->leave(now_ns() + 10_s);
    // Expect: it is forgotten by then, and one that has ended is told of no more.
    EXPECT_EQ(forgotten() - before, is_aborted ? 0u : 1u);
    const uint64_t told = registered();
    const auto late = allocate(nccl.get());
    EXPECT_EQ(registered(), told);
  }
}

// ---- ranks --------------------------------------------------------------------------------------

TEST_F(NcclCollectiveTest, Ranks_with_different_NCCLs_are_told_both) {
  Params params;
  params.cuda = std::getenv("NORIA_CUDA");
  params.nccl = std::getenv("NORIA_NCCL");
  auto gpu = CommDevice::open(params, 0, nullptr);
  ASSERT_TRUE(gpu) << gpu.failure().text;
  const auto mine = (*gpu)->introduce(true);
  ASSERT_TRUE(mine) << mine.failure().text;
  PayloadWriter other;
  other.put_i32(0);
  other.put_i32(22703);
  other.put_text("");
  const auto joined = (*gpu)->join({.rank = 0, .size = 2}, {*mine, other.bytes()});
  ASSERT_FALSE(joined);
  expect(joined.failure(), NORIA_E_MISMATCH, "and rank 1 2.27.3: NCCL wants the same everywhere");
}

// A communicator of one rank that has met nobody yet, and its engine.
class CommDeviceTest : public NcclCollectiveTest {
 protected:
  void SetUp() override {
    NcclCollectiveTest::SetUp();
    Params params;
    params.cuda = std::getenv("NORIA_CUDA");
    params.nccl = std::getenv("NORIA_NCCL");
    auto gpu = CommDevice::open(params, 0, nullptr);
    ASSERT_TRUE(gpu) << gpu.failure().text;
    gpu_ = std::move(*gpu);
    auto engine = Engine::create(nullptr, nullptr, nullptr, kHours, nullptr);
    ASSERT_TRUE(engine) << engine.failure().text;
    engine_ = std::move(*engine);
    const auto introduction = gpu_->introduce(true);
    ASSERT_TRUE(introduction) << introduction.failure().text;
    const CommDevice::Meeting meeting{.deadline = now_ns() + 10_s, .timeout = kHours};
    const auto joined = gpu_->join(meeting, {*introduction});
    ASSERT_TRUE(joined) << joined.failure().text;
    const auto started = gpu_->start(*engine_, meeting);
    ASSERT_TRUE(started) << started.failure().text;
  }
  void TearDown() override {
    gpu_->leave(!engine_->failed() && gpu_->finish(now_ns()), now_ns());
    gpu_.reset();
    NcclCollectiveTest::TearDown();
  }

  // Here, or by the watch before.
  void expect_time_out(const Outcome<Ok>& tried) const {
    ASSERT_FALSE(tried);
    const Failure failure = engine_->failed() ? engine_->failure() : tried.failure();
    EXPECT_EQ(failure.code, NORIA_E_TIMEOUT) << failure.text;
  }

  static constexpr Nanoseconds kHours = 24 * 3600 * 1_s;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<CommDevice> gpu_;
};

TEST_F(CommDeviceTest, The_first_operation_is_bounded_by_the_start_and_not_by_a_collective) {
  standin::fail_rank(0, standin::kNcclInProgress);  // it connects for ever
  expect_time_out(gpu_->try_out(*engine_, now_ns() + 100_ms));
  standin::fail_rank(0, 0);
}

TEST_F(CommDeviceTest, Nor_is_one_that_is_on_its_stream_and_does_not_end) {
  standin::stall_rank(0);
  expect_time_out(gpu_->try_out(*engine_, now_ns() + 100_ms));
}

// Its ends are waited for by a descriptor each.
TEST_F(NcclCollectiveTest, A_watch_without_a_descriptor_or_a_thread_says_what_to_raise) {
  const auto engine = Engine::create(nullptr, nullptr, nullptr, 10_s, nullptr);
  ASSERT_TRUE(engine) << engine.failure().text;
  const auto watch = [&](NcclCollective& nccl) {
    return DeviceWatch::create({.nccl = &nccl, .engine = engine->get()});
  };
  const auto id = NcclCollective::make_id(*nccl_);
  ASSERT_TRUE(id) << id.failure().text;
  std::unique_ptr<NcclCollective> good = join(), bad;
  {
    const test::NoDescriptors none;
    // Of the watch itself, and of the operations that wake it.
    const auto refused = watch(*good);
    ASSERT_FALSE(refused);
    expect(refused.failure(), NORIA_E_NOMEM, "no descriptor for the watch of CUDA device 0");
    expect(refused.failure(), NORIA_E_NOMEM, "raise the limit of open files");
    auto joined = NcclCollective::join(options(), *id, nullptr, now_ns() + 10_s);
    ASSERT_TRUE(joined) << joined.failure().text;
    bad = std::move(*joined);
  }
  const auto refused = watch(*bad);
  ASSERT_FALSE(refused);
  expect(refused.failure(), NORIA_E_NOMEM, "no descriptor for the watch of CUDA device 0");
  {
    const test::NoThreads none;
    const auto threadless = watch(*good);
    ASSERT_FALSE(threadless);
    expect(threadless.failure(), NORIA_E_NOMEM, "no thread for the watch of CUDA device 0");
    expect(threadless.failure(), NORIA_E_NOMEM, "ulimit -u");
  }
  // Expect: with both there it watches.
  const auto made = watch(*good);
  EXPECT_TRUE(made) << made.failure().text;
}

TEST_F(NcclCollectiveTest, Events_tell_the_time_between_two_points) {
  const auto current = device_->make_current();
  auto begin = CudaEvent::create(*device_, CudaEvent::Timing::with);
  auto end = CudaEvent::create(*device_, CudaEvent::Timing::with);
  const auto stream = CudaStream::create(*device_);
  ASSERT_TRUE(begin && end && stream);
  ASSERT_TRUE(begin->record(stream->handle()));
  ASSERT_TRUE(end->record(stream->handle()));
  for (auto is_done = end->is_done(); is_done && !*is_done;) is_done = end->is_done();
  const auto elapsed = end->elapsed_ms(*begin);
  ASSERT_TRUE(elapsed) << elapsed.failure().text;
  EXPECT_GE(*elapsed, 0.0F);
}

}  // namespace
}  // namespace noria::bucketing
