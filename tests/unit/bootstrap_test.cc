#include "bucketing/bootstrap.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "bucketing/tcp.hpp"

namespace noria::bucketing {
namespace {

Params params_of(std::vector<const char*> environment) {
  environment.push_back(nullptr);
  auto params = load_params(environment.data());
  EXPECT_TRUE(params.is_ok());
  return *params;
}

Failure launcher_failure(std::vector<const char*> environment, int32_t rank = -1,
                         int32_t size = -1) {
  auto result = rendezvous_from_launcher(params_of(std::move(environment)), rank, size);
  EXPECT_FALSE(result.is_ok());
  return result.is_ok() ? Failure{NORIA_OK, {}} : result.failure();
}

TEST(LauncherTest, Torchrun_says_who_and_where) {
  const auto result = rendezvous_from_launcher(
      params_of({"RANK=2", "WORLD_SIZE=4", "MASTER_ADDR=host0", "MASTER_PORT=29500"}), -1, -1);
  ASSERT_TRUE(result.is_ok());
  EXPECT_EQ(result->rank, 2);
  EXPECT_EQ(result->size, 4);
  EXPECT_EQ(result->host, "host0");
  EXPECT_EQ(result->port, 29529);  // torch's store owns MASTER_PORT
}

TEST(LauncherTest, Mpirun_says_who_and_its_ranks_of_one_host_meet_there) {
  const auto found = [](const char* job) {
    return rendezvous_from_launcher(
        params_of({"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2",
                   "OMPI_COMM_WORLD_LOCAL_SIZE=2", job, "SLURM_PROCID=0", "SLURM_NTASKS=9"}),
        -1, -1);
  };
  const auto one = found("PMIX_NAMESPACE=642908161"), other = found("PMIX_NAMESPACE=642908162");
  ASSERT_TRUE(one.is_ok()) << one.failure().text;
  EXPECT_EQ(one->rank, 1);
  EXPECT_EQ(one->size, 2);
  EXPECT_EQ(one->host, "127.0.0.1");
  EXPECT_GE(one->port, 20000);
  EXPECT_LT(one->port, 40000);
  EXPECT_NE(one->port, other->port);

  // On several hosts somebody must say where rank 0 is.
  const std::vector<const char*> apart{"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=4",
                                       "OMPI_COMM_WORLD_LOCAL_SIZE=2"};
  EXPECT_NE(launcher_failure(apart).text.find("NORIA_ROOT is not set"), std::string::npos);
  std::vector<const char*> told = apart;
  told.push_back("NORIA_ROOT=host0:4711");
  const auto result = rendezvous_from_launcher(params_of(told), -1, -1);
  ASSERT_TRUE(result.is_ok());
  EXPECT_EQ(result->host, "host0");
  EXPECT_EQ(result->rank, 1);
}

TEST(LauncherTest, Slurm_says_who_and_rank_0_is_on_the_first_host_of_the_step) {
  const auto host_of = [](const std::string& nodes) {
    const std::string list = "SLURM_JOB_NODELIST=" + nodes;
    const auto result = rendezvous_from_launcher(
        params_of({"SLURM_PROCID=3", "SLURM_NTASKS=4", "SLURM_JOB_ID=1234567", list.c_str()}), -1,
        -1);
    EXPECT_TRUE(result.is_ok());
    return result.is_ok() ? result->host : "";
  };
  EXPECT_EQ(host_of("gpu17"), "gpu17");
  EXPECT_EQ(host_of("gpu17,gpu18"), "gpu17");
  EXPECT_EQ(host_of("gpu[17-18,20],cpu1"), "gpu17");
  EXPECT_EQ(host_of("gpu[007,020]"), "gpu007");
  EXPECT_EQ(host_of("rack[2-3]-node[04-05].example.org,x"), "rack2-node04.example.org");

  const auto result = rendezvous_from_launcher(
      params_of({"SLURM_PROCID=3", "SLURM_NTASKS=4", "SLURM_JOB_ID=1234567",
                 "SLURM_JOB_NODELIST=a[1-9]", "SLURM_STEP_NODELIST=a[5-6]"}),
      -1, -1);
  ASSERT_TRUE(result.is_ok());
  EXPECT_EQ(result->rank, 3);
  EXPECT_EQ(result->size, 4);
  EXPECT_EQ(result->host, "a5");
  EXPECT_EQ(result->port, 20000 + 14567);
}

TEST(LauncherTest, Noria_root_wins_over_the_launchers_address) {
  const auto result =
      rendezvous_from_launcher(params_of({"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=host0",
                                          "MASTER_PORT=29500", "NORIA_ROOT=[::1]:4711"}),
                               -1, -1);
  ASSERT_TRUE(result.is_ok());
  EXPECT_EQ(result->host, "::1");
  EXPECT_EQ(result->port, 4711);
}

TEST(LauncherTest, The_callers_rank_wins_over_the_launchers) {
  const auto result = rendezvous_from_launcher(
      params_of({"RANK=0", "WORLD_SIZE=2", "NORIA_ROOT=host0:4711"}), 5, 8);
  ASSERT_TRUE(result.is_ok());
  EXPECT_EQ(result->rank, 5);
  EXPECT_EQ(result->size, 8);
}

TEST(LauncherTest, One_rank_needs_no_address) {
  const auto result = rendezvous_from_launcher(params_of({"RANK=0", "WORLD_SIZE=1"}), -1, -1);
  ASSERT_TRUE(result.is_ok());
  EXPECT_EQ(result->size, 1);
}

TEST(LauncherTest, All_ranks_compute_the_same_token_and_jobs_differ) {
  const auto token = [](const char* root, int32_t rank, int32_t size) {
    const std::string variable = std::string("NORIA_ROOT=") + root;
    return rendezvous_from_launcher(params_of({variable.c_str()}), rank, size)->token_low;
  };
  EXPECT_EQ(token("a:1", 0, 2), token("a:1", 1, 2));
  EXPECT_NE(token("a:1", 0, 2), token("a:2", 0, 2));
  EXPECT_NE(token("a:1", 0, 2), token("b:1", 0, 2));
  EXPECT_NE(token("a:1", 0, 2), token("a:1", 0, 3));
}

TEST(LauncherTest, Without_a_launcher_the_failure_prints_the_table) {
  const Failure failure = launcher_failure({});
  EXPECT_EQ(failure.code, NORIA_E_ARG);
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NORIA_ROOT",
                           "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"})
    EXPECT_NE(failure.text.find(name), std::string::npos) << name;
}

TEST(LauncherTest, Bad_values_are_named) {
  const auto names = [](std::vector<const char*> environment, const char* what) {
    const Failure failure = launcher_failure(std::move(environment));
    EXPECT_EQ(failure.code, NORIA_E_ARG);
    EXPECT_NE(failure.text.find(what), std::string::npos) << failure.text;
  };
  names({"RANK=two", "WORLD_SIZE=4"}, "'two'");
  names({"RANK=1", "WORLD_SIZE=0"}, "'0'");
  names({"RANK=1", "WORLD_SIZE=4x"}, "'4x'");
  names({"RANK=4", "WORLD_SIZE=4"}, "rank 4 of 4");
  names({"RANK=1"}, "WORLD_SIZE is not set");
  names({"OMPI_COMM_WORLD_RANK=x", "OMPI_COMM_WORLD_SIZE=4"}, "OMPI_COMM_WORLD_RANK: 'x'");
  names({"SLURM_PROCID=0", "SLURM_NTASKS=many"}, "SLURM_NTASKS: 'many'");
  names({"SLURM_PROCID=0", "SLURM_NTASKS=2"}, "SLURM_JOB_NODELIST are not set");
  names({"SLURM_PROCID=0", "SLURM_NTASKS=2", "SLURM_JOB_NODELIST=a,b"}, "SLURM_JOB_ID are not");
  names({"SLURM_PROCID=0", "SLURM_NTASKS=2", "SLURM_JOB_NODELIST=a,b", "SLURM_JOB_ID=7x"}, "'7x'");
  names({"RANK=1", "WORLD_SIZE=4"}, "MASTER_ADDR");
  names({"RANK=1", "WORLD_SIZE=4", "MASTER_ADDR=h"}, "MASTER_PORT");
  names({"RANK=1", "WORLD_SIZE=4", "MASTER_ADDR=h", "MASTER_PORT=65530"}, "'65530'");
}

TEST(LauncherTest, A_root_that_no_loader_has_looked_at_is_refused) {
  Params params;
  params.root = "nohost";
  const auto refused = rendezvous_from_launcher(params, 0, 2);
  ASSERT_FALSE(refused.is_ok());
  EXPECT_EQ(refused.failure().code, NORIA_E_ARG);
  EXPECT_NE(refused.failure().text.find("NORIA_ROOT: 'nohost'"), std::string::npos);
}

TEST(LauncherTest, A_rank_without_a_size_is_refused) {
  EXPECT_EQ(launcher_failure({}, 1, -1).code, NORIA_E_ARG);
  EXPECT_EQ(launcher_failure({}, -1, 2).code, NORIA_E_ARG);
}

TEST(UniqueIdTest, Says_where_rank_0_listens) {
  const Params params = params_of({"NORIA_SOCKET_IFNAME=lo", "NCCL_SOCKET_FAMILY=AF_INET"});
  const auto id = make_unique_id(params);
  ASSERT_TRUE(id.is_ok());
  const auto read = read_unique_id(*id, 1, 4);
  ASSERT_TRUE(read.is_ok());
  EXPECT_EQ(read->host, "127.0.0.1");
  EXPECT_EQ(read->rank, 1);
  EXPECT_EQ(read->size, 4);

  // The port is reserved but nobody listens.  Expect: a listener can be opened, once.
  auto listener = open_reserved_listener(*read);
  ASSERT_TRUE(listener.is_ok()) << listener.failure().text;
  EXPECT_FALSE(open_reserved_listener(*read).is_ok());
}

TEST(UniqueIdTest, A_listener_opens_while_a_copy_of_the_reservation_lives_elsewhere) {
  TcpAddress address;
  ASSERT_TRUE(parse_numeric("127.0.0.1", 0, &address));
  auto reservation = reserve_port(address);
  ASSERT_TRUE(reservation.is_ok());
  auto listener = listen_on(local_address(*reservation));
  EXPECT_TRUE(listener.is_ok()) << listener.failure();
}

TEST(UniqueIdTest, Ids_differ_and_so_do_their_ports) {
  const Params params = params_of({"NORIA_SOCKET_IFNAME=lo"});
  std::vector<Rendezvous> seen;
  for (int i = 0; i < 64; ++i) {
    const auto id = make_unique_id(params);
    ASSERT_TRUE(id.is_ok());
    const auto read = read_unique_id(*id, 0, 1);
    ASSERT_TRUE(read.is_ok());
    for (const Rendezvous& other : seen) {
      EXPECT_NE(other.port, read->port);
      EXPECT_NE(other.token_low, read->token_low);
    }
    seen.push_back(*read);
  }
  for (const Rendezvous& rendezvous : seen) drop_reservation(rendezvous);
}

TEST(UniqueIdTest, Bytes_that_are_no_id_are_refused) {
  noria_unique_id id{};
  EXPECT_EQ(read_unique_id(id, 0, 2).failure().code, NORIA_E_ARG);
  const auto good = make_unique_id(params_of({"NORIA_SOCKET_IFNAME=lo"}));
  ASSERT_TRUE(good.is_ok());
  drop_reservation(*read_unique_id(*good, 0, 1));
  for (size_t byte = 0; byte < 8; ++byte) {
    id = *good;
    id.bytes[byte] = static_cast<char>(id.bytes[byte] + 1);
    EXPECT_EQ(read_unique_id(id, 0, 2).failure().code, NORIA_E_ARG) << byte;
  }
  // Of another noria.
  id = *good;
  ++id.bytes[8];
  EXPECT_EQ(read_unique_id(id, 0, 2).failure().code, NORIA_E_MISMATCH);
  EXPECT_NE(read_unique_id(id, 0, 2).failure().text.find("the id has version "), std::string::npos);
  // Rank and size that do not fit.
  EXPECT_EQ(read_unique_id(*good, 2, 2).failure().code, NORIA_E_ARG);
  EXPECT_EQ(read_unique_id(*good, -1, 2).failure().code, NORIA_E_ARG);
  EXPECT_EQ(read_unique_id(*good, 0, 0).failure().code, NORIA_E_ARG);
}

}  // namespace
}  // namespace noria::bucketing
