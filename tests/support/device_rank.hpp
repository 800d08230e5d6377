// A rank of a job whose gradients lie on a device of the stand-in, through the C API alone; and the
// job, whose ranks are threads of the test.
//
// A gradient is written by a kernel on one of the rank's streams, which runs when the stand-in
// likes, and the result is read by one on the rank's consumer: what is not ordered between them is
// a violation, and mostly a wrong result too.
//
// Threads: a rank's own; write() and ready() any thread, for a tensor one at a time.
#pragma once

#include <gtest/gtest.h>
#include <noria/bucketing.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/c_reducer.hpp"
#include "tests/support/cuda_standin/on_device.hpp"
#include "tests/support/gpu_rank.hpp"
#include "tests/support/gradients.hpp"
#include "tests/support/ranks.hpp"

namespace noria::test {

// Several buckets by device_config(), the smallest tensors in one.
inline std::vector<Tensor> small_model() {
  return {{"a", NORIA_FLOAT32, 3'000},
          {"b", NORIA_FLOAT32, 70'000},
          {"c", NORIA_FLOAT32, 500},
          {"d", NORIA_FLOAT32, 600}};
}
inline constexpr uint32_t kA = 0, kB = 1, kC = 2, kD = 3;

inline noria_reducer_config device_config(bool arena) {
  noria_reducer_config config = NORIA_REDUCER_CONFIG_INIT;
  config.arena = arena ? 1 : 0;
  config.bucket_bytes = 256 * 1024;  // so that a small model has several buckets
  config.first_bucket_bytes = 4096;
  config.last_bucket_bytes = 4096;
  config.device_kind = NORIA_STREAM_CUDA;
  return config;
}

class DeviceRank {
 public:
  DeviceRank(const noria_unique_id& id, int32_t of_rank, int32_t size, std::vector<Tensor> of_model,
             const noria_reducer_config& of_config, unsigned producers = 2,
             uint32_t timeout_ms = 20'000, void* nccl_comm = nullptr)
      : model(std::move(of_model)), rank(of_rank), ranks(size), config(of_config), on(of_rank) {
    noria_comm_config comm_config = gpu_config(id, rank, size);
    comm_config.collective_timeout_ms = timeout_ms;
    comm_config.nccl_comm = nccl_comm;
    expect_ok(noria_comm_create(&comm_config, &comm));
    expect_ok(noria_reducer_create(comm, &config, &reducer));
    for (uint32_t i = 0; i < model.size(); ++i) {
      noria_tensor_desc tensor = NORIA_TENSOR_DESC_INIT;
      tensor.dtype = model[i].dtype;
      tensor.name = model[i].name.c_str();
      tensor.numel = model[i].numel;
      uint32_t added = UINT32_MAX;
      expect_ok(noria_reducer_add(reducer, &tensor, &added));
      EXPECT_EQ(added, i);
    }
    for (unsigned i = 0; i < producers; ++i) streams.push_back(on.stream());
    consumer = on.stream();
    memory_.resize(model.size());
    for (uint32_t i = 0; i < model.size() && config.arena == 0; ++i)
      if (bytes(i) != 0) memory_[i] = on.memory<char>(bytes(i));
  }
  ~DeviceRank() {
    noria_reducer_destroy(reducer);
    noria_comm_destroy(comm);
  }
  DeviceRank(const DeviceRank&) = delete;
  DeviceRank& operator=(const DeviceRank&) = delete;

  noria_stream stream(void* handle) const {
    return {sizeof(noria_stream), NORIA_STREAM_CUDA, handle, rank};
  }
  uint64_t bytes(uint32_t id) const {
    return model[id].numel * bucketing::dtype_bytes(model[id].dtype);
  }
  uint64_t address(uint32_t id) const {
    if (config.arena == 0) return memory_[id];
    void* view = nullptr;
    uint64_t view_bytes = 0;
    expect_ok(noria_reducer_view(reducer, id, &view, &view_bytes));
    return reinterpret_cast<uint64_t>(view);
  }
  void* pointer(uint32_t id) const { return reinterpret_cast<void*>(address(id)); }
  // Elsewhere than before.
  void move(uint32_t id) { memory_[id] = bytes(id) != 0 ? on.memory<char>(bytes(id)) : 0; }

  void seal() const { expect_ok(noria_reducer_seal(reducer)); }
  void begin(uint32_t flags = 0) {
    expect_ok(noria_step_begin(reducer, flags));
    // As in a framework, gradients are written anew behind whatever used the last ones.
    for (void* const producer : streams) on.order(consumer, producer);
  }
  void write(uint32_t id, uint64_t step, void* producer) const {
    if (bytes(id) == 0) return;
    const uint64_t place = address(id);
    const Bytes value = gradient(rank, step, model[id]);
    standin::launch(producer, "gradient of " + model[id].name, {}, {{place, value.size()}}, [=] {
      std::copy(value.begin(), value.end(), standin::memory_as<char>(place));
    });
  }
  noria_status ready(uint32_t id, void* producer) const {
    const noria_stream from = stream(producer);
    return noria_grad_ready(reducer, id, config.arena == 1 ? nullptr : pointer(id), &from);
  }
  noria_status give(uint32_t id, uint64_t step, void* producer) const {
    write(id, step, producer);
    return ready(id, producer);
  }
  // In an order that `seed` decides, from several threads and streams.
  void give_all(uint64_t step, uint64_t seed, unsigned threads = 1) {
    const std::vector<uint32_t> order = random_order(model.size(), seed);
    standin::hand_over();  // the threads begin behind what this one has seen
    std::vector<std::thread> givers;
    for (unsigned t = 0; t < threads; ++t)
      givers.emplace_back([&, t] {
        for (size_t i = t; i < order.size(); i += threads)
          expect_ok(give(order[i], step, streams[(order[i] + seed) % streams.size()]));
      });
    for (std::thread& giver : givers) giver.join();
  }
  noria_status end(noria_step_report* report = nullptr) const {
    const noria_stream to = stream(consumer);
    return noria_step_end(reducer, &to, report);
  }

  // What a kernel on the consumer sees.
  Bytes result(uint32_t id) {
    Bytes seen = on.read<char>(consumer, address(id), bytes(id));
    EXPECT_EQ(cuStreamSynchronize(consumer), 0);
    return seen;
  }
  void expect_results(uint64_t step) {
    for (uint32_t id = 0; id < model.size(); ++id)
      if (bytes(id) != 0) expect_reduced(result(id).data(), model[id], step, ranks, config.op);
  }
  void run_good_step(uint64_t step, uint64_t seed, unsigned threads = 1) {
    begin();
    give_all(step, seed, threads);
    expect_ok(end());
    expect_results(step);
  }

  const std::vector<Tensor> model;
  const int32_t rank, ranks;
  const noria_reducer_config config;
  standin::OnDevice on;
  std::vector<void*> streams;
  void* consumer = nullptr;
  noria_comm* comm = nullptr;
  noria_reducer* reducer = nullptr;

 private:
  std::vector<uint64_t> memory_;
};

// All elements of a float32 result; -1 where they differ.
inline float common_value(DeviceRank& mine, uint32_t id) {
  const Bytes seen = mine.result(id);
  const auto value = load<float>(seen.data(), 0);
  for (uint64_t i = 0; i < mine.model[id].numel; ++i)
    if (load<float>(seen.data(), i) != value) return -1;
  return value;
}
inline void put(DeviceRank& mine, uint32_t id, float value, void* on) {
  mine.on.write(on, mine.address(id), std::vector<float>(mine.model[id].numel, value));
}
inline noria_status give_value(DeviceRank& mine, uint32_t id, float value) {
  put(mine, id, value, mine.streams[0]);
  return mine.ready(id, mine.streams[0]);
}

// body on a thread for each rank, played by `seed`; nothing was out of order.
inline void run_device_job(int32_t size, uint64_t seed, std::vector<Tensor> model,
                           const noria_reducer_config& config,
                           const std::function<void(DeviceRank&)>& body, unsigned producers = 2) {
  standin::reset(seed);
  const noria_unique_id id = make_job_id();
  run_rank_threads(size, [&](int32_t rank) {
    DeviceRank mine(id, rank, size, model, config, producers);
    body(mine);
  });
  EXPECT_EQ(standin::violations(), std::vector<std::string>());
}

}  // namespace noria::test
