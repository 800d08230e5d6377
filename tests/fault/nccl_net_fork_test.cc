// A process that holds a connection through the net plugin, and forks.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/support/nccl_end.hpp"

namespace noria::test {
namespace {

class NcclNetFork : public testing::TestWithParam<int> {
 protected:
  static void SetUpTestSuite() { setenv("NORIA_SOFT", "1", 1); }
};

TEST_P(NcclNetFork, A_child_that_was_forked_and_ends_leaves_the_connection_alone) {
  const int version = GetParam();
  run_pair(
      [&](Post& post) {
        NcclEnd end(version);
        ASSERT_NO_FATAL_FAILURE(end.connect_to(post.peer));
        const pid_t child = fork();
        if (child == 0) exit(0);  // with all that runs at the end of a process
        int status = -1;
        ASSERT_EQ(waitpid(child, &status, 0), child);
        EXPECT_EQ(status, 0);
        void* request = nullptr;
        while (request == nullptr)
          ASSERT_EQ(end.net().isend(end.comm, end.memory.data(), NcclEnd::kBytes, end.registered,
                                    &request),
                    Result::success);
        EXPECT_EQ(finish(end.net(), request), static_cast<int>(NcclEnd::kBytes));
        post.peer.meet();
        EXPECT_EQ(end.net().close_send(end.comm), Result::success);
      },
      [&](Post& post) {
        NcclEnd end(version);
        ASSERT_NO_FATAL_FAILURE(end.accept_from(post.peer));
        void* request = nullptr;
        ASSERT_EQ(
            end.net().irecv(end.comm, end.memory.data(), NcclEnd::kBytes, end.registered, &request),
            Result::success);
        EXPECT_EQ(finish(end.net(), request), static_cast<int>(NcclEnd::kBytes));
        post.peer.meet();
        EXPECT_EQ(end.net().close_recv(end.comm), Result::success);
      });
}

INSTANTIATE_TEST_SUITE_P(Versions, NcclNetFork, testing::Values(kOldestVersion, kNewestVersion),
                         [](const auto& version) { return "v" + std::to_string(version.param); });

}  // namespace
}  // namespace noria::test
