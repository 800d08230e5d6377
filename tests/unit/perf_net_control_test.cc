#include "perf/net_control.hpp"

#include <gtest/gtest.h>

#include "bucketing/tcp.hpp"
#include "tests/support/cpu_time.hpp"
#include "tests/support/no_descriptors.hpp"

namespace noria::perf {
namespace {

TEST(Net_control, A_server_without_a_descriptor_for_its_client_says_so_and_does_not_spin) {
  const Fd listener = listen_for_client(0);
  const uint16_t port = bucketing::local_address(listener).port();
  const NetControl client = connect_to_server("127.0.0.1", port, "");
  const double before = test::cpu_seconds();
  try {
    const test::NoDescriptors none;
    wait_for_client(listener, "server", [](NetControl&, const std::string&) {});
    FAIL() << "it was let in";
  } catch (const ToolError& error) {
    EXPECT_EQ(error.code(), Exit::environment);
    EXPECT_NE(std::string(error.what()).find("ulimit -n"), std::string::npos) << error.what();
  }
  // Expect: asleep. A thread that spins uses the two seconds.
  EXPECT_LT(test::cpu_seconds() - before, 0.5);
}

}  // namespace
}  // namespace noria::perf
