// The stand-in's checker: each kind of order is found missing, and is quiet where it is there.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <thread>

#include "tests/support/cuda_standin/on_device.hpp"

namespace noria::standin {
namespace {

constexpr size_t kCount = 64;
constexpr size_t kBytes = kCount * sizeof(float);

class CudaStandinOrderTest : public testing::TestWithParam<uint64_t> {
 protected:
  void SetUp() override { reset(GetParam()); }
  void TearDown() override {
    EXPECT_EQ(violations(), std::vector<std::string>());
    EXPECT_EQ(objects_alive(), 0u);
  }

  static void order_by_event(OnDevice& device, void* before, void* after) {
    void* const between = device.event();
    ASSERT_EQ(cuEventRecord(between, before), kSuccess);
    ASSERT_EQ(cuStreamWaitEvent(after, between, 0), kSuccess);
  }
  // Of which the one and only names both.
  static void expect_race(const char* one, const char* other) {
    const std::vector<std::string> found = violations();
    ASSERT_EQ(found.size(), 1u) << testing::PrintToString(found);
    EXPECT_NE(found[0].find(one), std::string::npos) << found[0];
    EXPECT_NE(found[0].find(other), std::string::npos) << found[0];
  }
};

INSTANTIATE_TEST_SUITE_P(Seeds, CudaStandinOrderTest, testing::Range<uint64_t>(0, 12));

TEST_P(CudaStandinOrderTest, A_stream_orders_its_own) {
  OnDevice device(0);
  void* const stream = device.stream();
  const uint64_t at = device.memory<float>(kCount);
  device.write(stream, at, std::vector<float>(kCount, 1.0F));
  device.write(stream, at, std::vector<float>(kCount, 2.0F));
  // Expect: the second one's.
  EXPECT_EQ(device.read<float>(stream, at, kCount), std::vector<float>(kCount, 2.0F));
}

TEST_P(CudaStandinOrderTest, Finds_that_no_event_was_waited_for) {
  OnDevice device(0);
  const uint64_t at = device.memory<float>(kCount);
  launch(device.stream(), "producer", {}, {{at, kBytes}}, nullptr);
  launch(device.stream(), "consumer", {{at + kBytes / 2, 4}}, {}, nullptr);
  // Expect: one violation that names both.
  expect_race("producer", "consumer");
}

TEST_P(CudaStandinOrderTest, Finds_that_a_reader_was_not_waited_for) {
  OnDevice device(0);
  const uint64_t at = device.memory<float>(kCount);
  launch(device.stream(), "reader", {{at, kBytes}}, {}, nullptr);
  launch(device.stream(), "next", {}, {{at, kBytes}}, nullptr);
  expect_race("reader", "next");
}

TEST_P(CudaStandinOrderTest, Readers_need_no_order) {
  OnDevice device(0);
  const uint64_t at = device.memory<float>(kCount);
  launch(device.stream(), "one", {{at, kBytes}}, {}, nullptr);
  launch(device.stream(), "other", {{at, kBytes}}, {}, nullptr);
}

TEST_P(CudaStandinOrderTest, An_event_orders_and_brings_the_data) {
  OnDevice device(0);
  void* const producer = device.stream();
  void* const consumer = device.stream();
  const uint64_t at = device.memory<float>(kCount);
  device.write(producer, at, std::vector<float>(kCount, 3.0F));
  order_by_event(device, producer, consumer);
  EXPECT_EQ(device.read<float>(consumer, at, kCount), std::vector<float>(kCount, 3.0F));
}

TEST_P(CudaStandinOrderTest, A_wait_or_a_record_that_is_dropped_orders_nothing) {
  OnDevice device(0);
  const uint64_t at = device.memory<float>(kCount);
  const auto race = [&](const std::function<void(void*, void*)>& drop) {
    void* const producer = device.stream();
    void* const consumer = device.stream();
    ASSERT_EQ(cuCtxSynchronize(), kSuccess);
    drop(producer, consumer);
    launch(producer, "producer", {}, {{at, kBytes}}, nullptr);
    order_by_event(device, producer, consumer);
    launch(consumer, "consumer", {{at, kBytes}}, {}, nullptr);
    expect_race("producer", "consumer");
  };
  race([](void*, void* consumer) { drop_waits(consumer); });
  race([](void* producer, void*) { drop_records(producer); });
  race([](void*, void*) { skip_call("cuStreamWaitEvent", 1); });
  race([](void*, void*) {
    std::thread([] { skip_call("cuEventRecord", 1); }).join();  // another thread's
    skip_call("cuEventRecord", 1);
  });
  race([](void*, void*) {
    skip_call("cuEventRecord", 1, 1);  // another device's
    skip_call("cuEventRecord", 0, 1);
  });
}

TEST_P(CudaStandinOrderTest, The_test_s_own_order_is_one) {
  OnDevice device(0);
  void* const producer = device.stream();
  void* const consumer = device.stream();
  const uint64_t at = device.memory<float>(kCount);
  launch(producer, "producer", {}, {{at, kBytes}}, nullptr);
  device.order(producer, consumer);
  launch(consumer, "consumer", {{at, kBytes}}, {}, nullptr);
  EXPECT_EQ(calls("cuStreamWaitEvent"), 0u);
}

TEST_P(CudaStandinOrderTest, An_event_covers_what_came_before_its_record_only) {
  OnDevice device(0);
  void* const producer = device.stream();
  void* const consumer = device.stream();
  const uint64_t at = device.memory<float>(kCount);
  order_by_event(device, producer, consumer);
  launch(producer, "late", {}, {{at, kBytes}}, nullptr);
  launch(consumer, "consumer", {{at, kBytes}}, {}, nullptr);
  expect_race("late", "consumer");
}

TEST_P(CudaStandinOrderTest, A_wait_keeps_to_the_record_that_it_found) {
  OnDevice device(0);
  void* const first = device.stream();
  void* const second = device.stream();
  void* const consumer = device.stream();
  void* const event = device.event();
  const uint64_t at = device.memory<float>(kCount);
  launch(first, "first", {}, {{at, kBytes}}, nullptr);
  ASSERT_EQ(cuEventRecord(event, first), kSuccess);
  ASSERT_EQ(cuStreamWaitEvent(consumer, event, 0), kSuccess);
  ASSERT_EQ(cuEventRecord(event, second), kSuccess);
  launch(consumer, "consumer", {{at, kBytes}}, {}, nullptr);
}

TEST_P(CudaStandinOrderTest, A_wait_for_an_event_that_was_never_recorded_is_none) {
  OnDevice device(0);
  void* const consumer = device.stream();
  const uint64_t at = device.memory<float>(kCount);
  launch(device.stream(), "producer", {}, {{at, kBytes}}, nullptr);
  ASSERT_EQ(cuStreamWaitEvent(consumer, device.event(), 0), kSuccess);
  launch(consumer, "consumer", {{at, kBytes}}, {}, nullptr);
  expect_race("producer", "consumer");
}

TEST_P(CudaStandinOrderTest, Order_is_handed_on_over_streams) {
  OnDevice device(0);
  void* const a = device.stream();
  void* const b = device.stream();
  void* const c = device.stream();
  const uint64_t at = device.memory<float>(kCount);
  launch(a, "a", {}, {{at, kBytes}}, nullptr);
  order_by_event(device, a, b);
  order_by_event(device, b, c);
  launch(c, "c", {}, {{at, kBytes}}, nullptr);
}

TEST_P(CudaStandinOrderTest, That_the_host_launched_in_order_is_none) {
  OnDevice device(0);
  void* const slow = device.stream();
  const uint64_t at = device.memory<float>(kCount);
  make_slow(slow);
  launch(slow, "slow", {}, {{at, kBytes}}, nullptr);
  launch(device.stream(), "quick", {}, {{at, kBytes}}, nullptr);
  expect_race("slow", "quick");
}

TEST_P(CudaStandinOrderTest, A_host_that_waited_orders_even_for_other_threads) {
  OnDevice device(0);
  void* const producer = device.stream();
  void* const consumer = device.stream();
  const uint64_t at = device.memory<float>(kCount);
  launch(producer, "producer", {}, {{at, kBytes}}, nullptr);
  ASSERT_EQ(cuStreamSynchronize(producer), kSuccess);
  std::thread([&] { launch(consumer, "consumer", {{at, kBytes}}, {}, nullptr); }).join();
}

TEST_P(CudaStandinOrderTest, A_query_that_found_the_end_orders_for_its_thread) {
  OnDevice device(0);
  void* const producer = device.stream();
  void* const consumer = device.stream();
  void* const event = device.event();
  const uint64_t at = device.memory<float>(kCount);
  launch(producer, "producer", {}, {{at, kBytes}}, nullptr);
  ASSERT_EQ(cuEventRecord(event, producer), kSuccess);
  while (cuEventQuery(event) == kNotReady) std::this_thread::yield();
  launch(consumer, "consumer", {{at, kBytes}}, {}, nullptr);
  EXPECT_TRUE(violations().empty());

  // Expect: another thread knows it only when it was handed over.
  launch(producer, "second", {}, {{at, 4}}, nullptr);
  order_by_event(device, consumer, producer);
  launch(producer, "third", {}, {{at, kBytes}}, nullptr);
  violations();
  ASSERT_EQ(cuEventRecord(event, producer), kSuccess);
  std::thread([&] {
    ASSERT_EQ(cuCtxPushCurrent_v2(device.context()), kSuccess);
    while (cuEventQuery(event) == kNotReady) std::this_thread::yield();
  }).join();
  launch(consumer, "fourth", {{at, kBytes}}, {}, nullptr);
  expect_race("third", "fourth");
  std::thread([&] {
    ASSERT_EQ(cuCtxPushCurrent_v2(device.context()), kSuccess);
    while (cuStreamQuery(consumer) == kNotReady) std::this_thread::yield();
    hand_over();
  }).join();
  launch(producer, "fifth", {}, {{at, kBytes}}, nullptr);
}

TEST_P(CudaStandinOrderTest, The_legacy_stream_orders_blocking_streams_alone) {
  OnDevice device(0);
  void* const blocking = device.stream(0);
  const uint64_t at = device.memory<float>(kCount);
  launch(blocking, "before", {}, {{at, kBytes}}, nullptr);
  launch(nullptr, "legacy", {}, {{at, kBytes}}, nullptr);
  launch(blocking, "after", {}, {{at, kBytes}}, nullptr);
  launch(reinterpret_cast<void*>(2), "per thread", {{at, 4}}, {}, nullptr);
  // Two blocking streams, one of them by the thread, are not in order with each other.
  expect_race("after", "per thread");
  launch(device.stream(), "apart", {{at, 4}}, {}, nullptr);
  expect_race("after", "apart");
}

TEST_P(CudaStandinOrderTest, Contexts_have_legacy_streams_of_their_own) {
  OnDevice device(0);
  void* const blocking = device.stream(0);
  const uint64_t at = device.memory<float>(kCount);
  launch(blocking, "blocking", {}, {{at, kBytes}}, nullptr);
  void* other = nullptr;
  ASSERT_EQ(cuCtxCreate_v2(&other, 0, 0), kSuccess);
  launch(nullptr, "of another context", {}, {{at, kBytes}}, nullptr);
  expect_race("blocking", "of another context");
  ASSERT_EQ(cuCtxSynchronize(), kSuccess);
  ASSERT_EQ(cuCtxDestroy_v2(other), kSuccess);
}

TEST_P(CudaStandinOrderTest, Pageable_memory_is_read_at_the_call_and_pinned_memory_when_it_runs) {
  OnDevice device(0);
  void* const stream = device.stream();
  const uint64_t at = device.memory<float>(kCount);
  std::vector<float> pageable(kCount, 1.0F);
  hold(stream);
  ASSERT_EQ(cuMemcpyHtoDAsync_v2(at, pageable.data(), kBytes, stream), kSuccess);
  pageable.assign(kCount, 2.0F);
  release(stream);
  // Expect: what it was at the call.
  EXPECT_EQ(device.read<float>(stream, at, kCount), std::vector<float>(kCount, 1.0F));

  void* pinned = nullptr;
  ASSERT_EQ(cuMemAllocHost_v2(&pinned, kBytes), kSuccess);
  const Range all{reinterpret_cast<uint64_t>(pinned), kBytes};
  host_writes("first", all);
  memset(pinned, 0, kBytes);
  hold(stream);
  ASSERT_EQ(cuMemcpyHtoDAsync_v2(at, pinned, kBytes, stream), kSuccess);
  host_writes("too soon", all);
  memset(pinned, 0, kBytes);
  release(stream);
  expect_race("too soon", "cuMemcpyHtoDAsync");
  ASSERT_EQ(cuStreamSynchronize(stream), kSuccess);
  host_writes("in time", all);
  ASSERT_EQ(cuMemFreeHost(pinned), kSuccess);
}

TEST_P(CudaStandinOrderTest, Copies_and_fills_are_checked_as_kernels_are) {
  OnDevice device(0);
  const uint64_t from = device.memory<float>(kCount);
  const uint64_t to = device.memory<float>(kCount);
  void* const filling = device.stream();
  void* const copying = device.stream();
  ASSERT_EQ(cuMemsetD8Async(from, 0, kBytes, filling), kSuccess);
  ASSERT_EQ(cuMemcpyDtoDAsync_v2(to, from, kBytes, copying), kSuccess);
  expect_race("cuMemsetD8Async", "cuMemcpyDtoDAsync");
  order_by_event(device, filling, copying);
  ASSERT_EQ(cuMemcpyDtoDAsync_v2(to, from, kBytes, copying), kSuccess);
  EXPECT_EQ(device.read<float>(copying, to, kCount), std::vector<float>(kCount, 0.0F));
}

TEST_P(CudaStandinOrderTest, Memory_is_freed_only_after_the_host_has_seen_the_end) {
  OnDevice device(0);
  void* const stream = device.stream();
  uint64_t at = 0;
  ASSERT_EQ(cuMemAlloc_v2(&at, kBytes), kSuccess);
  launch(stream, "last", {}, {{at, kBytes}}, nullptr);
  ASSERT_TRUE(finish());  // by chance, as far as the host knows
  ASSERT_EQ(cuMemFree_v2(at), kSuccess);
  expect_race("last", "cuMemFree");

  ASSERT_EQ(cuMemAlloc_v2(&at, kBytes), kSuccess);
  hold(stream);
  launch(stream, "later", {}, {{at, kBytes}}, [] { FAIL() << "of memory that is gone"; });
  ASSERT_EQ(cuMemFree_v2(at), kSuccess);
  release(stream);
  const std::vector<std::string> found = violations();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_NE(found[0].find("were freed"), std::string::npos) << found[0];
}

}  // namespace
}  // namespace noria::standin
