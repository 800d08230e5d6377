// Calls of the C API that come without what they need: each is refused in words, and changes
// nothing.
#include <noria/bucketing.h>
#include <noria/observe.h>

#include <cstring>

#include "tests/support/c_reducer.hpp"

namespace noria::test {
namespace {

// One rank, which needs no device; a tensor of four numbers, in the arena.
class CBoundary : public testing::Test {
 protected:
  CBoundary() {
    noria_comm_config comm_config = NORIA_COMM_CONFIG_INIT;
    comm_config.rank = 0;
    comm_config.size = 1;
    noria_unique_id id;
    expect_ok(noria_get_unique_id(&id));
    comm_config.id = &id;
    expect_ok(noria_comm_create(&comm_config, &comm_));
    noria_reducer_config config = NORIA_REDUCER_CONFIG_INIT;
    config.arena = 1;
    expect_ok(noria_reducer_create(comm_, &config, &reducer_));
  }
  ~CBoundary() override {
    noria_reducer_destroy(reducer_);
    noria_comm_destroy(comm_);
  }
  static void refused(noria_status status, const std::string& words) {
    expect_failure(status, NORIA_E_ARG, words);
  }
  void seal() {
    noria_tensor_desc tensor = NORIA_TENSOR_DESC_INIT;
    tensor.name = "w";
    tensor.numel = 4;
    expect_ok(noria_reducer_add(reducer_, &tensor, &id_));
    expect_ok(noria_reducer_seal(reducer_));
  }

  noria_comm* comm_ = nullptr;
  noria_reducer* reducer_ = nullptr;
  uint32_t id_ = 0;
};

TEST_F(CBoundary, Refuses_calls_of_no_communicator_and_answers_to_nowhere) {
  float in[4] = {}, out[4] = {};
  int32_t number = 0;
  refused(noria_get_unique_id(nullptr), "noria_get_unique_id: id is NULL");
  refused(noria_comm_rank(nullptr, &number), "noria_comm_rank: comm is NULL");
  refused(noria_comm_rank(comm_, nullptr), "noria_comm_rank: rank is NULL");
  refused(noria_comm_size(nullptr, &number), "noria_comm_size: comm is NULL");
  refused(noria_comm_size(comm_, nullptr), "noria_comm_size: size is NULL");
  refused(noria_broadcast(nullptr, in, out, 4, NORIA_FLOAT32, 0, nullptr, nullptr),
          "noria_broadcast: comm is NULL");
  refused(noria_broadcast(comm_, in, nullptr, 4, NORIA_FLOAT32, 0, nullptr, nullptr),
          "noria_broadcast: out is NULL");
  refused(noria_barrier(nullptr, nullptr, nullptr), "noria_barrier: comm is NULL");
  noria_comm_info info{};
  info.struct_size = sizeof info;
  refused(noria_observe_comm(nullptr, &info), "noria_observe_comm: comm is NULL");
  refused(noria_observe_comm(comm_, nullptr), "noria_comm_info is NULL");
  refused(noria_observe_param(0, nullptr), "noria_param_info is NULL");
  refused(noria_observe_counter(0, nullptr), "noria_counter_info is NULL");
  // Expect: the communicator is as before.
  expect_ok(noria_barrier(comm_, nullptr, nullptr));
}

TEST_F(CBoundary, Refuses_an_id_of_another_version_or_cut_short) {
  noria_unique_id id;
  expect_ok(noria_get_unique_id(&id));
  noria_comm_config config = NORIA_COMM_CONFIG_INIT;
  config.size = 1;
  config.id = &id;
  noria_comm* made = nullptr;
  config.rank = 1;
  refused(noria_comm_create(&config, &made), "rank 1 of 1 ranks");
  config.rank = 0;
  noria_unique_id spoilt = id;
  std::memset(spoilt.bytes + sizeof spoilt.bytes / 2, 'x', sizeof spoilt.bytes / 2);
  config.id = &spoilt;
  refused(noria_comm_create(&config, &made), "were they carried to this rank whole?");
  noria_unique_id newer = id;
  ++newer.bytes[sizeof(uint64_t)];  // behind what says that it is an id
  config.id = &newer;
  expect_failure(noria_comm_create(&config, &made), NORIA_E_MISMATCH, "the id has version");
  EXPECT_EQ(made, nullptr);
}

TEST_F(CBoundary, Refuses_tensors_whose_shape_is_none) {
  noria_tensor_desc tensor = NORIA_TENSOR_DESC_INIT;
  tensor.name = "w";
  tensor.numel = 4;
  tensor.ndim = 2;
  refused(noria_reducer_add(reducer_, &tensor, &id_), "noria_tensor_desc.shape is NULL");
  const int64_t shape[2] = {2, 2};
  tensor.shape = shape;
  tensor.ndim = 65;
  refused(noria_reducer_add(reducer_, &tensor, &id_), "no tensor has 65 dimensions");
  // Expect: none of them was registered.
  tensor.ndim = 2;
  expect_ok(noria_reducer_add(reducer_, &tensor, &id_));
  EXPECT_EQ(id_, 0u);
}

TEST_F(CBoundary, Refuses_calls_of_no_reducer_and_answers_to_nowhere) {
  seal();
  void* data = nullptr;
  uint64_t bytes = 0, total = 0;
  uint32_t count = 0;
  refused(noria_reducer_load_plan(nullptr, "plan"), "reducer is NULL");
  refused(noria_reducer_load_plan(reducer_, nullptr), "path is NULL");
  refused(noria_reducer_save_plan(nullptr, "plan"), "reducer is NULL");
  refused(noria_reducer_save_plan(reducer_, nullptr), "path is NULL");
  refused(noria_reducer_set_hook(nullptr, NORIA_HOOK_BEFORE, nullptr, nullptr), "reducer is NULL");
  refused(noria_reducer_view(nullptr, id_, &data, &bytes), "reducer is NULL");
  refused(noria_reducer_view(reducer_, id_, &data, nullptr), "bytes is NULL");
  refused(noria_reducer_layout(nullptr, id_, &bytes, &total), "reducer is NULL");
  refused(noria_reducer_layout(reducer_, id_, nullptr, &total), "offset is NULL");
  refused(noria_reducer_layout(reducer_, id_, &bytes, nullptr), "total_bytes is NULL");
  refused(noria_reducer_shard_ranges(nullptr, nullptr, 0, &count), "reducer is NULL");
  refused(noria_reducer_shard_ranges(reducer_, nullptr, 0, nullptr), "count is NULL");
  refused(noria_reducer_shard_ranges(reducer_, nullptr, 1, &count), "out is NULL");
  refused(noria_reducer_all_gather(nullptr, &bytes, 8), "reducer is NULL");
  refused(noria_reducer_all_gather(reducer_, nullptr, 8), "memory is NULL");
  refused(noria_reducer_all_gather_as(nullptr, &bytes, 8, NORIA_FLOAT32), "reducer is NULL");
  refused(noria_reducer_all_gather_as(reducer_, nullptr, 8, NORIA_FLOAT32), "memory is NULL");
  refused(noria_observe_buckets(nullptr, nullptr, 0, &count), "reducer is NULL");
  refused(noria_observe_buckets(reducer_, nullptr, 0, nullptr), "count is NULL");
  refused(noria_observe_buckets(reducer_, nullptr, 1, &count), "out is NULL");
  refused(noria_reducer_reset(nullptr), "reducer is NULL");
  refused(noria_step_end(nullptr, nullptr, nullptr), "reducer is NULL");
  // Expect: a step goes as if nothing had been.
  expect_ok(noria_reducer_view(reducer_, id_, &data, &bytes));
  EXPECT_EQ(bytes, 4 * sizeof(float));
  expect_ok(noria_step_begin(reducer_, 0));
  static_cast<float*>(data)[3] = 7;
  expect_ok(noria_grad_ready(reducer_, id_, data, nullptr));
  expect_ok(noria_step_end(reducer_, nullptr, nullptr));
  EXPECT_EQ(static_cast<float*>(data)[3], 7);
}

TEST_F(CBoundary, Refuses_streams_that_are_none_wherever_one_is_taken) {
  seal();
  const void* result = nullptr;
  noria_stream stream{sizeof(noria_stream), 9, nullptr, 0};
  expect_ok(noria_step_begin(reducer_, 0));
  refused(noria_grad_result(reducer_, id_, &stream, 0, &result), "kind is 9");
  refused(noria_step_end(reducer_, &stream, nullptr), "kind is 9");
  stream.struct_size = 1;
  refused(noria_grad_result(reducer_, id_, &stream, 0, &result), "struct_size is 1");
  // Expect: the step is open still.
  void* data = nullptr;
  uint64_t bytes = 0;
  expect_ok(noria_reducer_view(reducer_, id_, &data, &bytes));
  expect_ok(noria_grad_ready(reducer_, id_, data, nullptr));
  expect_ok(noria_step_end(reducer_, nullptr, nullptr));
}

}  // namespace
}  // namespace noria::test
