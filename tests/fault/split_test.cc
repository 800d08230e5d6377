// noria_comm_split() when something goes wrong while its groups meet.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdlib>
#include <cstring>

#include "tests/support/job.hpp"

namespace noria::test {
namespace {

TEST(SplitTest, A_group_meets_where_the_variables_put_its_first_rank) {
  // A port that is free now: the id's own, which nobody else will use.
  const noria_unique_id id = make_id();
  uint16_t port = 0;
  std::memcpy(&port, id.bytes + 12, sizeof port);
  run_ranks(2, [port](int32_t rank, Wire&) {
    // By another address than that of the interface which carries the ring.
    setenv("NORIA_ROOT", ("127.0.0.2:" + std::to_string(port)).c_str(), 1);
    setenv("NORIA_SOCKET_IFNAME", "lo", 1);
    setenv("NORIA_SOCKET_FAMILY", "AF_INET", 1);
    noria_comm_config config = NORIA_COMM_CONFIG_INIT;
    config.rank = rank;
    config.size = 2;
    config.start_timeout_ms = 3000;
    noria_comm *comm = nullptr, *child = nullptr;
    ASSERT_NORIA(noria_comm_create(&config, &comm));
    const rlimit none{0, 0};  // so that rank 1 cannot call, and the texts tell where it should
    if (rank == 1) {
      ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
    }
    EXPECT_EQ(noria_comm_split(comm, 0, 0, &child), NORIA_E_MISSING);
    EXPECT_TRUE(contains(last_error(), " 127.0.0.1:")) << last_error();
    noria_comm_destroy(comm);
  });
}

}  // namespace
}  // namespace noria::test
