// Ranks of a communicator of GPUs, through the C API, on the devices of the stand-in: threads of
// the test, rank r on device r.
//
// Threads: a rank's own.
#pragma once

#include <gtest/gtest.h>
#include <noria/observe.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/support/c_reducer.hpp"
#include "tests/support/cuda_standin/on_device.hpp"
#include "tests/support/ranks.hpp"

namespace noria::test {

// What a rank asks for, before it is a rank.
inline noria_comm_config gpu_config(const noria_unique_id& id, int32_t rank, int32_t size) {
  noria_comm_config config = NORIA_COMM_CONFIG_INIT;
  config.id = &id;
  config.rank = rank;
  config.size = size;
  config.start_timeout_ms = 20'000;
  config.collective_timeout_ms = 20'000;
  config.device_kind = NORIA_STREAM_CUDA;
  config.device = rank;
  return config;
}

class GpuRank {
 public:
  explicit GpuRank(const noria_comm_config& config)
      : rank(config.rank), size(config.size), on(config.device) {
    expect_ok(noria_comm_create(&config, &comm));
    main = on.stream();
  }
  ~GpuRank() { destroy(); }
  GpuRank(const GpuRank&) = delete;
  GpuRank& operator=(const GpuRank&) = delete;
  void destroy() {
    noria_comm_destroy(comm);
    comm = nullptr;
  }

  noria_stream stream(void* handle) const {
    return {sizeof(noria_stream), NORIA_STREAM_CUDA, handle, rank};
  }
  template <class T>
  static T* pointer(uint64_t address) {
    return reinterpret_cast<T*>(address);
  }
  // Memory with the values, which a kernel in the main stream writes some time.
  uint64_t given(const std::vector<float>& values) {
    const uint64_t address = on.memory<float>(values.size());
    on.write(main, address, values);
    return address;
  }
  std::vector<float> read(uint64_t address, size_t count) {
    std::vector<float> values = on.read<float>(main, address, count);
    EXPECT_EQ(cuStreamSynchronize(main), 0);
    return values;
  }
  noria_status sum(uint64_t in, uint64_t out, uint64_t count, noria_work** work = nullptr,
                   noria_op op = NORIA_SUM) const {
    const noria_stream queue = stream(main);
    return noria_all_reduce(comm, pointer<void>(in), pointer<void>(out), count, NORIA_FLOAT32, op,
                            &queue, work);
  }
  noria_comm_info info() const {
    noria_comm_info info{};
    info.struct_size = sizeof info;
    expect_ok(noria_observe_comm(comm, &info));
    return info;
  }

  const int32_t rank, size;
  standin::OnDevice on;
  void* main = nullptr;  // a stream
  noria_comm* comm = nullptr;
};

// body on a thread for each rank. `adjust` changes what a rank asks for.
inline void run_gpu_ranks(
    int32_t size, const std::function<void(GpuRank&)>& body,
    const std::function<void(noria_comm_config&)>& adjust = [](noria_comm_config&) {}) {
  const noria_unique_id id = make_job_id();
  run_rank_threads(size, [&](int32_t rank) {
    noria_comm_config config = gpu_config(id, rank, size);
    adjust(config);
    GpuRank mine(config);
    body(mine);
  });
}

// Values that depend on rank and index, and what all ranks' add up to.
inline std::vector<float> values_of(int32_t rank, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i)
    values[i] = static_cast<float>((i * 7 + static_cast<size_t>(rank) * 13) % 101);
  return values;
}
inline std::vector<float> sums_of(int32_t size, size_t count) {
  std::vector<float> sums(count, 0);
  for (int32_t rank = 0; rank < size; ++rank) {
    const std::vector<float> values = values_of(rank, count);
    for (size_t i = 0; i < count; ++i) sums[i] += values[i];
  }
  return sums;
}

}  // namespace noria::test
