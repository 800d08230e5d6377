// noria_comm_split() when something goes wrong while its groups meet.
#include <gtest/gtest.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "tests/support/job.hpp"

namespace {
bool dies_of_its_id = false;
}

// In place of the system's: whoever makes a unique id asks for random numbers.
extern "C" __attribute__((visibility("default"))) ssize_t getrandom(void* bytes, size_t count,
                                                                    unsigned flags) {
  if (dies_of_its_id) _exit(0);
  return syscall(SYS_getrandom, bytes, count, flags);
}

namespace noria::test {
namespace {

// Sockets of this process that hold a port, and neither listen nor lead anywhere.
int reserved_ports() {
  int ports = 0;
  for (int fd = 0; fd < 1024; ++fd) {
    sockaddr_storage address{};
    socklen_t bytes = sizeof address;
    int listens = 0;
    socklen_t size = sizeof listens;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) continue;
    if (address.ss_family != AF_INET && address.ss_family != AF_INET6) continue;
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens != 0) continue;
    bytes = sizeof address;
    ports += ::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0 ? 1 : 0;
  }
  return ports;
}

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
    rlimit limit{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
    // So that rank 1 cannot call, and the texts tell where it should.
    const rlimit none{0, limit.rlim_max};
    if (rank == 1) {
      ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
    }
    EXPECT_EQ(noria_comm_split(comm, 0, 0, &child), NORIA_E_MISSING);
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);  // a leak checker opens files at the end
    EXPECT_TRUE(contains(last_error(), " 127.0.0.1:")) << last_error();
    noria_comm_destroy(comm);
  });
}

TEST(SplitTest, A_group_that_never_met_holds_no_port) {
  const noria_unique_id id = make_id();
  run_ranks(4, [&](int32_t rank, Wire&) {
    const noria_comm_config config = config_of(id, rank, 4);
    noria_comm *comm = nullptr, *child = nullptr;
    const int before = reserved_ports();
    ASSERT_NORIA(noria_comm_create(&config, &comm));
    dies_of_its_id = rank == 2;  // the first of the other group; ranks 0 and 2 reserve a port
    EXPECT_EQ(noria_comm_split(comm, rank / 2, 0, &child), NORIA_E_PEER) << last_error();
    noria_comm_destroy(comm);
    // Expect: nor is that of the id held any longer.
    EXPECT_EQ(reserved_ports(), before - 1);
  });
}

}  // namespace
}  // namespace noria::test
