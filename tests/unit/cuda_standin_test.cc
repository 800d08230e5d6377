// The stand-in as CUDA's driver: what it answers, what it refuses, when things run.
#include "tests/support/cuda_standin/on_device.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

namespace noria::standin {
namespace {

class CudaStandinTest : public testing::Test {
 protected:
  void SetUp() override { reset(1); }
  void TearDown() override {
    EXPECT_EQ(violations(), std::vector<std::string>());
    EXPECT_EQ(objects_alive(), 0u);
  }
  static void expect_violation(const char* words) {
    const std::vector<std::string> found = violations();
    ASSERT_EQ(found.size(), 1u) << testing::PrintToString(found);
    EXPECT_NE(found[0].find(words), std::string::npos) << found[0];
  }
};

TEST_F(CudaStandinTest, Calls_without_a_context_are_refused) {
  ASSERT_EQ(cuInit(0), kSuccess);
  void* made = nullptr;
  uint64_t address = 0;
  EXPECT_EQ(cuStreamCreateWithPriority(&made, 1, 0), kInvalidContext);
  EXPECT_EQ(cuEventCreate(&made, 0), kInvalidContext);
  EXPECT_EQ(cuMemAlloc_v2(&address, 8), kInvalidContext);
  EXPECT_EQ(cuModuleLoadData(&made, "image"), kInvalidContext);
  int device = 0;
  EXPECT_EQ(cuCtxGetDevice(&device), kInvalidContext);
}

TEST_F(CudaStandinTest, Contexts_are_a_stack_of_each_thread) {
  const OnDevice outer(1);
  {
    const OnDevice inner(2);
    int device = 0;
    ASSERT_EQ(cuCtxGetDevice(&device), kSuccess);
    EXPECT_EQ(device, 2);
    std::thread([] {
      void* context = &context;
      ASSERT_EQ(cuCtxGetCurrent(&context), kSuccess);
      EXPECT_EQ(context, nullptr);
    }).join();
  }
  int device = 0;
  ASSERT_EQ(cuCtxGetDevice(&device), kSuccess);
  EXPECT_EQ(device, 1);
}

TEST_F(CudaStandinTest, Devices_tell_what_they_are) {
  ASSERT_EQ(cuInit(0), kSuccess);
  int count = 0;
  ASSERT_EQ(cuDeviceGetCount(&count), kSuccess);
  EXPECT_EQ(count, 8);
  int device = 0;
  EXPECT_EQ(cuDeviceGet(&device, 8), kInvalidDevice);
  char name[64];
  ASSERT_EQ(cuDeviceGetName(name, sizeof name, 3), kSuccess);
  EXPECT_STREQ(name, "Stand-in GPU 3");
  const OnDevice on(0);
  int least = 1;
  int greatest = 1;
  ASSERT_EQ(cuCtxGetStreamPriorityRange(&least, &greatest), kSuccess);
  EXPECT_LT(greatest, least);
}

TEST_F(CudaStandinTest, Streams_of_the_greatest_priority_are_found) {
  OnDevice device(2);
  device.stream();
  void* first = nullptr;
  void* second = nullptr;
  ASSERT_EQ(cuStreamCreateWithPriority(&first, 1, kGreatestPriority), kSuccess);
  ASSERT_EQ(cuStreamCreateWithPriority(&second, 1, kGreatestPriority), kSuccess);
  EXPECT_EQ(urgent_streams(2), (std::vector<void*>{first, second}));
  EXPECT_TRUE(urgent_streams(1).empty());
  ASSERT_EQ(cuStreamDestroy_v2(first), kSuccess);
  ASSERT_EQ(cuStreamDestroy_v2(second), kSuccess);
}

TEST_F(CudaStandinTest, Memory_knows_whose_it_is) {
  OnDevice device(3);
  const uint64_t at = device.memory<float>(100);
  unsigned type = 0;
  int ordinal = -1;
  int attributes[] = {kPointerMemoryType, kPointerDeviceOrdinal};
  void* values[] = {&type, &ordinal};
  ASSERT_EQ(cuPointerGetAttributes(2, attributes, values, at + 399), kSuccess);
  EXPECT_EQ(type, kMemoryTypeDevice);
  EXPECT_EQ(ordinal, 3);
  // Expect: of the host's own memory it knows nothing.
  ASSERT_EQ(cuPointerGetAttributes(2, attributes, values, reinterpret_cast<uint64_t>(&type)),
            kSuccess);
  EXPECT_EQ(type, 0u);
  EXPECT_EQ(ordinal, -2);
  EXPECT_EQ(cuPointerGetAttribute(&type, kPointerMemoryType, at + 400), kInvalidValue);
}

using CudaStandinDeathTest = CudaStandinTest;

TEST_F(CudaStandinDeathTest, The_host_cannot_touch_device_memory) {
  OnDevice device(0);
  const uint64_t at = device.memory<float>(1);
  EXPECT_DEATH(*reinterpret_cast<volatile float*>(at) = 1, "");
}

TEST_F(CudaStandinTest, A_stream_that_is_held_does_nothing_until_it_is_released) {
  OnDevice device(0);
  void* const held = device.stream();
  void* const other = device.stream();
  hold(held);
  bool has_run = false;
  launch(held, "held", {}, {}, [&has_run] { has_run = true; });
  device.order(held, other);
  EXPECT_FALSE(finish());
  EXPECT_FALSE(is_idle(other));
  EXPECT_EQ(cuStreamQuery(other), kNotReady);
  release(held);
  EXPECT_TRUE(finish());
  EXPECT_TRUE(is_idle(other));
  EXPECT_TRUE(has_run);
}

TEST_F(CudaStandinTest, Nothing_begins_while_all_are_held) {
  OnDevice device(0);
  hold_all();
  launch(device.stream(), "work", {}, {}, nullptr);
  EXPECT_FALSE(finish());
  release_all();
  EXPECT_TRUE(finish());
}

TEST_F(CudaStandinTest, A_call_fails_when_it_is_told_to) {
  OnDevice device(0);
  fail_call("cuMemAlloc", 2, kOutOfMemory);
  device.memory<float>(1);
  uint64_t address = 0;
  EXPECT_EQ(cuMemAlloc_v2(&address, 4), kOutOfMemory);
  device.memory<float>(1);
  EXPECT_EQ(calls("cuMemAlloc_v2"), 3u);
}

TEST_F(CudaStandinTest, A_device_that_failed_answers_every_call_with_it) {
  OnDevice device(0);
  void* const stream = device.stream();
  fail_device(0, kLaunchFailed);
  EXPECT_EQ(cuStreamSynchronize(stream), kLaunchFailed);
  EXPECT_EQ(cuStreamQuery(stream), kLaunchFailed);
  fail_device(0, 0);
}

TEST_F(CudaStandinTest, Memory_that_is_not_there_breaks_the_device) {
  OnDevice device(0);
  OnDevice other(1);
  void* const stream = other.stream();
  const uint64_t at = other.memory<float>(16);
  launch(stream, "too far", {}, {{at, 65}}, [] { FAIL(); });
  expect_violation("no allocation holds");
  EXPECT_EQ(cuStreamSynchronize(stream), kIllegalAddress);
  fail_device(1, 0);

  // Expect: another device's is as far away.
  ASSERT_EQ(cuCtxPushCurrent_v2(device.context()), kSuccess);
  void* const of_first = device.stream();
  launch(of_first, "stranger", {{at, 4}}, {}, [] { FAIL(); });
  expect_violation("are device 1's");
  EXPECT_EQ(cuStreamSynchronize(of_first), kIllegalAddress);
  fail_device(0, 0);
  ASSERT_EQ(cuCtxPopCurrent_v2(nullptr), kSuccess);
}

TEST_F(CudaStandinTest, Handles_of_the_dead_are_told) {
  OnDevice device(0);
  void* stream = nullptr;
  void* event = nullptr;
  ASSERT_EQ(cuStreamCreate(&stream, 1), kSuccess);
  ASSERT_EQ(cuEventCreate(&event, 0), kSuccess);
  ASSERT_EQ(cuStreamDestroy_v2(stream), kSuccess);
  EXPECT_EQ(cuEventRecord(event, stream), kInvalidHandle);
  expect_violation("which is no stream");
  ASSERT_EQ(cuEventDestroy_v2(event), kSuccess);
  EXPECT_EQ(cuEventQuery(event), kInvalidHandle);
  expect_violation("which is no event");
  void* context = nullptr;
  EXPECT_EQ(cuStreamGetCtx(stream, &context), kInvalidHandle);
}

TEST_F(CudaStandinTest, Events_stay_within_their_context) {
  OnDevice device(0);
  void* const event = device.event();
  {
    OnDevice other(1);
    EXPECT_EQ(cuEventRecord(event, other.stream()), kInvalidHandle);
    expect_violation("is recorded in");
    void* context = nullptr;
    ASSERT_EQ(cuStreamGetCtx(other.stream(), &context), kSuccess);
    EXPECT_EQ(context, other.context());
  }
  float milliseconds = 0;
  EXPECT_EQ(cuEventElapsedTime(&milliseconds, event, event), kInvalidHandle);
}

TEST_F(CudaStandinTest, What_a_destroyed_stream_was_told_still_runs) {
  OnDevice device(0);
  void* stream = nullptr;
  ASSERT_EQ(cuStreamCreate(&stream, 1), kSuccess);
  bool has_run = false;
  hold_all();
  launch(stream, "work", {}, {}, [&has_run] { has_run = true; });
  ASSERT_EQ(cuStreamDestroy_v2(stream), kSuccess);
  // Expect: its handle comes again, for odd seeds, and means another stream.
  void* next = device.stream();
  EXPECT_EQ(next, stream);
  EXPECT_TRUE(is_idle(next));
  release_all();
  EXPECT_TRUE(finish());
  EXPECT_TRUE(has_run);
}

TEST_F(CudaStandinTest, A_context_that_ends_takes_its_streams_along) {
  void* context = nullptr;
  ASSERT_EQ(cuInit(0), kSuccess);
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 4), kSuccess);
  ASSERT_EQ(cuCtxPushCurrent_v2(context), kSuccess);
  void* stream = nullptr;
  ASSERT_EQ(cuStreamCreate(&stream, 1), kSuccess);
  hold_all();
  launch(stream, "work", {}, {}, nullptr);
  ASSERT_EQ(cuDevicePrimaryCtxRelease_v2(4), kSuccess);
  expect_violation("ends while 'work'");
  EXPECT_EQ(cuStreamQuery(stream), kContextIsDestroyed);
  expect_violation("which is gone");
  ASSERT_EQ(cuCtxPopCurrent_v2(&context), kSuccess);
  EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(4), kInvalidContext);
  expect_violation("once more than retained");
}

TEST_F(CudaStandinTest, Timed_events_measure) {
  OnDevice device(0);
  void* const stream = device.stream();
  void* begin = nullptr;
  void* end = nullptr;
  ASSERT_EQ(cuEventCreate(&begin, 0), kSuccess);
  ASSERT_EQ(cuEventCreate(&end, 0), kSuccess);
  ASSERT_EQ(cuEventRecord(begin, stream), kSuccess);
  hold(stream);
  ASSERT_EQ(cuEventRecord(end, stream), kSuccess);
  float milliseconds = -1;
  EXPECT_EQ(cuEventElapsedTime(&milliseconds, begin, end), kNotReady);
  release(stream);
  ASSERT_EQ(cuEventSynchronize(end), kSuccess);
  ASSERT_EQ(cuEventElapsedTime(&milliseconds, begin, end), kSuccess);
  EXPECT_GE(milliseconds, 0);
  ASSERT_EQ(cuEventDestroy_v2(begin), kSuccess);
  ASSERT_EQ(cuEventDestroy_v2(end), kSuccess);
}

TEST_F(CudaStandinTest, Copies_know_which_side_is_the_device) {
  OnDevice device(0);
  void* const stream = device.stream();
  const uint64_t at = device.memory<float>(1);
  float value = 1;
  EXPECT_EQ(cuMemcpyHtoDAsync_v2(reinterpret_cast<uint64_t>(&value), &value, 4, stream),
            kInvalidValue);
  EXPECT_EQ(cuMemcpyDtoDAsync_v2(at, reinterpret_cast<uint64_t>(&value), 4, stream), kInvalidValue);
  ASSERT_EQ(cuMemcpyHtoD_v2(at, &value, 4), kSuccess);
  value = 0;
  ASSERT_EQ(cuMemcpyDtoH_v2(&value, at, 4), kSuccess);
  EXPECT_EQ(value, 1.0F);
}

TEST_F(CudaStandinTest, Errors_have_names) {
  const char* text = nullptr;
  ASSERT_EQ(cuGetErrorName(kIllegalAddress, &text), kSuccess);
  EXPECT_STREQ(text, "CUDA_ERROR_ILLEGAL_ADDRESS");
  EXPECT_EQ(cuGetErrorName(4711, &text), kInvalidValue);
}

}  // namespace
}  // namespace noria::standin
