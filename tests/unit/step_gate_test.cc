#include "bucketing/step_gate.hpp"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace noria::bucketing {
namespace {

TEST(StepGate, Is_closed_at_first_and_after_close) {
  StepGate gate;
  EXPECT_FALSE(gate.enter());
  gate.open();
  EXPECT_TRUE(gate.enter());
  gate.leave();
  gate.close();
  EXPECT_FALSE(gate.enter());
  gate.close();  // closed twice is closed
  gate.open();
  EXPECT_TRUE(gate.enter());
  gate.leave();
}

TEST(StepGate, An_unusual_step_lets_in_who_asks_for_any) {
  StepGate gate;
  gate.open_unusual();
  EXPECT_TRUE(gate.is_open());
  EXPECT_FALSE(gate.enter());
  EXPECT_TRUE(gate.enter_any());
  gate.leave();
  gate.close();
  // Expect: closed for both; the next step is opened as it likes.
  EXPECT_FALSE(gate.enter_any());
  gate.open();
  EXPECT_TRUE(gate.enter_any());
  gate.leave();
  EXPECT_TRUE(gate.enter());
  gate.leave();
}

TEST(StepGate, Nobody_is_inside_after_close_and_their_work_is_seen) {
  constexpr unsigned kThreads = 3, kSteps = 40;
  StepGate gate;
  std::atomic<bool> is_over{false};
  // Plain memory that callers write inside and the closer reads after: TSan and the sum judge.
  std::vector<uint64_t> entered(kThreads * 16, 0);
  std::atomic<uint64_t> admitted{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      while (!is_over.load(std::memory_order_relaxed)) {
        if (!gate.enter()) {
          std::this_thread::yield();
          continue;
        }
        ++entered[t * 16];
        admitted.fetch_add(1, std::memory_order_relaxed);
        gate.leave();
      }
    });
  for (unsigned step = 0; step < kSteps; ++step) {
    gate.open();
    std::this_thread::yield();
    gate.close();
    uint64_t sum = 0;
    for (unsigned t = 0; t < kThreads; ++t) sum += entered[t * 16];
    EXPECT_EQ(sum, admitted.load(std::memory_order_relaxed));
  }
  is_over.store(true, std::memory_order_relaxed);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace noria::bucketing
