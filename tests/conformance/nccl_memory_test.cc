// libnccl-net-noria.so: what connections cost, and the memory that is registered for them.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <utility>
#include <vector>

#include "tests/support/nccl_driver.hpp"
#include "tests/support/ranks.hpp"

namespace noria::test {
namespace {

size_t open_descriptors() {
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(entries), end(entries)));
}

class NcclMemory : public testing::TestWithParam<int> {
 protected:
  static void SetUpTestSuite() { setenv("NORIA_SOFT", "1", 1); }

  void alone(const std::function<void()>& body) {
    run_ranks(1, [&](int32_t, Wire&) { body(); });
  }
};

// Both ends of a connection of a process with itself.
struct Ends {
  void* sending = nullptr;
  void* receiving = nullptr;
};

void connect_to_itself(Communicator& communicator, Ends& ends) {
  Net& net = *communicator.net;
  NetHandle handle{};
  void* listener = nullptr;
  ASSERT_EQ(net.listen(communicator.context, 0, handle.data(), &listener), Result::success)
      << last_warning();
  const Nanoseconds deadline = now_ns() + 30_s;
  while ((ends.sending == nullptr || ends.receiving == nullptr) && now_ns() < deadline) {
    if (ends.sending == nullptr) {
      ASSERT_EQ(net.connect(communicator.context, 0, handle.data(), &ends.sending), Result::success)
          << last_warning();
    }
    if (ends.receiving == nullptr) {
      ASSERT_EQ(net.accept(listener, &ends.receiving), Result::success) << last_warning();
    }
  }
  ASSERT_TRUE(ends.sending != nullptr && ends.receiving != nullptr) << "not after 30 s";
  EXPECT_EQ(net.close_listen(listener), Result::success);
}

void close(Net& net, const Ends& ends) {
  EXPECT_EQ(net.close_send(ends.sending), Result::success);
  EXPECT_EQ(net.close_recv(ends.receiving), Result::success);
}

TEST_P(NcclMemory, Hundreds_of_connections_share_a_device_and_cost_three_descriptors_both_ends) {
  alone([] {
    constexpr size_t kCount = 200;
    Communicator communicator(GetParam());
    std::vector<Ends> connections(kCount);
    ASSERT_NO_FATAL_FAILURE(connect_to_itself(communicator, connections[0]));
    const size_t first = open_descriptors();
    close(*communicator.net, std::exchange(connections[0], {}));
    const size_t none = open_descriptors();
    for (Ends& ends : connections) ASSERT_NO_FATAL_FAILURE(connect_to_itself(communicator, ends));
    // Expect: each end's control socket, and the memory of the sender's credits, which peers of the
    // software HCA map. The device is open once.
    EXPECT_EQ(open_descriptors() - first, 3 * (kCount - 1));
    for (const Ends& ends : connections) close(*communicator.net, ends);
    // Expect: the last one closed the device.
    EXPECT_EQ(open_descriptors(), none);
  });
}

INSTANTIATE_TEST_SUITE_P(Versions, NcclMemory, testing::Range(kOldestVersion, kNewestVersion + 1),
                         [](const auto& version) { return "v" + std::to_string(version.param); });

}  // namespace
}  // namespace noria::test
