// A rank of a job that reduces gradients through the C API alone, and the job itself.
//
// Threads: as Crew; a rank's give() from any thread.
#pragma once

#include <gtest/gtest.h>
#include <noria/bucketing.h>
#include <noria/observe.h>

#include <algorithm>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/gradients.hpp"
#include "tests/support/ranks.hpp"

namespace noria::test {

inline std::string last_error() {
  std::string text(noria_last_error(nullptr, 0), '\0');
  noria_last_error(text.data(), text.size() + 1);
  return text;
}
inline void expect_ok(noria_status status) { EXPECT_EQ(status, NORIA_OK) << last_error(); }
inline void expect_failure(noria_status status, noria_status code, const std::string& part) {
  EXPECT_EQ(status, code) << last_error();
  EXPECT_TRUE(contains(last_error(), part)) << last_error();
}

inline std::vector<noria_shard_range> shard_ranges(noria_reducer* reducer) {
  uint32_t count = 0;
  expect_ok(noria_reducer_shard_ranges(reducer, nullptr, 0, &count));
  std::vector<noria_shard_range> ranges(count);
  if (count != 0) ranges[0].struct_size = sizeof(noria_shard_range);
  expect_ok(noria_reducer_shard_ranges(reducer, ranges.data(), count, &count));
  return ranges;
}

struct JobConfig {
  bool arena = true;
  noria_op op = NORIA_AVG;
  uint64_t bucket_bytes = 512 * 1024;  // so that a small model has several buckets
  uint32_t timeout_ms = 30'000;
  uint32_t plan = NORIA_PLAN_DDP;
  uint32_t order = NORIA_ORDER_REVERSE;
  uint32_t average = NORIA_AVERAGE_POST;
  noria_dtype wire_dtype = 0;
  uint32_t shard = NORIA_SHARD_NONE;
  uint32_t max_in_flight = 0;
  uint32_t unused = NORIA_UNUSED_ERROR;
  uint32_t nonfinite = NORIA_NONFINITE_PASS;
};

class RankOfJob {
 public:
  RankOfJob(const noria_unique_id& id, int32_t of_rank, int32_t size, std::vector<Tensor> of_model,
            const JobConfig& config)
      : model(std::move(of_model)), rank(of_rank), ranks(size), config_(config) {
    noria_comm_config comm_config = NORIA_COMM_CONFIG_INIT;
    comm_config.rank = rank;
    comm_config.size = size;
    comm_config.id = &id;
    comm_config.start_timeout_ms = comm_config.collective_timeout_ms = config.timeout_ms;
    expect_ok(noria_comm_create(&comm_config, &comm));
    noria_reducer_config reducer_config = NORIA_REDUCER_CONFIG_INIT;
    reducer_config.arena = config.arena ? 1 : 0;
    reducer_config.op = config.op;
    reducer_config.bucket_bytes = config.bucket_bytes;
    reducer_config.first_bucket_bytes = 4096;
    reducer_config.last_bucket_bytes = 4096;
    reducer_config.plan = config.plan;
    reducer_config.order = config.order;
    reducer_config.average = config.average;
    reducer_config.wire_dtype = config.wire_dtype;
    reducer_config.shard = config.shard;
    reducer_config.max_in_flight = config.max_in_flight;
    reducer_config.unused = config.unused;
    reducer_config.nonfinite = config.nonfinite;
    expect_ok(noria_reducer_create(comm, &reducer_config, &reducer));
    for (uint32_t i = 0; i < model.size(); ++i) {
      noria_tensor_desc tensor = NORIA_TENSOR_DESC_INIT;
      tensor.dtype = model[i].dtype;
      tensor.name = model[i].name.c_str();
      tensor.numel = model[i].numel;
      uint32_t id_given = UINT32_MAX;
      expect_ok(noria_reducer_add(reducer, &tensor, &id_given));
      EXPECT_EQ(id_given, i);
    }
    memory_.resize(model.size());
  }
  ~RankOfJob() {
    noria_reducer_destroy(reducer);
    noria_comm_destroy(comm);
  }
  RankOfJob(const RankOfJob&) = delete;
  RankOfJob& operator=(const RankOfJob&) = delete;

  noria_status give(uint32_t id, uint64_t step) {
    const Bytes value = gradient(rank, step, model[id]);
    if (!config_.arena) {
      memory_[id] = value;
      return noria_grad_ready(reducer, id, memory_[id].data(), nullptr);
    }
    std::copy(value.begin(), value.end(), static_cast<Bytes::value_type*>(view(id)));
    return noria_grad_ready(reducer, id, nullptr, nullptr);
  }
  // In an order that `seed` decides, from several threads.
  void give_all(uint64_t step, uint64_t seed, unsigned threads) {
    const std::vector<uint32_t> order = random_order(model.size(), seed);
    std::vector<std::thread> givers;
    for (unsigned t = 0; t < threads; ++t)
      givers.emplace_back([&, t] {
        for (size_t i = t; i < order.size(); i += threads) expect_ok(give(order[i], step));
      });
    for (std::thread& giver : givers) giver.join();
  }
  // begin, all gradients, end, and a look at every element.
  void run_good_step(uint64_t step, uint64_t seed, unsigned threads) {
    expect_ok(noria_step_begin(reducer, 0));
    give_all(step, seed, threads);
    expect_ok(noria_step_end(reducer, nullptr, nullptr));
    for (uint32_t id = 0; id < model.size(); ++id)
      expect_reduced(result(id), model[id], step, ranks, config_.op);
  }

  void* view(uint32_t id) const {
    void* place = nullptr;
    uint64_t bytes = 0;
    expect_ok(noria_reducer_view(reducer, id, &place, &bytes));
    EXPECT_EQ(bytes, model[id].numel * bucketing::dtype_bytes(model[id].dtype));
    return place;
  }
  const void* result(uint32_t id) const { return config_.arena ? view(id) : memory_[id].data(); }
  // Of all result bytes, for the comparison between ranks.
  uint64_t hash_of_results() const {
    uint64_t hash = 0xcbf29ce484222325;
    for (uint32_t id = 0; id < model.size(); ++id) {
      const auto* bytes = static_cast<const unsigned char*>(result(id));
      const uint64_t count = model[id].numel * bucketing::dtype_bytes(model[id].dtype);
      for (uint64_t i = 0; i < count; ++i) hash = (hash ^ bytes[i]) * 0x100000001b3;
    }
    return hash;
  }

  const std::vector<Tensor> model;
  const int32_t rank, ranks;
  noria_comm* comm = nullptr;
  noria_reducer* reducer = nullptr;

 private:
  const JobConfig config_;
  std::vector<Bytes> memory_;
};

// Made by the test before it forks the ranks, of which rank 0 inherits the listener.
inline noria_unique_id make_job_id() {
  noria_unique_id id{};
  expect_ok(noria_get_unique_id(&id));
  return id;
}

}  // namespace noria::test
