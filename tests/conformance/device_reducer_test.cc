// Reducers whose gradients lie on devices, over the stand-in for CUDA and NCCL.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <thread>

#include "tests/support/device_rank.hpp"

namespace noria::test {
namespace {

const std::vector<noria_dtype> kFloats{NORIA_FLOAT32, NORIA_FLOAT16, NORIA_BFLOAT16, NORIA_FLOAT64};

class DeviceReducer : public testing::TestWithParam<bool> {};  // arena
INSTANTIATE_TEST_SUITE_P(Modes, DeviceReducer, testing::Values(true, false),
                         [](const auto& mode) { return mode.param ? "Arena" : "Copy"; });

TEST_P(DeviceReducer, Averages_and_sums_are_right_in_every_dtype) {
  for (const noria_op op : {NORIA_AVG, NORIA_SUM})
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      noria_reducer_config config = device_config(GetParam());
      config.op = op;
      config.plan = seed % 2 == 0 ? NORIA_PLAN_STRICT : NORIA_PLAN_DDP;
      config.max_in_flight = static_cast<uint32_t>(seed % 4);
      const auto ranks = static_cast<int32_t>(2 + seed % 3);
      run_device_job(ranks, seed, awkward_model(kFloats), config, [&](DeviceRank& mine) {
        mine.seal();
        for (uint64_t step = 0; step < 3; ++step) mine.run_good_step(step, seed + step, 2);
      });
    }
}

TEST_P(DeviceReducer, Every_average_and_wire_dtype_gives_the_host_s_values) {
  for (const uint32_t average : {NORIA_AVERAGE_POST, NORIA_AVERAGE_PRE, NORIA_AVERAGE_SPLIT_SQRT})
    for (const noria_dtype wire : std::vector<noria_dtype>{0, NORIA_BFLOAT16, NORIA_FLOAT16}) {
      noria_reducer_config config = device_config(GetParam());
      config.average = average;
      config.wire_dtype = wire;
      // Two ranks: every division is by a power of two, every sum exact in 8 bits.
      run_device_job(2, 7 + average, small_model(), config, [](DeviceRank& mine) {
        mine.seal();
        for (uint64_t step = 0; step < 2; ++step) {
          mine.begin();
          for (const uint32_t id : {kD, kC, kB, kA})
            expect_ok(give_value(mine, id, mine.rank == 0 ? 1.5F : 0.25F));
          expect_ok(mine.end());
          for (const uint32_t id : {kD, kC, kB, kA}) EXPECT_EQ(common_value(mine, id), 0.875F);
        }
      });
    }
}

TEST_P(DeviceReducer, One_rank_has_its_gradients_for_results) {
  noria_reducer_config config = device_config(GetParam());
  config.wire_dtype = NORIA_BFLOAT16;  // nothing travels, and nothing is rounded
  run_device_job(1, 3, small_model(), config, [](DeviceRank& mine) {
    mine.seal();
    for (uint64_t step = 0; step < 3; ++step) {
      mine.begin();
      for (const uint32_t id : {kA, kB, kC, kD}) expect_ok(give_value(mine, id, 1.00001F));
      expect_ok(mine.end());
      // Expect: the consumer saw what the producer wrote late.
      for (const uint32_t id : {kA, kB, kC, kD}) EXPECT_EQ(common_value(mine, id), 1.00001F);
    }
  });
}

// ---- streams ------------------------------------------------------------------------------------

TEST_P(DeviceReducer, More_streams_than_a_bucket_remembers_are_all_waited_for) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    std::vector<Tensor> model;
    for (int i = 0; i < 24; ++i) model.push_back({"t" + std::to_string(i), NORIA_FLOAT32, 300});
    const auto train = [seed](DeviceRank& mine) {
      mine.seal();
      for (uint64_t step = 0; step < 3; ++step) mine.run_good_step(step, seed + step, 3);
    };
    run_device_job(2, seed, model, device_config(GetParam()), train, 12);
  }
}

TEST_P(DeviceReducer, Default_streams_of_the_device_and_of_the_thread_are_streams_like_others) {
  for (uintptr_t handle = 0; handle <= 2; ++handle)
    run_device_job(2, 5, small_model(), device_config(GetParam()), [&](DeviceRank& mine) {
      mine.seal();
      void* const stream = reinterpret_cast<void*>(handle);
      for (uint64_t step = 0; step < 2; ++step) {
        mine.begin();
        mine.on.order(mine.consumer, stream);
        for (const uint32_t id : {kA, kB, kC, kD}) expect_ok(mine.give(id, step, stream));
        expect_ok(mine.end());
        mine.expect_results(step);
      }
    });
}

void* own_default_stream() { return reinterpret_cast<void*>(uintptr_t{2}); }

TEST_P(DeviceReducer, A_threads_own_default_stream_is_that_of_the_thread_that_gave_it) {
  for (uint64_t seed = 1; seed <= 3; ++seed)
    run_device_job(2, seed, small_model(), device_config(GetParam()), [](DeviceRank& mine) {
      mine.seal();
      for (uint64_t step = 0; step < 2; ++step) {
        mine.begin();
        standin::hand_over();
        std::thread giver([&] {
          ASSERT_EQ(cuCtxPushCurrent_v2(mine.on.context()), standin::kSuccess);
          mine.on.order(mine.consumer, own_default_stream());
          standin::make_slow(own_default_stream());
          for (const uint32_t id : {kD, kB, kA})
            expect_ok(mine.give(id, step, own_default_stream()));
          ASSERT_EQ(cuCtxPopCurrent_v2(nullptr), standin::kSuccess);
        });
        giver.join();
        // Expect: whoever completes the bucket does not take its own for the giver's.
        expect_ok(mine.give(kC, step, mine.streams[0]));
        expect_ok(mine.end());
        mine.expect_results(step);
      }
    });
}

TEST(DeviceReducerViews, What_a_threads_own_default_stream_still_reads_is_zeroed_by_no_other) {
  noria_reducer_config config = device_config(true);
  config.unused = NORIA_UNUSED_ZERO;
  for (uint64_t seed = 1; seed <= 3; ++seed)
    run_device_job(2, seed, small_model(), config, [](DeviceRank& mine) {
      mine.seal();
      mine.consumer = own_default_stream();
      standin::make_slow(mine.consumer);
      for (uint64_t step = 0; step < 3; ++step) {
        mine.begin();
        expect_ok(give_value(mine, kD, 4));
        if (step == 0) expect_ok(give_value(mine, kB, 2));
        standin::hand_over();
        std::thread other([&] {
          const uint32_t unused[] = {kA, kB, kC};
          expect_ok(noria_grad_unused(mine.reducer, unused + (step == 0 ? 2 : 0), 1));
        });
        other.join();
        expect_ok(mine.end());
        for (const uint32_t id : {kA, kB, kC, kD})
          standin::launch(mine.consumer, "optimizer", {{mine.address(id), mine.bytes(id)}}, {},
                          nullptr);
      }
      EXPECT_EQ(cuStreamSynchronize(mine.consumer), 0);
    });
}

TEST_P(DeviceReducer, The_host_gives_what_is_there_and_waits_for_the_results) {
  run_device_job(2, 11, small_model(), device_config(GetParam()), [](DeviceRank& mine) {
    mine.seal();
    for (uint64_t step = 0; step < 2; ++step) {
      mine.begin();
      for (const uint32_t id : {kA, kB, kC, kD}) {
        mine.write(id, step, mine.streams[0]);
        EXPECT_EQ(cuStreamSynchronize(mine.streams[0]), 0);
        expect_ok(noria_grad_ready(mine.reducer, id, mine.pointer(id), nullptr));
      }
      noria_step_report report = NORIA_STEP_REPORT_INIT;
      expect_ok(noria_step_end(mine.reducer, nullptr, &report));
      // Expect: what the host looks at now is there; and the buckets' times are the device's.
      standin::hand_over();
      mine.expect_results(step);
      EXPECT_EQ(report.buckets, 3U);
      noria_step_info info{};
      info.struct_size = sizeof info;
      expect_ok(noria_observe_step(mine.reducer, &info));
      EXPECT_EQ(info.step, step);
      noria_bucket_info buckets[4]{};
      buckets[0].struct_size = sizeof buckets[0];
      uint32_t count = 0;
      expect_ok(noria_observe_buckets(mine.reducer, buckets, 4, &count));
      for (uint32_t b = 0; b < count && b < 4; ++b) {
        EXPECT_GE(buckets[b].start_ns, info.begin_ns);
        EXPECT_GE(buckets[b].end_ns, buckets[b].start_ns);
        EXPECT_EQ(buckets[b].wire_ns, buckets[b].end_ns - buckets[b].start_ns);
      }
    }
  });
}

TEST_P(DeviceReducer, A_result_is_there_for_a_stream_before_the_step_ends) {
  run_device_job(2, 4, small_model(), device_config(GetParam()), [](DeviceRank& mine) {
    mine.seal();
    for (uint64_t step = 0; step < 2; ++step) {
      mine.begin();
      const void* place = nullptr;
      const noria_stream to = mine.stream(mine.consumer);
      expect_failure(noria_grad_result(mine.reducer, kD, &to, 0, &place), NORIA_E_STATE, "'d'");
      for (const uint32_t id : {kD, kC}) expect_ok(give_value(mine, id, 4));
      expect_ok(noria_grad_result(mine.reducer, kD, &to, 0, &place));
      EXPECT_EQ(place, mine.pointer(kD));
      EXPECT_EQ(common_value(mine, kD), 4);
      expect_ok(give_value(mine, kB, 2));
      expect_ok(noria_grad_result(mine.reducer, kB, nullptr, 0, &place));  // for the host
      EXPECT_EQ(common_value(mine, kB), 2);
      expect_ok(give_value(mine, kA, 1));
      expect_ok(mine.end());
      // Expect: afterwards too, for any stream.
      const noria_stream other = mine.stream(mine.streams[1]);
      expect_ok(noria_grad_result(mine.reducer, kA, &other, 0, &place));
      EXPECT_EQ(place, mine.pointer(kA));
      EXPECT_EQ(common_value(mine, kA), 1);
    }
  });
}

TEST_P(DeviceReducer, A_result_is_not_waited_for_by_whoever_asked_for_an_earlier_one) {
  run_device_job(2, 4, small_model(), device_config(GetParam()), [](DeviceRank& mine) {
    mine.seal();
    mine.begin();
    for (const uint32_t id : {kD, kC}) expect_ok(give_value(mine, id, 4));
    const noria_stream to = mine.stream(mine.consumer);
    const void* place = nullptr;
    expect_ok(noria_grad_result(mine.reducer, kD, &to, 0, &place));
    // Arrange: a later bucket, of which somebody has asked for the result, stands still.
    standin::hold(mine.streams[1]);
    put(mine, kB, 2, mine.streams[1]);
    expect_ok(mine.ready(kB, mine.streams[1]));
    const noria_stream other = mine.stream(mine.on.stream());
    expect_ok(noria_grad_result(mine.reducer, kB, &other, 5'000, &place));
    // Expect: the host gets what was there before.
    expect_ok(noria_grad_result(mine.reducer, kD, nullptr, 5'000, &place));
    standin::release(mine.streams[1]);
    expect_ok(give_value(mine, kA, 1));
    expect_ok(mine.end());
  });
}

TEST_P(DeviceReducer, A_step_that_is_ended_again_shows_its_results_to_whoever_asks) {
  run_device_job(2, 4, small_model(), device_config(GetParam()), [](DeviceRank& mine) {
    mine.seal();
    mine.begin();
    mine.give_all(0, 1);
    expect_ok(mine.end());
    expect_ok(noria_step_end(mine.reducer, nullptr, nullptr));
    // Expect: the host, which waited, may look.
    for (const uint32_t id : {kA, kB, kC, kD})
      standin::host_reads("a look at a result", {mine.address(id), mine.bytes(id)});
  });
}

TEST(DeviceReducerCopies, Gradients_may_lie_elsewhere_in_each_step) {
  run_device_job(2, 8, small_model(), device_config(false), [](DeviceRank& mine) {
    mine.seal();
    for (uint64_t step = 0; step < 4; ++step) {
      if (step != 2)
        for (const uint32_t id : {kA, kC}) mine.move(id);
      mine.run_good_step(step, step);
    }
  });
}

// ---- tensors that do not come -------------------------------------------------------------------

TEST_P(DeviceReducer, With_zero_what_did_not_come_counts_as_zeros) {
  noria_reducer_config config = device_config(GetParam());
  config.unused = NORIA_UNUSED_ZERO;
  for (uint64_t seed = 1; seed <= 3; ++seed)
    run_device_job(2, seed, small_model(), config, [](DeviceRank& mine) {
      mine.seal();
      for (uint64_t step = 0; step < 3; ++step) {
        mine.begin();
        if (step == 1) expect_ok(give_value(mine, kB, 8));
        if (mine.rank == 0) expect_ok(give_value(mine, kC, 6));
        if (mine.rank == 1 && step == 2) {
          const uint32_t unused[] = {kC, kD};
          expect_ok(noria_grad_unused(mine.reducer, unused, 2));
        }
        expect_ok(mine.end());
        // In copy mode what a rank did not give has no place in its memory.
        if (mine.rank == 0 || mine.config.arena == 1) {
          EXPECT_EQ(common_value(mine, kC), 3);
        }
        if (step == 1) {
          EXPECT_EQ(common_value(mine, kB), 8);
        }
        if (mine.config.arena == 1) {
          EXPECT_EQ(common_value(mine, kA), 0);
        }
        const void* place = nullptr;
        const noria_status status = noria_grad_result(mine.reducer, kA, nullptr, 0, &place);
        if (mine.config.arena == 1) expect_ok(status);
        if (mine.config.arena == 0) expect_failure(status, NORIA_E_UNSUPPORTED, "'a'");
      }
    });
}

TEST_P(DeviceReducer, A_rank_without_inputs_joins_with_zeros) {
  run_device_job(2, 9, small_model(), device_config(GetParam()), [](DeviceRank& mine) {
    mine.seal();
    const noria_stream to = mine.stream(mine.consumer);
    uint32_t all_joined = 0;
    if (mine.rank == 0) {
      mine.begin();
      for (const uint32_t id : {kA, kB, kC, kD}) expect_ok(give_value(mine, id, 6));
      expect_ok(mine.end());
      for (const uint32_t id : {kA, kB, kC, kD}) EXPECT_EQ(common_value(mine, id), 3);
    } else {
      expect_ok(noria_step_join(mine.reducer, &to, nullptr, &all_joined));
      EXPECT_EQ(all_joined, 0U);
      if (mine.config.arena == 1) {
        EXPECT_EQ(common_value(mine, kA), 3);
      }
    }
    expect_ok(noria_step_join(mine.reducer, &to, nullptr, &all_joined));
    EXPECT_EQ(all_joined, 1U);
  });
}

// ---- several passes -----------------------------------------------------------------------------

TEST_P(DeviceReducer, Passes_that_accumulate_are_sent_with_the_last) {
  noria_reducer_config config = device_config(GetParam());
  for (uint64_t seed = 1; seed <= 3; ++seed)
    run_device_job(2, seed, small_model(), config, [](DeviceRank& mine) {
      mine.seal();
      for (uint64_t step = 0; step < 2; ++step) {
        mine.begin(NORIA_STEP_ACCUMULATE);
        for (const uint32_t id : {kA, kB, kC, kD}) expect_ok(give_value(mine, id, 1));
        expect_ok(mine.end());
        mine.begin();
        // B comes on another stream, in whose order the framework adds; A does not come again.
        mine.on.order(mine.streams[0], mine.streams[1]);
        put(mine, kB, 5, mine.streams[1]);
        expect_ok(mine.ready(kB, mine.streams[1]));
        for (const uint32_t id : {kC, kD}) expect_ok(give_value(mine, id, 3));
        expect_ok(mine.end());
        EXPECT_EQ(common_value(mine, kA), 1);
        EXPECT_EQ(common_value(mine, kB), 5);
        EXPECT_EQ(common_value(mine, kC), 3);
      }
    });
}

TEST_P(DeviceReducer, A_static_graph_is_learned_in_the_first_pass) {
  noria_reducer_config config = device_config(GetParam());
  config.static_graph = 1;
  config.unused = NORIA_UNUSED_ZERO;
  run_device_job(2, 12, small_model(), config, [](DeviceRank& mine) {
    mine.seal();
    for (uint64_t step = 0; step < 3; ++step) {
      mine.begin();
      expect_ok(give_value(mine, kD, 1));
      expect_ok(give_value(mine, kC, 2));
      expect_ok(give_value(mine, kC, 3));  // a weight that is used twice; B never is
      expect_ok(give_value(mine, kA, 4));
      expect_ok(mine.end());
      EXPECT_EQ(common_value(mine, kD), 1);
      EXPECT_EQ(common_value(mine, kC), 3);
      EXPECT_EQ(common_value(mine, kA), 4);
      if (mine.config.arena == 1) {
        EXPECT_EQ(common_value(mine, kB), 0);
      }
    }
  });
}

TEST_P(DeviceReducer, After_the_first_step_buckets_go_in_the_order_of_arrival) {
  noria_reducer_config config = device_config(GetParam());
  config.order = NORIA_ORDER_ARRIVAL;
  run_device_job(2, 6, awkward_model({NORIA_FLOAT32}), config, [](DeviceRank& mine) {
    mine.seal();
    for (uint64_t step = 0; step < 4; ++step) mine.run_good_step(step, 3);
    noria_step_report report = NORIA_STEP_REPORT_INIT;
    mine.begin();
    mine.give_all(4, 3);
    expect_ok(mine.end(&report));
    EXPECT_EQ(report.plan_version, 1U);
    mine.expect_results(4);
  });
}

TEST_P(DeviceReducer, Two_reducers_whose_steps_are_open_at_once_are_sent_one_after_the_other) {
  for (uint64_t seed = 1; seed <= 4; ++seed)
    run_device_job(2, seed, small_model(), device_config(GetParam()), [](DeviceRank& mine) {
      noria_reducer* second = nullptr;
      expect_ok(noria_reducer_create(mine.comm, &mine.config, &second));
      noria_tensor_desc tensor = NORIA_TENSOR_DESC_INIT;
      tensor.name = "other";
      tensor.numel = 5'000;
      uint32_t other = 0;
      expect_ok(noria_reducer_add(second, &tensor, &other));
      mine.seal();
      expect_ok(noria_reducer_seal(second));
      void* place = nullptr;
      uint64_t bytes = 0;
      if (mine.config.arena == 1) expect_ok(noria_reducer_view(second, other, &place, &bytes));
      if (mine.config.arena == 0) place = reinterpret_cast<void*>(mine.on.memory<float>(5'000));
      const auto address = reinterpret_cast<uint64_t>(place);
      const noria_stream from = mine.stream(mine.streams[0]), to = mine.stream(mine.consumer);
      for (uint64_t step = 0; step < 2; ++step) {
        mine.begin();
        expect_ok(noria_step_begin(second, 0));
        // The ranks give in different order: NCCL sees one order all the same.
        const auto give_other = [&] {
          mine.on.write(mine.streams[0], address, std::vector<float>(5'000, 2));
          expect_ok(noria_grad_ready(second, other, place, &from));
        };
        if (mine.rank == 0) give_other();
        mine.give_all(step, step);
        if (mine.rank == 1) give_other();
        expect_ok(mine.end());
        // Expect: its turn has come, though nothing more is given.
        const void* result = nullptr;
        if (step == 1) expect_ok(noria_grad_result(second, other, &to, 3'000, &result));
        expect_ok(noria_step_end(second, &to, nullptr));
        mine.expect_results(step);
        EXPECT_EQ(mine.on.read<float>(mine.consumer, address, 1)[0], 2);
      }
      noria_reducer_destroy(second);
    });
}

TEST_P(DeviceReducer, A_planned_reducer_measures_the_link_and_plans_after_the_first_step) {
  noria_reducer_config config = device_config(GetParam());
  config.plan = NORIA_PLAN_PLANNED;
  run_device_job(2, 6, awkward_model({NORIA_FLOAT32}), config, [](DeviceRank& mine) {
    mine.seal();
    noria_step_report report = NORIA_STEP_REPORT_INIT;
    for (uint64_t step = 0; step < 3; ++step) {
      mine.begin();
      mine.give_all(step, 3);
      expect_ok(mine.end(&report));
      mine.expect_results(step);
    }
    EXPECT_EQ(report.plan_version, 1U);
  });
}

// ---- shards -------------------------------------------------------------------------------------

void expect_shards(DeviceRank& mine, uint64_t step) {
  for (const noria_shard_range& range : shard_ranges(mine.reducer)) {
    const uint64_t bytes = range.count * bucketing::dtype_bytes(range.dtype);
    const auto place = reinterpret_cast<uint64_t>(range.gradient);
    const Bytes seen = mine.on.read<char>(mine.consumer, place, bytes);
    EXPECT_EQ(cuStreamSynchronize(mine.consumer), 0);
    const Tensor& tensor = mine.model[range.tensor];
    for (uint64_t i = 0; i < range.count; ++i) {
      double sum = 0;
      for (int32_t rank = 0; rank < mine.ranks; ++rank)
        sum += gradient_value(rank, step, tensor, range.first + i);
      const double bound = 16 * epsilon_of(tensor.dtype);
      ASSERT_NEAR(element(range.dtype, seen.data(), i), sum / mine.ranks, bound) << tensor.name;
    }
  }
}

TEST_P(DeviceReducer, Each_rank_keeps_its_shards) {
  for (const int32_t ranks : {1, 2, 3})
    for (const noria_dtype wire : std::vector<noria_dtype>{0, NORIA_BFLOAT16}) {
      noria_reducer_config config = device_config(GetParam());
      config.shard = NORIA_SHARD_REDUCE_SCATTER;
      config.average = ranks == 3 ? NORIA_AVERAGE_SPLIT_SQRT : NORIA_AVERAGE_POST;
      config.wire_dtype = wire;
      const auto model = wire == 0 ? awkward_model(kFloats) : small_model();
      run_device_job(ranks, 5, model, config, [&](DeviceRank& mine) {
        mine.seal();
        for (uint64_t step = 0; step < 3; ++step) {
          mine.begin();
          mine.give_all(step, step);
          expect_ok(mine.end());
          if (wire == 0) expect_shards(mine, step);
          if (mine.config.arena == 1) continue;
          // Expect: gradients of the caller's own stay as they were.
          for (uint32_t id = 0; id < mine.model.size(); ++id)
            EXPECT_EQ(mine.result(id), gradient(mine.rank, step, mine.model[id]));
        }
      });
    }
}

// The gradients of shards, by the tensor and its element with which each begins.
std::map<std::pair<uint32_t, uint64_t>, void*> places_of_shards(noria_reducer* reducer) {
  std::map<std::pair<uint32_t, uint64_t>, void*> places;
  for (const noria_shard_range& range : shard_ranges(reducer))
    places[{range.tensor, range.first}] = range.gradient;
  return places;
}

TEST_P(DeviceReducer, Shards_stay_where_they_are_when_buckets_are_sent_as_they_came) {
  noria_reducer_config config = device_config(GetParam());
  config.shard = NORIA_SHARD_REDUCE_SCATTER;
  config.order = NORIA_ORDER_ARRIVAL;
  run_device_job(2, 5, awkward_model({NORIA_FLOAT32}), config, [&](DeviceRank& mine) {
    mine.seal();
    const auto places = places_of_shards(mine.reducer);
    noria_step_report report = NORIA_STEP_REPORT_INIT;
    for (uint64_t step = 0; step < 3; ++step) {
      mine.begin();
      mine.give_all(step, 4);
      expect_ok(mine.end(&report));
      expect_shards(mine, step);
      EXPECT_EQ(places_of_shards(mine.reducer), places);
    }
    EXPECT_EQ(report.plan_version, 1U);
  });
}

TEST_P(DeviceReducer, A_ranks_part_of_a_tensor_is_told_in_the_step_and_after_it) {
  noria_reducer_config config = device_config(GetParam());
  config.shard = NORIA_SHARD_REDUCE_SCATTER;
  config.unused = NORIA_UNUSED_KEEP;
  run_device_job(2, 5, awkward_model({NORIA_FLOAT32}), config, [&](DeviceRank& mine) {
    mine.seal();
    std::map<uint32_t, void*> firsts;
    for (const noria_shard_range& range : shard_ranges(mine.reducer))
      firsts.emplace(range.tensor, range.gradient);
    const auto expect_places = [&] {
      for (uint32_t id = 0; id < mine.model.size(); ++id) {
        const void* result = &result;
        expect_ok(noria_grad_result(mine.reducer, id, nullptr, 0, &result));
        EXPECT_EQ(result, firsts.count(id) != 0 ? firsts[id] : nullptr) << id;
      }
    };
    mine.begin();
    mine.give_all(0, 4);
    expect_places();
    expect_ok(mine.end());
    expect_places();
    expect_shards(mine, 0);
    // Expect: what nobody gave has no result.
    mine.begin();
    expect_ok(mine.end());
    firsts.clear();
    expect_places();
  });
}

TEST_P(DeviceReducer, Parameters_that_are_laid_out_as_gradients_are_gathered) {
  noria_reducer_config config = device_config(GetParam());
  config.shard = NORIA_SHARD_REDUCE_SCATTER;
  for (const noria_dtype dtype : {NORIA_FLOAT32, NORIA_BFLOAT16})
    run_device_job(3, 9, small_model(), config, [&](DeviceRank& mine) {
      mine.seal();
      uint64_t offset = 0, total = 0;
      expect_ok(noria_reducer_layout(mine.reducer, kA, &offset, &total));
      const uint64_t element_bytes = bucketing::dtype_bytes(dtype);
      const uint64_t bytes = total / sizeof(float) * element_bytes;
      const uint64_t memory = mine.on.memory<char>(bytes);
      mine.on.write(mine.streams[0], memory, Bytes(bytes, 0x40));
      for (const noria_shard_range& range : shard_ranges(mine.reducer))
        mine.on.write(mine.streams[0], memory + range.offset / sizeof(float) * element_bytes,
                      Bytes(range.count * element_bytes, static_cast<char>(mine.rank + 1)));
      EXPECT_EQ(cuStreamSynchronize(mine.streams[0]), 0);
      auto* const place = reinterpret_cast<void*>(memory);
      expect_ok(dtype == NORIA_FLOAT32
                    ? noria_reducer_all_gather(mine.reducer, place, bytes)
                    : noria_reducer_all_gather_as(mine.reducer, place, bytes, dtype));
      // Expect: of each tensor every byte is some rank's, and all ranks have the same.
      const Bytes seen = mine.on.read<char>(mine.consumer, memory, bytes);
      EXPECT_EQ(cuStreamSynchronize(mine.consumer), 0);
      for (uint32_t id = 0; id < mine.model.size(); ++id) {
        expect_ok(noria_reducer_layout(mine.reducer, id, &offset, &total));
        const uint64_t first = offset / sizeof(float) * element_bytes;
        for (uint64_t i = 0; i < mine.model[id].numel * element_bytes; ++i) {
          ASSERT_GE(seen[first + i], 1);
          ASSERT_LE(seen[first + i], 3);
        }
      }
      std::vector<float> of_host(total / sizeof(float));
      expect_failure(noria_reducer_all_gather(mine.reducer, of_host.data(), total), NORIA_E_ARG,
                     "memory");
    });
}

}  // namespace
}  // namespace noria::test
