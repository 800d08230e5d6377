// Whole jobs of several processes that reduce gradients through the C API.
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <utility>

#include "tests/support/c_reducer.hpp"
#include "tests/support/look_at.hpp"

namespace noria::test {
namespace {

const std::vector<noria_dtype> kFloats{NORIA_FLOAT32, NORIA_FLOAT64, NORIA_FLOAT16, NORIA_BFLOAT16};
const std::vector<noria_dtype> kAll{NORIA_FLOAT32,  NORIA_FLOAT64, NORIA_FLOAT16,
                                    NORIA_BFLOAT16, NORIA_INT32,   NORIA_INT64};

std::vector<Tensor> model_for(const JobConfig& config) {
  return awkward_model(config.op == NORIA_AVG ? kFloats : kAll);
}

// ---- results ------------------------------------------------------------------------------------

struct Case {
  int32_t ranks;
  JobConfig config;
};
class Jobs : public testing::TestWithParam<Case> {};

TEST_P(Jobs, End_with_the_same_bytes_on_all_ranks_whatever_the_order_of_arrival) {
  const auto [size, config] = GetParam();
  constexpr uint64_t kSteps = 4;
  const noria_unique_id id = make_job_id();
  RankCrew crew(size, [&, size = size, config = config](int32_t rank, Wire& parent) {
    RankOfJob mine(id, rank, size, model_for(config), config);
    expect_ok(noria_reducer_seal(mine.reducer));
    for (uint64_t step = 0; step < kSteps; ++step) {
      // The data of steps 2 and 3 are those of 0 and 1, in another order.
      mine.run_good_step(step % 2, step * 100 + static_cast<uint64_t>(rank),
                         1 + static_cast<unsigned>(step + static_cast<uint64_t>(rank)) % 4);
      parent.send(mine.hash_of_results());
    }
  });
  std::vector<std::vector<uint64_t>> hashes(kSteps);
  for (auto& of_step : hashes)
    for (int32_t rank = 0; rank < size; ++rank) of_step.push_back(crew.wire(rank).recv<uint64_t>());
  crew.expect_success();
  for (uint64_t step = 0; step < kSteps; ++step)
    EXPECT_EQ(hashes[step], std::vector<uint64_t>(static_cast<size_t>(size), hashes[step % 2][0]));
}

INSTANTIATE_TEST_SUITE_P(
    All, Jobs,
    testing::Values(Case{1, {.arena = true}}, Case{2, {.arena = true}},
                    Case{2, {.arena = false, .op = NORIA_SUM}}, Case{3, {.arena = false}},
                    Case{4, {.arena = true, .op = NORIA_SUM}}, Case{8, {.arena = true}},
                    Case{2, {.arena = false, .plan = NORIA_PLAN_STRICT}},
                    Case{2, {.arena = true, .plan = NORIA_PLAN_PLANNED}},
                    Case{3, {.arena = false, .plan = NORIA_PLAN_PLANNED}},
                    Case{2,
                         {.arena = false, .plan = NORIA_PLAN_STRICT, .order = NORIA_ORDER_ARRIVAL}},
                    Case{1, {.wire_dtype = NORIA_BFLOAT16}},
                    Case{2, {.wire_dtype = NORIA_BFLOAT16}},
                    Case{3, {.average = NORIA_AVERAGE_PRE}},
                    Case{2, {.plan = NORIA_PLAN_PLANNED, .wire_dtype = NORIA_BFLOAT16}},
                    Case{4,
                         {.arena = false,
                          .plan = NORIA_PLAN_STRICT,
                          .average = NORIA_AVERAGE_SPLIT_SQRT,
                          .wire_dtype = NORIA_FLOAT16}},
                    Case{2, {.arena = false, .max_in_flight = 1}},
                    Case{2, {.arena = false, .op = NORIA_SUM, .max_in_flight = 3}},
                    Case{3, {.arena = false, .plan = NORIA_PLAN_STRICT, .max_in_flight = 1}},
                    Case{3,
                         {.arena = false,
                          .bucket_bytes = 8'192,
                          .plan = NORIA_PLAN_PLANNED,
                          .max_in_flight = 2}},
                    Case{2, {.arena = false, .wire_dtype = NORIA_BFLOAT16, .max_in_flight = 1}},
                    // A long ring goes on with more than were asked for.
                    Case{8, {.arena = false, .bucket_bytes = 8'192, .max_in_flight = 1}},
                    Case{4,
                         {.arena = false,
                          .bucket_bytes = 65'536,
                          .plan = NORIA_PLAN_STRICT,
                          .wire_dtype = NORIA_FLOAT16,
                          .max_in_flight = 2}}));

TEST(Job, A_narrow_wire_carries_half_the_bytes) {
  constexpr int32_t kSize = 2;
  const std::vector<Tensor> model{{"w", NORIA_FLOAT32, 300'000}, {"v", NORIA_FLOAT32, 77'777}};
  uint64_t bytes = 0;
  for (const Tensor& tensor : model) bytes += tensor.numel * sizeof(float);
  for (const noria_dtype wire : {noria_dtype{0}, noria_dtype{NORIA_BFLOAT16}}) {
    const noria_unique_id id = make_job_id();
    run_ranks(kSize, [&](int32_t rank, Wire&) {
      RankOfJob mine(id, rank, kSize, model, {.wire_dtype = wire});
      expect_ok(noria_reducer_seal(mine.reducer));
      mine.run_good_step(0, 1, 1);
      noria_comm_info before{.struct_size = sizeof before}, after = before;
      // Between two barriers nothing of a step is on the wire.
      expect_ok(noria_barrier(mine.comm, nullptr, nullptr));
      expect_ok(noria_observe_comm(mine.comm, &before));
      expect_ok(noria_barrier(mine.comm, nullptr, nullptr));
      constexpr uint64_t kSteps = 8;
      for (uint64_t step = 1; step <= kSteps; ++step) mine.run_good_step(step, step, 1);
      expect_ok(noria_barrier(mine.comm, nullptr, nullptr));
      expect_ok(noria_observe_comm(mine.comm, &after));
      // 2(n-1)/n of the data in each direction, and headers and notices beside it.
      const uint64_t data = kSteps * (wire == 0 ? bytes : bytes / 2);
      for (const uint64_t carried :
           {after.sent_bytes - before.sent_bytes, after.received_bytes - before.received_bytes}) {
        EXPECT_GE(carried, data);
        EXPECT_LE(carried, data + data / 50 + 32'768);
      }
    });
  }
}

TEST(Job, Steps_of_nothing_and_of_one_element_end) {
  const noria_unique_id id = make_job_id();
  run_ranks(2, [&](int32_t rank, Wire&) {
    RankOfJob mine(id, rank, 2, {{"one", NORIA_FLOAT32, 1}, {"none", NORIA_INT32, 0}},
                   {.op = NORIA_SUM});
    expect_ok(noria_reducer_seal(mine.reducer));
    for (uint64_t step = 0; step < 3; ++step) mine.run_good_step(step, step, 1);
  });
}

TEST(Job, A_plan_that_was_learnt_is_saved_and_there_from_the_first_step_of_another_run) {
  const std::string path = testing::TempDir() + std::to_string(::getpid()) + ".learnt.plan";
  for (const bool loads : {false, true}) {
    const noria_unique_id id = make_job_id();
    run_ranks(2, [&](int32_t rank, Wire&) {
      // Copies at first, so that the plan is laid out anew; then views in its order.
      const JobConfig config{.arena = loads, .plan = NORIA_PLAN_PLANNED};
      RankOfJob mine(id, rank, 2, awkward_model(kFloats), config);
      if (loads) expect_ok(noria_reducer_load_plan(mine.reducer, path.c_str()));
      expect_failure(noria_reducer_save_plan(mine.reducer, path.c_str()), NORIA_E_STATE, "seal");
      expect_ok(noria_reducer_seal(mine.reducer));
      expect_failure(noria_reducer_load_plan(mine.reducer, path.c_str()), NORIA_E_STATE, "seal");
      for (uint64_t step = 0; step < 2; ++step) mine.run_good_step(step, step, 1);
      noria_step_report report = NORIA_STEP_REPORT_INIT;
      expect_ok(noria_step_begin(mine.reducer, 0));
      mine.give_all(2, 2, 1);
      expect_ok(noria_step_end(mine.reducer, nullptr, &report));
      EXPECT_EQ(report.plan_version, loads ? 0u : 1u);
      if (rank == 0 && !loads) expect_ok(noria_reducer_save_plan(mine.reducer, path.c_str()));
      if (rank == 0 && loads) {
        const std::string again = path + ".again";
        expect_ok(noria_reducer_save_plan(mine.reducer, again.c_str()));
        const auto read = [](const std::string& file) {
          std::ifstream in(file);
          return std::string(std::istreambuf_iterator<char>(in), {});
        };
        EXPECT_EQ(read(again), read(path));
        ::unlink(again.c_str());
      }
    });
  }
  ::unlink(path.c_str());
}

TEST(Job, A_plan_that_cannot_be_used_is_refused_on_all_ranks) {
  const std::string path = testing::TempDir() + std::to_string(::getpid()) + ".refused.plan";
  std::ofstream(path) << "noria_plan 1 lines\ntensor 0 float32 5 b\nbucket float32 0 5\n";
  const noria_unique_id id = make_job_id();
  run_ranks(2, [&](int32_t rank, Wire&) {
    RankOfJob mine(id, rank, 2, {{"a", NORIA_FLOAT32, 5}}, {});
    expect_failure(noria_reducer_load_plan(mine.reducer, "/nowhere/a.plan"), NORIA_E_ARG,
                   "cannot open the plan /nowhere/a.plan: No such file");
    expect_failure(noria_reducer_load_plan(mine.reducer, "/"), NORIA_E_ARG, "cannot read the plan");
    expect_failure(noria_reducer_load_plan(mine.reducer, nullptr), NORIA_E_ARG, "path is NULL");
    if (rank == 0) expect_ok(noria_reducer_load_plan(mine.reducer, path.c_str()));
    expect_failure(noria_reducer_seal(mine.reducer), NORIA_E_MISMATCH,
                   "the ranks differ in the loaded plan: one with fingerprint");
    if (rank == 1) expect_ok(noria_reducer_load_plan(mine.reducer, path.c_str()));
    expect_failure(noria_reducer_seal(mine.reducer), NORIA_E_ARG,
                   "tensor 0 of the loaded plan is 'b', float32, 5 elements");
  });
  ::unlink(path.c_str());
}

TEST(Job, Reports_are_filled_in_and_buckets_observed) {
  const noria_unique_id id = make_job_id();
  run_ranks(2, [&](int32_t rank, Wire&) {
    RankOfJob mine(id, rank, 2, awkward_model(kFloats), {});
    expect_ok(noria_reducer_seal(mine.reducer));
    mine.run_good_step(0, 0, 1);
    expect_ok(noria_step_begin(mine.reducer, 0));
    mine.give_all(1, 1, 2);
    noria_step_report report = NORIA_STEP_REPORT_INIT;
    expect_ok(noria_step_end(mine.reducer, nullptr, &report));
    EXPECT_EQ(report.step, 1u);
    EXPECT_GT(report.buckets, 4u);
    EXPECT_GT(report.communication_ns, 0);
    EXPECT_GE(report.step_ns, report.exposed_ns);

    uint32_t count = 0;
    expect_ok(noria_observe_buckets(mine.reducer, nullptr, 0, &count));
    ASSERT_EQ(count, report.buckets);
    std::vector<noria_bucket_info> buckets(count + 1, {.struct_size = sizeof(noria_bucket_info)});
    expect_ok(noria_observe_buckets(mine.reducer, buckets.data(), count + 1, &count));
    uint64_t bytes = 0;
    for (uint32_t b = 0; b < count; ++b) {
      EXPECT_EQ(buckets[b].bucket, b);
      EXPECT_LE(buckets[b].start_ns, buckets[b].end_ns);
      EXPECT_LE(buckets[b].ready_ns, buckets[b].end_ns);
      EXPECT_LE(buckets[b].wire_ns, buckets[b].end_ns - buckets[b].start_ns);
      bytes += buckets[b].bytes;
    }
    EXPECT_EQ(bytes, report.bytes);

    noria_step_info info{};
    info.struct_size = sizeof info;
    expect_ok(noria_observe_step(mine.reducer, &info));
    EXPECT_EQ(info.step, 1u);
    EXPECT_EQ(info.bytes, bytes);
    EXPECT_EQ(info.end_ns - info.begin_ns, report.step_ns);
    EXPECT_EQ(info.exposed_ns, report.exposed_ns);
    // Expect: what two ranks of a ring move, each byte once, give or take the edges of chunks.
    EXPECT_GE(info.wire_bytes, bytes - 64 * 1024);
    EXPECT_LE(info.wire_bytes, bytes + 64 * 1024);
  });
}

TEST(Job, C39_A_bucket_is_reduced_while_the_backward_pass_goes_on) {
  const noria_unique_id id = make_job_id();
  run_ranks(3, [&](int32_t rank, Wire&) {
    RankOfJob mine(id, rank, 3,
                   {{"below", NORIA_FLOAT32, 500'000}, {"above", NORIA_FLOAT32, 500'000}}, {});
    expect_ok(noria_reducer_seal(mine.reducer));
    for (uint64_t step = 0; step < 3; ++step) {
      expect_ok(noria_step_begin(mine.reducer, 0));
      expect_ok(mine.give(1, step));
      // Expect: the averages are there to the last line, though the gradients below are not.
      const Bytes own = gradient(rank, step, mine.model[1]);
      const Bytes last_line(own.end() - 256, own.end());
      const char* line = static_cast<const char*>(mine.result(1)) + own.size() - 256;
      const int64_t deadline = now_ns() + 20_s;
      while (look_at(line, 256) == last_line && now_ns() < deadline) std::this_thread::yield();
      EXPECT_NE(look_at(line, 256), last_line);
      expect_ok(mine.give(0, step));
      expect_ok(noria_step_end(mine.reducer, nullptr, nullptr));
      noria_step_info info{};
      info.struct_size = sizeof info;
      expect_ok(noria_observe_step(mine.reducer, &info));
      std::vector<noria_bucket_info> buckets(2, {.struct_size = sizeof(noria_bucket_info)});
      uint32_t count = 0;
      expect_ok(noria_observe_buckets(mine.reducer, buckets.data(), 2, &count));
      EXPECT_LE(buckets[0].first_ns, buckets[0].start_ns);
      EXPECT_LT(buckets[0].start_ns, info.last_gradient_ns);
      for (uint32_t t = 0; t < 2; ++t)
        expect_reduced(mine.result(t), mine.model[t], step, 3, NORIA_AVG);
    }
  });
}

// Two more of one shape on the rank's communicator.
std::vector<noria_reducer*> twins(const RankOfJob& mine) {
  std::vector<noria_reducer*> made(2);
  noria_reducer_config config = NORIA_REDUCER_CONFIG_INIT;
  config.arena = 1;
  noria_tensor_desc tensor = NORIA_TENSOR_DESC_INIT;
  tensor.name = "w";
  tensor.numel = 1000;
  uint32_t id = 0;
  for (noria_reducer*& reducer : made) {
    expect_ok(noria_reducer_create(mine.comm, &config, &reducer));
    expect_ok(noria_reducer_add(reducer, &tensor, &id));
    expect_ok(noria_reducer_seal(reducer));
  }
  return made;
}

TEST(Job, Steps_of_several_reducers_are_open_at_once) {
  const noria_unique_id id = make_job_id();
  run_ranks(2, [&](int32_t rank, Wire&) {
    RankOfJob mine(id, rank, 2, awkward_model(kFloats), {});
    const std::vector<noria_reducer*> reducers = twins(mine);
    for (int step = 0; step < 3; ++step) {
      for (noria_reducer* reducer : reducers) expect_ok(noria_step_begin(reducer, 0));
      for (int i = 1; i >= 0; --i) {
        void* view = nullptr;
        uint64_t bytes = 0;
        expect_ok(noria_reducer_view(reducers[static_cast<size_t>(i)], 0, &view, &bytes));
        std::fill_n(static_cast<float*>(view), 1000, static_cast<float>(10 * i + 2 * rank));
        expect_ok(noria_grad_ready(reducers[static_cast<size_t>(i)], 0, view, nullptr));
      }
      expect_failure(noria_step_end(reducers[1], nullptr, nullptr), NORIA_E_STATE, "end it first");
      for (size_t i = 0; i < 2; ++i) {
        expect_ok(noria_step_end(reducers[i], nullptr, nullptr));
        const void* result = nullptr;
        expect_ok(noria_grad_result(reducers[i], 0, nullptr, 0, &result));
        EXPECT_EQ(static_cast<const float*>(result)[999], static_cast<float>(10 * i + 1));
      }
    }
    for (noria_reducer* reducer : reducers) noria_reducer_destroy(reducer);
  });
}

TEST(Job, C02_A_step_is_never_matched_with_that_of_another_reducer_of_the_same_shape) {
  const noria_unique_id id = make_job_id();
  run_ranks(2, [&](int32_t rank, Wire&) {
    RankOfJob mine(id, rank, 2, awkward_model(kFloats), {});
    const std::vector<noria_reducer*> reducers = twins(mine);
    noria_reducer* const first = reducers[rank == 0 ? 0 : 1];
    expect_ok(noria_step_begin(first, 0));
    expect_ok(noria_grad_ready(first, 0, nullptr, nullptr));
    expect_failure(noria_step_end(first, nullptr, nullptr), NORIA_E_MISMATCH,
                   "of another reducer; all ranks must call the same in the same order");
    for (noria_reducer* reducer : reducers) noria_reducer_destroy(reducer);
  });
}

TEST(Job, Ranks_with_fewer_inputs_join_until_all_are_done) {
  const noria_unique_id id = make_job_id();
  run_ranks(3, [&](int32_t rank, Wire&) {
    RankOfJob mine(id, rank, 3, awkward_model(kFloats), {});
    expect_ok(noria_reducer_seal(mine.reducer));
    for (int32_t step = 0; step < rank; ++step) {
      expect_ok(noria_step_begin(mine.reducer, 0));
      mine.give_all(static_cast<uint64_t>(step), 1, 1);
      expect_ok(noria_step_end(mine.reducer, nullptr, nullptr));
    }
    uint32_t all_joined = 0, joins = 0;
    noria_step_report report = NORIA_STEP_REPORT_INIT;
    for (; all_joined == 0; ++joins)
      expect_ok(noria_step_join(mine.reducer, nullptr, &report, &all_joined));
    EXPECT_EQ(joins, static_cast<uint32_t>(3 - rank));
    EXPECT_EQ(report.step, 2u);
  });
}

TEST(Job, Buckets_are_observed_by_the_size_that_the_first_element_tells) {
  const noria_unique_id id = make_job_id();
  run_ranks(2, [&](int32_t rank, Wire&) {
    RankOfJob mine(id, rank, 2, awkward_model(kFloats), {});
    expect_ok(noria_reducer_seal(mine.reducer));
    // A newer caller's, longer struct; only the first element's size is set.
    struct Newer {
      noria_bucket_info info;
      uint64_t of_the_future;
    };
    std::vector<Newer> buckets(3, {.info = {}, .of_the_future = 7});
    buckets[0].info.struct_size = sizeof(Newer);
    uint32_t count = 0;
    expect_ok(noria_observe_buckets(mine.reducer, &buckets[0].info, 3, &count));
    ASSERT_GE(count, 3U);
    for (uint32_t b = 0; b < 3; ++b) {
      EXPECT_EQ(buckets[b].info.struct_size, sizeof(Newer));
      EXPECT_EQ(buckets[b].info.bucket, b);
      EXPECT_EQ(buckets[b].of_the_future, 7U);
    }
    buckets[0].info.struct_size = UINT32_MAX;
    expect_failure(noria_observe_buckets(mine.reducer, &buckets[0].info, 3, &count), NORIA_E_ARG,
                   "struct_size is 4294967295");
  });
}

TEST(Job, An_empty_bucket_does_not_hold_up_the_results_of_those_behind_it) {
  const noria_unique_id id = make_job_id();
  // In order of launch: "empty", "early", "late", each in a bucket of its own.
  const std::vector<Tensor> model{
      {"late", NORIA_FLOAT32, 900}, {"early", NORIA_FLOAT16, 1000}, {"empty", NORIA_FLOAT64, 0}};
  RankCrew crew(2, [&](int32_t rank, Wire& parent) {
    RankOfJob mine(id, rank, 2, model, {.arena = false});
    expect_ok(noria_reducer_seal(mine.reducer));
    expect_ok(noria_step_begin(mine.reducer, 0));
    expect_ok(mine.give(2, 0));
    expect_ok(mine.give(1, 0));
    if (rank == 1) parent.recv<uint8_t>();  // rank 0 has the result of "early"
    expect_ok(mine.give(0, 0));
    std::thread watcher;
    if (rank == 0)
      watcher = std::thread([&] {
        const Bytes own = gradient(0, 0, model[1]);
        const Nanoseconds deadline = now_ns() + 20_s;
        while (look_at(mine.result(1), own.size()) == own && now_ns() < deadline)
          ::poll(nullptr, 0, 1);
        EXPECT_NE(look_at(mine.result(1), own.size()), own) << "not before the whole step";
        parent.send(uint8_t{1});
      });
    expect_ok(noria_step_end(mine.reducer, nullptr, nullptr));
    if (watcher.joinable()) watcher.join();
    for (uint32_t tensor = 0; tensor < 3; ++tensor)
      expect_reduced(mine.result(tensor), model[tensor], 0, 2, NORIA_AVG);
  });
  crew.wire(0).recv<uint8_t>();
  crew.wire(1).send(uint8_t{1});
  crew.expect_success();
}

TEST(Job, Other_collectives_go_between_steps_and_not_into_them) {
  const noria_unique_id id = make_job_id();
  run_ranks(2, [&](int32_t rank, Wire&) {
    RankOfJob mine(id, rank, 2, awkward_model(kFloats), {});
    expect_ok(noria_reducer_seal(mine.reducer));
    for (uint64_t step = 0; step < 3; ++step) {
      expect_ok(noria_step_begin(mine.reducer, 0));
      float value = 1;
      expect_failure(noria_all_reduce(mine.comm, &value, &value, 1, NORIA_FLOAT32, NORIA_SUM,
                                      nullptr, nullptr),
                     NORIA_E_STATE, "step");
      mine.give_all(step, step, 2);
      expect_ok(noria_step_end(mine.reducer, nullptr, nullptr));
      expect_ok(noria_all_reduce(mine.comm, &value, &value, 1, NORIA_FLOAT32, NORIA_SUM, nullptr,
                                 nullptr));
      EXPECT_EQ(value, 2);
    }
  });
}

// ---- steps that go wrong ------------------------------------------------------------------------

// A bad step that fails alike on all ranks; after a reset, a good one.
void expect_step_fails_everywhere(int32_t size, noria_status code, const std::string& part,
                                  const std::function<void(RankOfJob&)>& bad_step) {
  const noria_unique_id id = make_job_id();
  run_ranks(size, [&](int32_t rank, Wire&) {
    RankOfJob mine(id, rank, size, awkward_model(kFloats), {.arena = rank % 2 == 0});
    expect_ok(noria_reducer_seal(mine.reducer));
    expect_ok(noria_step_begin(mine.reducer, 0));
    bad_step(mine);
    expect_failure(noria_step_end(mine.reducer, nullptr, nullptr), code, part);
    expect_failure(noria_step_begin(mine.reducer, 0), NORIA_E_STATE, "noria_reducer_reset()");
    expect_ok(noria_reducer_reset(mine.reducer));
    mine.run_good_step(1, 7, 2);
  });
}

TEST(Job, A_missing_tensor_fails_the_step_on_all_ranks_by_name) {
  expect_step_fails_everywhere(3, NORIA_E_MISSING,
                               "step 0 failed: rank 1 did not give 't7', 't9' (2 of 52 tensors)",
                               [](RankOfJob& mine) {
                                 for (uint32_t id = 0; id < mine.model.size(); ++id)
                                   if (mine.rank != 1 || (id != 7 && id != 9))
                                     expect_ok(mine.give(id, 0));
                               });
}

TEST(Job, A_tensor_given_twice_fails_there_and_then_on_all_ranks) {
  expect_step_fails_everywhere(2, NORIA_E_DUP_READY, "rank 1 gave too often 't20'",
                               [](RankOfJob& mine) {
                                 for (uint32_t id = 0; id < mine.model.size(); ++id) {
                                   expect_ok(mine.give(id, 0));
                                   if (mine.rank == 1 && id == 20)
                                     expect_failure(mine.give(id, 0), NORIA_E_DUP_READY, "'t20'");
                                 }
                               });
}

TEST(Job, A_reset_in_the_midst_aborts_the_step_of_the_others) {
  const noria_unique_id id = make_job_id();
  run_ranks(3, [&](int32_t rank, Wire&) {
    RankOfJob mine(id, rank, 3, awkward_model(kFloats), {});
    expect_ok(noria_reducer_seal(mine.reducer));
    expect_ok(noria_step_begin(mine.reducer, 0));
    if (rank == 1) {
      expect_ok(mine.give(5, 0));
    } else {
      mine.give_all(0, 3, 2);
      expect_failure(noria_step_end(mine.reducer, nullptr, nullptr), NORIA_E_ABORTED,
                     "rank 1 was reset");
    }
    expect_ok(noria_reducer_reset(mine.reducer));
    mine.run_good_step(2, 5, 1);
  });
}

TEST(Job, Ranks_that_differ_are_told_alike_at_seal) {
  const noria_unique_id id = make_job_id();
  run_ranks(3, [&](int32_t rank, Wire&) {
    std::vector<Tensor> model = awkward_model(kFloats);
    if (rank == 2) model[30].numel = 99;
    RankOfJob mine(id, rank, 3, model, {});
    expect_failure(noria_reducer_seal(mine.reducer), NORIA_E_MISMATCH, "99 elements on rank 2");
  });
}

TEST(Job, A_model_of_another_length_or_configuration_is_told_too) {
  const noria_unique_id id = make_job_id();
  run_ranks(2, [&](int32_t rank, Wire&) {
    std::vector<Tensor> model = awkward_model(kFloats);
    if (rank == 1) model.pop_back();
    RankOfJob mine(id, rank, 2, model, {});
    expect_failure(noria_reducer_seal(mine.reducer), NORIA_E_MISMATCH,
                   "tensor 51: 't51', bfloat16, 20000 elements on rank 0; none on rank 1");
  });
  const noria_unique_id other = make_job_id();
  run_ranks(2, [&](int32_t rank, Wire&) {
    RankOfJob mine(other, rank, 2, awkward_model(kFloats),
                   {.bucket_bytes = rank == 0 ? 1000u : 2000u});
    expect_failure(noria_reducer_seal(mine.reducer), NORIA_E_MISMATCH,
                   "bucket_bytes: 1000 on rank 0; 2000 on rank 1");
  });
  const noria_unique_id narrow = make_job_id();
  run_ranks(2, [&](int32_t rank, Wire&) {
    RankOfJob mine(narrow, rank, 2, awkward_model(kFloats),
                   {.wire_dtype = rank == 0 ? 0 : NORIA_BFLOAT16});
    expect_failure(noria_reducer_seal(mine.reducer), NORIA_E_MISMATCH,
                   "wire_dtype: 0 on rank 0; 9 on rank 1");
  });
}

// ---- arguments ----------------------------------------------------------------------------------

TEST(Api, Null_and_nonsense_are_refused_by_name) {
  noria_comm_config comm_config = NORIA_COMM_CONFIG_INIT;
  comm_config.rank = 0;
  comm_config.size = 1;
  noria_comm* comm = nullptr;
  expect_ok(noria_comm_create(&comm_config, &comm));

  noria_reducer_config config = NORIA_REDUCER_CONFIG_INIT;
  noria_reducer* reducer = nullptr;
  expect_failure(noria_reducer_create(nullptr, &config, &reducer), NORIA_E_ARG, "comm is NULL");
  expect_failure(noria_reducer_create(comm, nullptr, &reducer), NORIA_E_ARG, "config");
  expect_failure(noria_reducer_create(comm, &config, nullptr), NORIA_E_ARG, "reducer is NULL");
  config.op = NORIA_SUM;
  using Config = noria_reducer_config;
  constexpr uint32_t kSharded = NORIA_SHARD_REDUCE_SCATTER;
  const std::pair<void (*)(Config&), const char*> bad[] = {
      {[](Config& c) { c.op = NORIA_MAX; }, "op is 2"},
      {[](Config& c) { c.arena = 7; }, "arena is 7"},
      {[](Config& c) { c.plan = 3; }, "plan is 3"},
      {[](Config& c) { c.plan = NORIA_PLAN_PLANNED, c.order = 2; }, "order is 2"},
      {[](Config& c) { c.average = NORIA_AVERAGE_PRE; }, "average is set"},
      {[](Config& c) { c.average = 3; }, "average is 3"},
      {[](Config& c) { c.wire_dtype = NORIA_FLOAT32; }, "wire_dtype is 7"},
      {[](Config& c) { c.unused = 3; }, "unused is 3"},
      {[](Config& c) { c.static_graph = 2; }, "static_graph is 2"},
      {[](Config& c) { c.nonfinite = 2; }, "nonfinite is 2"},
      {[](Config& c) { c.shard = 2; }, "shard is 2"},
      {[](Config& c) { c.shard = kSharded, c.plan = NORIA_PLAN_PLANNED; }, "buckets that stay"},
      {[](Config& c) { c.max_in_flight = 2, c.arena = 1; }, "max_in_flight is 2: it bounds copies"},
      {[](Config& c) { c.max_in_flight = 1, c.shard = kSharded; }, "max_in_flight is 1"},
      {[](Config& c) { c.struct_size = 0; }, "struct_size is 0"}};
  for (const auto& [spoil, text] : bad) {
    Config spoilt = config;
    spoil(spoilt);
    expect_failure(noria_reducer_create(comm, &spoilt, &reducer), NORIA_E_ARG, text);
  }
  expect_ok(noria_reducer_create(comm, &config, &reducer));

  noria_tensor_desc tensor = NORIA_TENSOR_DESC_INIT;
  uint32_t id = 0;
  expect_failure(noria_reducer_add(nullptr, &tensor, &id), NORIA_E_ARG, "reducer is NULL");
  expect_failure(noria_reducer_add(reducer, nullptr, &id), NORIA_E_ARG, "noria_tensor_desc");
  expect_failure(noria_reducer_add(reducer, &tensor, &id), NORIA_E_ARG, "name is NULL");
  tensor.name = "w";
  tensor.numel = 4;
  expect_failure(noria_reducer_add(reducer, &tensor, nullptr), NORIA_E_ARG, "id is NULL");
  tensor.dtype = NORIA_INT8;
  expect_failure(noria_reducer_add(reducer, &tensor, &id), NORIA_E_UNSUPPORTED, "int8");
  tensor.dtype = NORIA_INT32;
  expect_ok(noria_reducer_add(reducer, &tensor, &id));
  expect_failure(noria_reducer_add(reducer, &tensor, &id), NORIA_E_ARG, "registered before");

  expect_failure(noria_reducer_seal(nullptr), NORIA_E_ARG, "reducer is NULL");
  expect_ok(noria_reducer_seal(reducer));
  void* view = nullptr;
  uint64_t bytes = 0;
  expect_failure(noria_reducer_view(reducer, id, &view, &bytes), NORIA_E_STATE, "set arena to 1");
  expect_failure(noria_reducer_view(reducer, id, nullptr, &bytes), NORIA_E_ARG, "ptr is NULL");
  expect_failure(noria_step_begin(reducer, 2), NORIA_E_ARG, "flags are 2");
  expect_failure(noria_step_begin(nullptr, 0), NORIA_E_ARG, "reducer is NULL");
  expect_failure(noria_grad_unused(nullptr, nullptr, 0), NORIA_E_ARG, "reducer is NULL");
  expect_failure(noria_grad_unused(reducer, nullptr, 1), NORIA_E_ARG, "ids is NULL");
  expect_failure(noria_step_join(nullptr, nullptr, nullptr, &id), NORIA_E_ARG, "reducer is NULL");
  expect_failure(noria_step_join(reducer, nullptr, nullptr, nullptr), NORIA_E_ARG,
                 "all_joined is NULL");
  const void* result = nullptr;
  expect_failure(noria_grad_result(nullptr, 0, nullptr, 0, &result), NORIA_E_ARG,
                 "reducer is NULL");
  expect_failure(noria_grad_result(reducer, 0, nullptr, 0, nullptr), NORIA_E_ARG, "result is NULL");
  expect_ok(noria_step_begin(reducer, 0));

  int32_t gradient[4] = {1, 2, 3, 4};
  noria_stream stream = {sizeof stream, NORIA_STREAM_CUDA, nullptr, 0};
  expect_failure(noria_grad_ready(reducer, id, gradient, &stream), NORIA_E_UNSUPPORTED,
                 "this communicator or reducer is of the host");
  stream.kind = 9;
  expect_failure(noria_grad_ready(reducer, id, gradient, &stream), NORIA_E_ARG, "kind is 9");
  expect_failure(noria_grad_ready(nullptr, id, gradient, nullptr), NORIA_E_ARG, "reducer is NULL");
  stream.kind = NORIA_STREAM_HOST;
  expect_ok(noria_grad_ready(reducer, id, gradient, &stream));
  stream.kind = NORIA_STREAM_CUDA;
  noria_step_report report = NORIA_STEP_REPORT_INIT;
  expect_failure(noria_step_end(reducer, &stream, &report), NORIA_E_UNSUPPORTED,
                 "NORIA_STREAM_CUDA");
  report.struct_size = 0;
  expect_failure(noria_step_end(reducer, nullptr, &report), NORIA_E_ARG, "struct_size is 0");
  report.struct_size = sizeof report;
  // None of the refused calls ended the step.
  expect_ok(noria_step_end(reducer, nullptr, &report));
  EXPECT_EQ(report.buckets, 1u);
  EXPECT_EQ(report.bytes, 16u);
  EXPECT_EQ(gradient[3], 4);

  noria_step_info info{};
  expect_failure(noria_observe_step(nullptr, &info), NORIA_E_ARG, "reducer is NULL");
  expect_failure(noria_observe_step(reducer, nullptr), NORIA_E_ARG, "noria_step_info is NULL");
  expect_failure(noria_observe_step(reducer, &info), NORIA_E_ARG, "struct_size is 0");
  info.struct_size = sizeof info;
  expect_ok(noria_observe_step(reducer, &info));
  EXPECT_EQ(info.wire_bytes, 0u);  // one rank
  expect_failure(noria_observe_buckets(reducer, nullptr, 0, nullptr), NORIA_E_ARG, "count is NULL");
  uint32_t count = 0;
  expect_failure(noria_observe_buckets(reducer, nullptr, 1, &count), NORIA_E_ARG, "out is NULL");
  noria_reducer_destroy(reducer);
  noria_reducer_destroy(nullptr);
  noria_comm_destroy(comm);
}

TEST(Api, Older_callers_structs_are_served_as_far_as_they_go) {
  noria_comm_config comm_config = NORIA_COMM_CONFIG_INIT;
  comm_config.rank = 0;
  comm_config.size = 1;
  noria_comm* comm = nullptr;
  expect_ok(noria_comm_create(&comm_config, &comm));
  noria_reducer_config config = NORIA_REDUCER_CONFIG_INIT;
  config.struct_size = offsetof(noria_reducer_config, bucket_bytes);  // arena only
  config.bucket_bytes = 1;                                            // not to be read
  noria_reducer* reducer = nullptr;
  expect_ok(noria_reducer_create(comm, &config, &reducer));
  for (const char* name : {"a", "b"}) {
    noria_tensor_desc tensor = NORIA_TENSOR_DESC_INIT;
    tensor.name = name;
    tensor.numel = 1;
    uint32_t id = 0;
    expect_ok(noria_reducer_add(reducer, &tensor, &id));
  }
  expect_ok(noria_reducer_seal(reducer));
  uint32_t count = 0;
  expect_ok(noria_observe_buckets(reducer, nullptr, 0, &count));
  EXPECT_EQ(count, 1u);  // with a cap of one byte it would be two
  noria_reducer_destroy(reducer);
  noria_comm_destroy(comm);
}

}  // namespace
}  // namespace noria::test
