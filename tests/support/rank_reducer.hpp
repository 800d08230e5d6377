// A rank's reducer and its gradients, over ranks that are threads.
//
// Threads: a RankReducer is its rank's; give(), put() and fire() from any thread.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "bucketing/reducer.hpp"
#include "tests/support/gradients.hpp"

namespace noria::test {

template <class T>
void expect_ok(const bucketing::Outcome<T>& outcome) {
  EXPECT_TRUE(outcome.is_ok()) << outcome.failure().text;
}
template <class T>
void expect_failure(const bucketing::Outcome<T>& outcome, noria_status code,
                    const std::string& part) {
  ASSERT_FALSE(outcome.is_ok());
  EXPECT_EQ(outcome.failure().code, code) << outcome.failure().text;
  EXPECT_NE(outcome.failure().text.find(part), std::string::npos) << outcome.failure().text;
}

class RankReducer {
 public:
  // `fires` by id, where it is more than once.
  RankReducer(const bucketing::ReducerHost& host, const bucketing::ReducerConfig& config,
              const std::vector<Tensor>& of, const std::vector<uint32_t>& fires = {})
      : model(of), reducer(host, config), rank(host.rank), is_arena_(config.arena) {
    for (size_t id = 0; id < model.size(); ++id)
      expect_ok(reducer.add(model[id].name, model[id].dtype, model[id].numel,
                            id < fires.size() ? fires[id] : 0));
    memory_.resize(model.size());
  }

  bucketing::Outcome<Ok> give(uint32_t id, uint64_t step) {
    const Bytes value = gradient(rank, step, model[id]);
    if (is_arena_) {
      const auto view = reducer.view(id).value();
      std::copy(value.begin(), value.end(), reinterpret_cast<Bytes::value_type*>(view.data()));
      return reducer.grad_ready(id, id % 2 == 0 ? nullptr : view.data());
    }
    memory_[id] = value;
    return reducer.grad_ready(id, memory_[id].data());
  }
  // Writes nothing: what was given may be on the wire.
  bucketing::Outcome<Ok> give_again(uint32_t id) {
    return reducer.grad_ready(id, is_arena_ ? nullptr : memory_[id].data());
  }

  // All elements of a float32 gradient; and the call that says it is there.
  void put(uint32_t id, float value) {
    if (!is_arena_) memory_[id].resize(model[id].numel * sizeof(float));
    std::fill_n(floats(id), model[id].numel, value);
  }
  bucketing::Outcome<Ok> fire(uint32_t id) { return reducer.grad_ready(id, floats(id)); }
  bucketing::Outcome<Ok> fire(uint32_t id, float value) {
    put(id, value);
    return fire(id);
  }
  // Too late or once too often: nothing is written where the ring may be reading.
  bucketing::Outcome<Ok> fire_late(uint32_t id) { return is_arena_ ? fire(id) : fire(id, 1); }
  // What all elements are; -1 where they differ.
  float value(uint32_t id) { return common_value(floats(id), id); }
  // The same of what result() says; -2 where it says that nobody used it.
  float told_value(uint32_t id) {
    const auto told = reducer.result(id, 0);
    expect_ok(told);
    if (!told.is_ok()) return -3;
    return told.value() == nullptr ? -2 : common_value(static_cast<const float*>(*told), id);
  }

  // Gives `order` from several threads, each its share of it.
  void give_all(const std::vector<uint32_t>& order, uint64_t step, unsigned threads) {
    std::vector<std::thread> givers;
    for (unsigned t = 0; t < threads; ++t)
      givers.emplace_back([&, t] {
        for (size_t i = t; i < order.size(); i += threads) expect_ok(give(order[i], step));
      });
    for (std::thread& giver : givers) giver.join();
  }

  const void* result(uint32_t id) const {
    return is_arena_ ? static_cast<const void*>(reducer.view(id).value().data())
                     : memory_[id].data();
  }
  Bytes all_results() const {
    Bytes all;
    for (uint32_t id = 0; id < model.size(); ++id) {
      const auto* bytes = static_cast<const char*>(result(id));
      all.insert(all.end(), bytes,
                 bytes + model[id].numel * bucketing::dtype_bytes(model[id].dtype));
    }
    return all;
  }
  void expect_results(uint64_t step, int32_t ranks, noria_op op) const {
    for (uint32_t id = 0; id < model.size(); ++id)
      expect_reduced(result(id), model[id], step, ranks, op);
  }

  const std::vector<Tensor> model;
  bucketing::Reducer reducer;
  const int32_t rank;

 private:
  float* floats(uint32_t id) { return static_cast<float*>(const_cast<void*>(result(id))); }
  float common_value(const float* values, uint32_t id) const {
    const bool is_common = std::all_of(values, values + model[id].numel,
                                       [&](float value) { return value == values[0]; });
    return is_common ? values[0] : -1;
  }

  const bool is_arena_;
  std::vector<Bytes> memory_;
};

// Small caps, so that a small model has several buckets.
inline bucketing::ReducerConfig small_buckets(bool arena, noria_op op = NORIA_AVG,
                                              bucketing::PlanKind plan = bucketing::PlanKind::ddp) {
  return {
      .arena = arena,
      .caps = {.first_bucket_bytes = 4_KiB, .bucket_bytes = 512_KiB, .last_bucket_bytes = 16_KiB},
      .op = op,
      .plan = plan};
}

}  // namespace noria::test
