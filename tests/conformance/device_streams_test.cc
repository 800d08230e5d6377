// Rows C03 to C13 of the conformance list: streams and lifetimes on a device, through the C API.
//
// Each row is played over the stand-in for CUDA with several seeds, and again with something of
// libnoria's taken away: the waits of a stream, or the records in it. Then the checker must find
// what is out of order now, or the row would show nothing. What is taken away, row by row:
//
//   | row | taken away                                                      |
//   |-----|-----------------------------------------------------------------|
//   | C03 | the consumer's wait for the results                             |
//   | C04 | records in one of the producers' streams                        |
//   | C05 | waits of libnoria's own streams                                 |
//   | C07 | the consumer's wait, and then the memory is freed; that destroy |
//   |     | waits for what a step told the device                           |
//   | C10 | waits of libnoria's own streams, with one slot for all buckets  |
//   | C11 | the consumer's wait, and then results are copied to the host    |
//   | C12 | that seal waits for what it told the device, which is to zero   |
//   |     | the arena; of copies, that a new plan waits before slots go     |
//   | C13 | records in the stream that was given with a call                |
//
// Three rows ask that something is not done, so that there is nothing to take away, and the test
// makes it show instead. C06: libnoria names no default stream; both are held, and a step that
// needed one would not end. C08: producers wait for no reduction; libnoria's streams are held, and
// who waited for one would not go on. C09: results do not depend on how buckets are cut; they are
// compared bit by bit.
#include <gtest/gtest.h>

#include <functional>
#include <mutex>
#include <string>

#include "tests/support/device_rank.hpp"

namespace noria::test {
namespace {

using Found = std::vector<std::string>;

constexpr uint64_t kSteps = 3;
constexpr uint64_t kSeeds = 6;

std::vector<Tensor> model_of(size_t tensors) {
  std::vector<Tensor> model;
  for (size_t i = 0; i < tensors; ++i)
    model.push_back({"layer" + std::to_string(i), NORIA_FLOAT32, 700 + 1100 * (i % 4)});
  return model;
}

// So small that each bucket has a few tensors.
noria_reducer_config many_buckets(bool arena) {
  noria_reducer_config config = device_config(arena);
  config.bucket_bytes = 16 * 1024;
  return config;
}

struct Job {
  noria_reducer_config config = many_buckets(false);
  uint64_t seed = 1;
  std::vector<Tensor> model = model_of(12);
  unsigned producers = 3;
};

// What the checker found when two ranks did `body`.
Found play(const Job& job, const std::function<void(DeviceRank&)>& body) {
  standin::reset(job.seed);
  const noria_unique_id id = make_job_id();
  run_rank_threads(2, [&](int32_t rank) {
    DeviceRank mine(id, rank, 2, job.model, job.config, job.producers);
    body(mine);
  });
  return standin::violations();
}

using Sabotage = std::function<void(const DeviceRank&)>;

void nothing(const DeviceRank&) {}
void no_waits_of_consumer(const DeviceRank& mine) { standin::drop_waits(mine.consumer); }
void no_records_of_producer(const DeviceRank& mine) { standin::drop_records(mine.streams[1]); }
// Of its thread the first question whether the device is through is not asked: it is.
void no_look_at_the_device(const DeviceRank&) { standin::skip_call("cuEventQuery", 1); }
void no_waits_of_ours(const DeviceRank& mine) {
  for (void* const stream : standin::urgent_streams(mine.rank)) standin::drop_waits(stream);
}

// A kernel on the consumer that reads all results, as an optimizer's; results are not looked at.
void optimize(const DeviceRank& mine) {
  std::vector<standin::Range> results;
  for (uint32_t id = 0; id < mine.model.size(); ++id)
    results.push_back({mine.address(id), mine.bytes(id)});
  standin::launch(mine.consumer, "optimizer", results, {}, nullptr);
}

// Steps whose results are read on the consumer; and, where nothing is broken, looked at.
void train(DeviceRank& mine, uint64_t seed, bool is_broken) {
  for (uint64_t step = 0; step < kSteps; ++step) {
    mine.begin();
    mine.give_all(step, seed + step, 2);
    expect_ok(mine.end());
    optimize(mine);
    if (!is_broken) mine.expect_results(step);
  }
  EXPECT_EQ(cuStreamSynchronize(mine.consumer), 0);  // the arena goes with the reducer
}

class DeviceStreams : public testing::TestWithParam<bool> {  // arena
 protected:
  // `body` finds its way whole, for each seed, and is found out with each of `sabotages`. It is
  // told whether something is broken.
  void expect_needed(const std::vector<Sabotage>& sabotages,
                     const std::function<void(DeviceRank&, uint64_t seed, bool is_broken)>& body,
                     Job job = {}) const {
    job.config.arena = GetParam() ? 1 : 0;
    for (job.seed = 1; job.seed <= kSeeds; ++job.seed) {
      SCOPED_TRACE("seed " + std::to_string(job.seed));
      EXPECT_EQ(play(job,
                     [&](DeviceRank& mine) {
                       mine.seal();
                       body(mine, job.seed, false);
                     }),
                Found());
    }
    for (size_t i = 0; i < sabotages.size(); ++i) {
      job.seed = 1 + i;
      const Found found = play(job, [&](DeviceRank& mine) {
        mine.seal();
        sabotages[i](mine);
        body(mine, job.seed, true);
      });
      // Expect: what was taken away is missed.
      EXPECT_FALSE(found.empty()) << "sabotage " << i;
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Modes, DeviceStreams, testing::Values(true, false),
                         [](const auto& mode) { return mode.param ? "Arena" : "Copy"; });

TEST_P(DeviceStreams, C03_Results_are_there_for_the_stream_that_step_end_was_given) {
  expect_needed({no_waits_of_consumer}, train);
}

TEST_P(DeviceStreams, C04_All_streams_that_wrote_a_bucket_are_waited_for) {
  Job job;
  job.producers = 6;
  expect_needed(
      {no_records_of_producer},
      [](DeviceRank& mine, uint64_t seed, bool is_broken) {
        for (size_t i = seed % 2; i < mine.streams.size(); i += 2)
          standin::make_slow(mine.streams[i]);
        train(mine, seed, is_broken);
      },
      job);
}

TEST_P(DeviceStreams, C05_Nothing_is_rewritten_while_a_slow_network_still_reads_it) {
  Job job;
  job.config.max_in_flight = 1;
  expect_needed(
      {no_waits_of_ours},
      [](DeviceRank& mine, uint64_t seed, bool is_broken) {
        for (void* const stream : standin::urgent_streams(mine.rank))
          if ((seed + reinterpret_cast<uintptr_t>(stream) / 16) % 2 == 0)
            standin::make_slow(stream);
        train(mine, seed, is_broken);
      },
      job);
}

TEST_P(DeviceStreams, C06_The_default_stream_is_nobody_s) {
  expect_needed({}, [](DeviceRank& mine, uint64_t seed, bool) {
    // Arrange: a default stream that does not come on, and a thread with another device current.
    standin::hold(nullptr);
    standin::launch(nullptr, "something else", {}, {}, nullptr);
    const standin::OnDevice elsewhere(mine.rank + 2);
    standin::hold(nullptr);
    standin::launch(nullptr, "something else", {}, {}, nullptr);
    for (uint64_t step = 0; step < kSteps; ++step) {
      mine.begin();
      mine.give_all(step, seed + step, 2);
      expect_ok(mine.end());
      // Expect: results, while both still stand.
      mine.expect_results(step);
    }
    EXPECT_FALSE(standin::is_idle(nullptr));
    standin::release(nullptr);
    EXPECT_EQ(cuCtxPopCurrent_v2(nullptr), standin::kSuccess);
    EXPECT_FALSE(standin::is_idle(nullptr));
    standin::release(nullptr);
    EXPECT_EQ(cuCtxPushCurrent_v2(elsewhere.context()), standin::kSuccess);
  });
}

TEST(DeviceStreamsLifetimes, C07_Gradients_may_be_freed_once_the_consumer_has_come_past_the_step) {
  const auto run = [](uint64_t seed, const Sabotage& sabotage) {
    Job job;
    job.seed = seed;
    return play(job, [&](DeviceRank& mine) {
      mine.seal();
      sabotage(mine);
      for (uint64_t step = 0; step < kSteps; ++step) {
        mine.begin();
        std::vector<uint64_t> memory(mine.model.size());
        for (uint32_t id = 0; id < mine.model.size(); ++id) {
          ASSERT_EQ(cuMemAlloc_v2(&memory[id], mine.bytes(id)), standin::kSuccess);
          void* const producer = mine.streams[id % mine.streams.size()];
          standin::launch(producer, "gradient", {}, {{memory[id], mine.bytes(id)}}, nullptr);
          const noria_stream from = mine.stream(producer);
          expect_ok(noria_grad_ready(mine.reducer, id, reinterpret_cast<void*>(memory[id]), &from));
        }
        expect_ok(mine.end());
        ASSERT_EQ(cuStreamSynchronize(mine.consumer), standin::kSuccess);
        for (const uint64_t address : memory) ASSERT_EQ(cuMemFree_v2(address), standin::kSuccess);
      }
    });
  };
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) EXPECT_EQ(run(seed, nothing), Found()) << seed;
  EXPECT_FALSE(run(1, no_waits_of_consumer).empty());
}

TEST_P(DeviceStreams, C07_What_libnoria_owns_outlives_what_it_told_the_device) {
  expect_needed({no_look_at_the_device}, [](DeviceRank& mine, uint64_t seed, bool) {
    // Expect: the reducer is destroyed behind a step whose work is still queued.
    for (void* const stream : standin::urgent_streams(mine.rank)) standin::make_slow(stream);
    mine.begin();
    mine.give_all(0, seed);
    expect_ok(mine.end());
  });
}

TEST_P(DeviceStreams, C08_No_producer_and_no_call_waits_for_a_reduction) {
  expect_needed({}, [](DeviceRank& mine, uint64_t seed, bool) {
    for (uint64_t step = 0; step < kSteps; ++step) {
      mine.begin();
      const std::vector<void*> ours = standin::urgent_streams(mine.rank);
      for (void* const stream : ours) standin::hold(stream);
      mine.give_all(step, seed + step, 2);
      expect_ok(mine.end());
      // Expect: the calls are back and the producers through, while no bucket has been packed.
      standin::finish();
      for (void* const producer : mine.streams) EXPECT_TRUE(standin::is_idle(producer));
      EXPECT_FALSE(standin::is_idle(mine.consumer));
      for (void* const stream : ours) standin::release(stream);
      mine.expect_results(step);
    }
  });
}

TEST_P(DeviceStreams, C09_Results_are_bitwise_the_same_whatever_the_buckets) {
  std::vector<Bytes> first;
  for (const uint64_t bucket_bytes : {4096, 16 * 1024, 1 << 20}) {
    Job job;
    job.config = many_buckets(GetParam());
    job.config.bucket_bytes = bucket_bytes;
    job.config.max_in_flight = bucket_bytes == 4096 ? 3 : 0;
    job.seed = bucket_bytes + 1;
    std::vector<Bytes> results;
    EXPECT_EQ(play(job,
                   [&](DeviceRank& mine) {
                     mine.seal();
                     mine.run_good_step(0, bucket_bytes);
                     for (uint32_t id = 0; id < mine.model.size() && mine.rank == 0; ++id)
                       results.push_back(mine.result(id));
                   }),
              Found());
    if (first.empty()) first = results;
    EXPECT_EQ(results, first) << bucket_bytes;
  }
}

TEST_P(DeviceStreams, C10_A_slot_belongs_to_one_bucket_at_a_time_and_memory_does_not_grow) {
  Job job;
  job.config.max_in_flight = 1;
  expect_needed(
      {no_waits_of_ours},
      [](DeviceRank& mine, uint64_t seed, bool is_broken) {
        train(mine, seed, is_broken);
        const uint64_t made = standin::calls("cuMemAlloc");
        const uint64_t events = standin::calls("cuEventCreate");
        train(mine, seed + 1, is_broken);
        // Expect: the second three steps needed nothing more.
        EXPECT_EQ(standin::calls("cuMemAlloc"), made);
        EXPECT_EQ(standin::calls("cuEventCreate"), events);
      },
      job);
}

TEST_P(DeviceStreams, C11_Results_may_go_on_to_the_host_on_a_third_stream) {
  expect_needed({no_waits_of_consumer}, [](DeviceRank& mine, uint64_t seed, bool is_broken) {
    void* const offload = mine.on.stream();
    for (uint64_t step = 0; step < kSteps; ++step) {
      mine.begin();
      mine.give_all(step, seed + step);
      expect_ok(mine.end());
      mine.on.order(mine.consumer, offload);
      for (uint32_t id = 0; id < mine.model.size(); ++id) {
        const Bytes seen = mine.on.read<char>(offload, mine.address(id), mine.bytes(id));
        if (!is_broken) expect_reduced(seen.data(), mine.model[id], step, 2, NORIA_AVG);
      }
      mine.on.order(offload, mine.consumer);  // whose next gradients lie there
    }
  });
}

TEST_P(DeviceStreams, C12_Memory_may_be_used_on_any_stream_as_soon_as_it_is_there) {
  enum class Broken { nothing, seal, plan };
  const auto run = [](uint64_t seed, Broken broken) {
    Job job;
    job.config = many_buckets(GetParam());
    job.config.order = NORIA_ORDER_ARRIVAL;
    job.seed = seed;
    return play(job, [&](DeviceRank& mine) {
      if (broken == Broken::seal) no_look_at_the_device(mine);
      mine.seal();
      // The end of the first step brings another plan.
      noria_step_report report = NORIA_STEP_REPORT_INIT;
      for (uint64_t step = 0; step < 2; ++step) {
        mine.begin();
        mine.give_all(step, seed, 2);
        if (step == 0 && broken == Broken::plan) no_look_at_the_device(mine);
        expect_ok(mine.end(&report));
        optimize(mine);
      }
      EXPECT_EQ(report.plan_version, 1U);
      train(mine, seed, broken != Broken::nothing);
    });
  };
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) EXPECT_EQ(run(seed, Broken::nothing), Found());
  EXPECT_FALSE(run(1, GetParam() ? Broken::seal : Broken::plan).empty());
}

TEST_P(DeviceStreams, C13_The_stream_of_a_gradient_is_the_one_of_the_call) {
  Job job;
  job.producers = 2;
  expect_needed(
      {no_records_of_producer},
      [](DeviceRank& mine, uint64_t, bool is_broken) {
        for (uint64_t step = 0; step < kSteps; ++step) {
          mine.begin();
          // The same tensor comes from another stream in each step, the other one being far behind.
          void* const writes = mine.streams[step % 2];
          standin::make_slow(writes);
          for (uint32_t id = 0; id < mine.model.size(); ++id)
            expect_ok(mine.give(id, step, writes));
          expect_ok(mine.end());
          optimize(mine);
          EXPECT_EQ(cuStreamSynchronize(mine.consumer), 0);
          if (!is_broken) mine.expect_results(step);
        }
      },
      job);
}

// Each single wait that a step of rank 0 tells its device, and each record, is skipped once. What
// may go without being missed: a wait for the last reduction where its unpacking has waited; and
// records for times and for the watch: one of the step and two of each bucket. In the arena nothing
// is unpacked, so that only the last of the reductions is waited for.
TEST_P(DeviceStreams, Each_single_wait_and_record_is_missed) {
  Job job;
  job.config = many_buckets(GetParam());
  job.config.max_in_flight = 1;
  job.model = model_of(6);
  job.producers = 2;
  uint64_t made = 0;
  uint64_t buckets = 0;
  const auto run = [&](const char* call, uint64_t skipped) {
    return play(job, [&](DeviceRank& mine) {
      mine.seal();
      mine.run_good_step(0, 1);
      const uint64_t before = standin::calls(call, 0);
      if (skipped != 0 && mine.rank == 0) standin::skip_call(call, 0, skipped);
      mine.begin();
      // In the order of the plan: each bucket is launched behind writes of its own.
      for (auto id = static_cast<uint32_t>(mine.model.size()); id-- > 0;)
        expect_ok(mine.give(id, 1, mine.streams[id % 2]));
      noria_step_report report = NORIA_STEP_REPORT_INIT;
      expect_ok(mine.end(&report));
      optimize(mine);
      EXPECT_EQ(cuStreamSynchronize(mine.consumer), 0);
      if (mine.rank != 0) return;
      made = standin::calls(call, 0) - before;
      buckets = report.buckets;
    });
  };
  for (const std::string call : {"cuStreamWaitEvent", "cuEventRecord"}) {
    EXPECT_EQ(run(call.c_str(), 0), Found());
    const uint64_t all = made;
    std::vector<uint64_t> unmissed;
    for (uint64_t nth = 1; nth <= all; ++nth)
      if (run(call.c_str(), nth).empty()) unmissed.push_back(nth);
    // Expect: more than one bucket, and of each more than one call.
    EXPECT_GE(buckets, 2U);
    EXPECT_GE(all, 2 * buckets);
    const uint64_t for_times = 1 + 2 * buckets + (GetParam() ? buckets - 1 : 0);
    EXPECT_LE(unmissed.size(), call == "cuStreamWaitEvent" ? 1 : for_times)
        << testing::PrintToString(unmissed) << " of " << all << " in " << buckets << " buckets";
  }
}

}  // namespace
}  // namespace noria::test
