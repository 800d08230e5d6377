// Ranks as processes with a GPU each, through the C API, on the stand-in: as a job is run.
#include <gtest/gtest.h>
#include <signal.h>

#include "tests/support/device_rank.hpp"

namespace noria::test {
namespace {

TEST(Gpu_processes, A_reducer_and_collectives_are_right_and_leave_in_order) {
  for (const bool arena : {true, false}) {
    const noria_unique_id id = make_job_id();
    run_ranks(2, [&](int32_t rank, Wire&) {
      standin::reset(static_cast<uint64_t>(rank) + 4);  // each its own order of things
      {
        DeviceRank mine(id, rank, 2, small_model(), device_config(arena));
        mine.seal();
        for (uint64_t step = 0; step < 4; ++step) mine.run_good_step(step, step, 2);
        EXPECT_EQ(cuStreamSynchronize(mine.consumer), standin::kSuccess);
      }
      EXPECT_EQ(standin::violations(), std::vector<std::string>());
      EXPECT_EQ(standin::objects_alive(), 0U);
    });
  }
}

TEST(Gpu_processes, A_killed_rank_is_every_other_s_failure_by_name) {
  const noria_unique_id id = make_job_id();
  RankCrew crew(3, [&](int32_t rank, Wire& parent) {
    DeviceRank mine(id, rank, 3, small_model(), device_config(false));
    mine.seal();
    mine.run_good_step(0, 1);
    parent.meet();
    // Arrange: rank 1 dies in a step of which the others have launched all.
    mine.begin();
    if (rank == 1) parent.meet();
    noria_status status = NORIA_OK;
    for (uint32_t tensor = 0; tensor < mine.model.size() && status == NORIA_OK; ++tensor)
      status = mine.give(tensor, 1, mine.streams[0]);
    if (status == NORIA_OK) status = noria_step_end(mine.reducer, nullptr, nullptr);
    // Expect: a lost peer, by name, on each of them; and the device is left with nothing to do.
    EXPECT_EQ(status, NORIA_E_PEER) << last_error();
    EXPECT_TRUE(contains(last_error(), "rank 1")) << last_error();
    noria_reducer_destroy(mine.reducer);
    noria_comm_destroy(mine.comm);
    mine.reducer = nullptr;
    mine.comm = nullptr;
    EXPECT_EQ(cuCtxSynchronize(), standin::kSuccess);
  });
  for (int32_t rank = 0; rank < 3; ++rank) crew.wire(rank).meet();
  crew.wire(1).recv<uint8_t>();
  crew.kill(1, SIGKILL);
  crew.expect_success({1});
}

}  // namespace
}  // namespace noria::test
