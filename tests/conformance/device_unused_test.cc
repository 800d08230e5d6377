// Tensors that a step of a device leaves out, with the policy KEEP: what no rank used stays as it
// was, in memory of the caller's own and in views, whose streams must not notice.
#include <gtest/gtest.h>

#include <string>

#include "tests/support/device_rank.hpp"

namespace noria::test {
namespace {

noria_reducer_config keep_config(bool arena) {
  noria_reducer_config config = device_config(arena);
  config.unused = NORIA_UNUSED_KEEP;
  return config;
}

TEST(DeviceUnusedCopies, C23_With_keep_a_tensor_that_no_rank_used_stays_as_it_was) {
  run_device_job(3, 2, small_model(), keep_config(false), [](DeviceRank& mine) {
    mine.seal();
    for (uint64_t step = 0; step < 2; ++step) {
      mine.begin();
      for (const uint32_t id : {kA, kB, kC, kD}) put(mine, id, 7, mine.streams[0]);
      expect_ok(give_value(mine, kD, 3));
      if (mine.rank == 1) expect_ok(give_value(mine, kC, 6));
      expect_ok(give_value(mine, kA, 9));
      expect_ok(mine.end());
      mine.on.order(mine.streams[0], mine.consumer);  // of B nobody else says when it was written
      EXPECT_EQ(common_value(mine, kA), 9);
      EXPECT_EQ(common_value(mine, kB), 7);
      if (mine.rank == 1) {
        EXPECT_EQ(common_value(mine, kC), 2);
      }
      const void* place = &place;
      expect_ok(noria_grad_result(mine.reducer, kB, nullptr, 0, &place));
      EXPECT_EQ(place, nullptr);
    }
  });
}

// ---- views --------------------------------------------------------------------------------------

void expect_no_result(const DeviceRank& mine, uint32_t id) {
  const void* place = &place;
  expect_ok(noria_grad_result(mine.reducer, id, nullptr, 0, &place));
  EXPECT_EQ(place, nullptr);
}

// The first one, from which on the consumer is known for one.
void run_step_with_all(DeviceRank& mine) {
  mine.begin();
  for (const uint32_t id : {kA, kB, kC, kD}) expect_ok(give_value(mine, id, 4));
  expect_ok(mine.end());
  for (const uint32_t id : {kA, kB, kC, kD}) EXPECT_EQ(common_value(mine, id), 4);
}

// A step to which all give A and D, the last rank C, and nobody B, whose view holds `kept`.
void run_step_without_b(DeviceRank& mine, float kept, bool is_declared, bool is_host_consumer) {
  put(mine, kB, kept, mine.consumer);
  put(mine, kC, 5, mine.consumer);
  mine.begin();
  const uint32_t unused = kB;
  if (is_declared) expect_ok(noria_grad_unused(mine.reducer, &unused, 1));
  for (const uint32_t id : {kD, kA}) expect_ok(give_value(mine, id, 9));
  if (mine.rank == mine.ranks - 1)
    expect_ok(give_value(mine, kC, 6 * static_cast<float>(mine.ranks)));
  expect_ok(is_host_consumer ? noria_step_end(mine.reducer, nullptr, nullptr) : mine.end());
  EXPECT_EQ(common_value(mine, kB), kept);
  EXPECT_EQ(common_value(mine, kC), 6);
  for (const uint32_t id : {kA, kD}) EXPECT_EQ(common_value(mine, id), 9);
  expect_no_result(mine, kB);
}

TEST(DeviceUnusedViews, C23_With_keep_a_view_that_no_rank_used_stays_as_it_was) {
  for (const noria_dtype wire : std::vector<noria_dtype>{0, NORIA_BFLOAT16})
    for (const int32_t ranks : {1, 3})
      for (uint64_t seed = 1; seed <= 3; ++seed) {
        noria_reducer_config config = keep_config(true);
        config.wire_dtype = wire;
        run_device_job(ranks, seed, small_model(), config, [](DeviceRank& mine) {
          mine.seal();
          run_step_with_all(mine);
          // Each rank has its own, which no value that travels could stand for.
          const float own = 7.00001F + static_cast<float>(mine.rank);
          run_step_without_b(mine, own, false, false);
          const auto memory = [&] {
            return standin::calls("cuMemAlloc", mine.rank) +
                   standin::calls("cuMemAllocAsync", mine.rank);
          };
          const uint64_t made = memory();
          run_step_without_b(mine, own + 1, true, false);
          run_step_without_b(mine, own + 2, true, true);
          // Expect: once there, the memory serves every step.
          EXPECT_EQ(memory(), made);
          // Expect: what one rank uses is everybody's.
          mine.begin();
          if (mine.rank == 0) expect_ok(give_value(mine, kB, 2 * static_cast<float>(mine.ranks)));
          expect_ok(mine.end());
          EXPECT_EQ(common_value(mine, kB), 2);
          EXPECT_EQ(common_value(mine, kA), 9);
          expect_no_result(mine, kA);
        });
      }
}

TEST(DeviceUnusedViews, What_a_static_graph_never_uses_stays_as_it_was) {
  noria_reducer_config config = keep_config(true);
  config.static_graph = 1;
  run_device_job(2, 2, small_model(), config, [](DeviceRank& mine) {
    mine.seal();
    for (uint64_t step = 0; step < 3; ++step) {
      const auto kept = static_cast<float>(step);
      if (step > 0) put(mine, kB, kept, mine.consumer);
      mine.begin();
      for (const uint32_t id : {kA, kC, kD}) expect_ok(give_value(mine, id, 9));
      expect_ok(mine.end());
      EXPECT_EQ(common_value(mine, kB), kept);
      EXPECT_EQ(common_value(mine, kC), 9);
    }
  });
}

TEST(DeviceUnusedViews, What_a_failed_step_saved_is_nothing_to_the_next) {
  run_device_job(2, 4, small_model(), keep_config(true), [](DeviceRank& mine) {
    mine.seal();
    mine.begin();
    expect_ok(give_value(mine, kA, 1));
    if (mine.rank == 0) {
      expect_failure(mine.ready(kA, mine.streams[0]), NORIA_E_DUP_READY, "'a'");
    }
    expect_failure(mine.end(), NORIA_E_DUP_READY, "'a'");
    expect_ok(noria_reducer_reset(mine.reducer));
    run_step_with_all(mine);
  });
}

TEST(DeviceUnusedViews, Without_memory_pools_the_memory_is_allocated_as_all_other) {
  run_device_job(2, 4, small_model(), keep_config(true), [](DeviceRank& mine) {
    mine.seal();
    const uint64_t made = standin::calls("cuMemAlloc", mine.rank);
    // A question that is skipped leaves the answer at 0.
    standin::skip_call("cuDeviceGetAttribute", mine.rank, 1);
    mine.begin();
    for (const uint32_t id : {kA, kC, kD}) expect_ok(give_value(mine, id, 4));
    expect_ok(mine.end());
    EXPECT_EQ(common_value(mine, kB), 0);
    EXPECT_EQ(standin::calls("cuMemAlloc", mine.rank), made + 1);
    EXPECT_EQ(standin::calls("cuMemAllocAsync", mine.rank), 0U);
  });
}

// ---- streams ------------------------------------------------------------------------------------

struct Played {
  std::vector<std::string> found;  // by the checker
  uint64_t waits = 0;              // that rank 0's step told its device
};

// A step to which nobody gives B, whose view the consumer writes before it and reads behind it.
// `sabotage` takes something of libnoria's away.
Played play(uint64_t seed, const std::function<void(DeviceRank&)>& sabotage) {
  standin::reset(seed);
  const noria_unique_id id = make_job_id();
  Played played;
  run_rank_threads(2, [&](int32_t rank) {
    DeviceRank mine(id, rank, 2, small_model(), keep_config(true));
    mine.seal();
    run_step_with_all(mine);
    put(mine, kB, 7, mine.consumer);
    sabotage(mine);
    const uint64_t before = standin::calls("cuStreamWaitEvent", 0);
    mine.begin();
    // First, as behind the others' gradients it would be behind the consumer too.
    const uint32_t unused = kB;
    expect_ok(noria_grad_unused(mine.reducer, &unused, 1));
    for (const uint32_t given : {kD, kC, kA}) expect_ok(give_value(mine, given, 9));
    expect_ok(mine.end());
    if (rank == 0) played.waits = standin::calls("cuStreamWaitEvent", 0) - before;
    standin::launch(mine.consumer, "optimizer", {{mine.address(kB), mine.bytes(kB)}}, {}, {});
    EXPECT_EQ(cuStreamSynchronize(mine.consumer), 0);  // the arena goes with the reducer
  });
  played.found = standin::violations();
  return played;
}

TEST(DeviceUnusedViews, C23_What_is_kept_is_in_order_with_who_wrote_it_and_who_reads_it) {
  uint64_t waits = 0;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    const Played whole = play(seed, [](const DeviceRank&) {});
    EXPECT_EQ(whole.found, std::vector<std::string>());
    waits = whole.waits;
  }
  const auto no_waits = [](const DeviceRank& mine) { standin::drop_waits(mine.consumer); };
  const auto no_records = [](const DeviceRank& mine) { standin::drop_records(mine.consumer); };
  // Expect: the consumer's wait for what is put back is missed, and that its writes are waited for.
  EXPECT_FALSE(play(1, no_waits).found.empty());
  EXPECT_FALSE(play(2, no_records).found.empty());
  // Expect: so is each single wait, but NCCL's for B's bucket, whose zeros came before those that
  // it has waited for already; and the consumer's first one for the results, as it waits again for
  // what was put back behind them.
  std::vector<uint64_t> unmissed;
  for (uint64_t nth = 1; nth <= waits; ++nth) {
    const Played without = play(nth, [nth](const DeviceRank& mine) {
      if (mine.rank == 0) standin::skip_call("cuStreamWaitEvent", 0, nth);
    });
    if (without.found.empty()) unmissed.push_back(nth);
  }
  EXPECT_EQ(unmissed.size(), 2U) << testing::PrintToString(unmissed) << " of " << waits;
}

}  // namespace
}  // namespace noria::test
