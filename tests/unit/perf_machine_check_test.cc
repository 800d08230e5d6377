#include "perf/machine_check.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "plugin/tuner/table.hpp"

namespace noria::perf {
namespace {

verbs::PortInfo port_of(const char* device) {
  verbs::PortInfo port;
  port.device = device;
  port.is_active = true;
  port.state = "active";
  port.is_ethernet = true;
  port.gid_index = 3;
  port.gid = "10.1.2.3";
  port.gid_type = "RoCE v2";
  port.mtu_bytes = port.max_mtu_bytes = 4096;
  return port;
}

Machine good_machine() {
  Machine machine;
  machine.library = "libibverbs.so.1";
  machine.interface = "eth0 10.1.2.3";
  machine.ports = {port_of("mlx5_0")};
  machine.nccl = {{"NCCL_NET_PLUGIN", "noria"}, {"NCCL_NET", "Noria"}, {"NCCL_IB_DISABLE", "0"}};
  return machine;
}

// "name: remedy" of each finding that is wrong.
std::string wrong(const Machine& machine) {
  std::string all;
  for (const Finding& finding : check_machine(machine))
    if (!finding.is_ok()) all += finding.name + ": " + finding.remedy + "\n";
  return all;
}

std::string line_of(const Machine& machine, const std::string& name) {
  for (const Finding& finding : check_machine(machine))
    if (finding.name == name) return finding.says;
  return "no finding";
}

TEST(Machine_check, A_good_machine_has_nothing_wrong) {
  EXPECT_EQ(wrong(good_machine()), "");
  EXPECT_EQ(line_of(good_machine(), "address"), "mlx5_0 port 1: GID 3 10.1.2.3 (RoCE v2)");
  EXPECT_EQ(line_of(good_machine(), "ports"), "1 of 1 are active");
}

TEST(Machine_check, What_hides_the_rest_is_said_alone) {
  Machine machine = good_machine();
  machine.bad_variable = "NCCL_IB_TC: '999' is not accepted";
  EXPECT_EQ(line_of(machine, "variables"), machine.bad_variable);
  EXPECT_EQ(line_of(machine, "library"), "no finding");
  EXPECT_EQ(line_of(machine, "ports"), "no finding");
  EXPECT_NE(line_of(machine, "memlock"), "no finding");

  machine = good_machine();
  machine.is_disabled = true;
  EXPECT_EQ(wrong(machine), "variables: unset it to use noria\n");
  EXPECT_EQ(line_of(machine, "library"), "no finding");

  machine = good_machine();
  machine.no_provider = "no RDMA device was found";
  EXPECT_EQ(wrong(machine), "library: do as it says\n");
  EXPECT_EQ(line_of(machine, "ports"), "no finding");
}

TEST(Machine_check, Which_of_two_variables_for_the_same_holds_is_said_and_not_wrong) {
  const char* const environment[] = {"NORIA_TRAFFIC_CLASS=12",
                                     "NCCL_IB_TC=10",
                                     "NORIA_PKEY_INDEX=1",
                                     "NCCL_IB_PKEY=1",
                                     "NCCL_IB_SL=3",
                                     "NORIA_DISABLE=1",
                                     nullptr};
  const Machine read = read_machine(environment);
  EXPECT_EQ(read.overridden,
            std::vector<std::string>{"NORIA_TRAFFIC_CLASS=12 holds, and not NCCL_IB_TC=10"});
  Machine machine = good_machine();
  machine.overridden = read.overridden;
  EXPECT_EQ(wrong(machine), "");
  EXPECT_EQ(check_machine(machine)[1].says, read.overridden[0]);
  machine.is_disabled = true;
  EXPECT_EQ(line_of(machine, "ports"), "no finding");
}

TEST(Machine_check, Two_variables_that_stand_for_the_same_do_not_differ) {
  const auto overridden = [](const char* ours, const char* nccls) {
    const char* const environment[] = {ours, nccls, "NORIA_DISABLE=1", nullptr};
    return read_machine(environment).overridden;
  };
  EXPECT_TRUE(overridden("NORIA_ACK_TIMEOUT=20", "NCCL_IB_TIMEOUT=0x14").empty());
  EXPECT_TRUE(overridden("NORIA_RELAXED_ORDERING=on", "NCCL_IB_PCI_RELAXED_ORDERING=1").empty());
  EXPECT_TRUE(overridden("NORIA_AR_THRESHOLD=64K", "NCCL_IB_AR_THRESHOLD=65536").empty());
  EXPECT_EQ(overridden("NORIA_ACK_TIMEOUT=14", "NCCL_IB_TIMEOUT=0x14"),
            std::vector<std::string>{"NORIA_ACK_TIMEOUT=14 holds, and not NCCL_IB_TIMEOUT=0x14"});
  // What is no value at all.  Expect: different from any.
  EXPECT_EQ(overridden("NORIA_ACK_TIMEOUT=14", "NCCL_IB_TIMEOUT=99").size(), 1u);
  EXPECT_EQ(overridden("NORIA_HCA=", "NCCL_IB_HCA=mlx5_0:x").size(), 1u);
}

TEST(Machine_check, A_table_that_the_tuner_cannot_read_is_wrong) {
  Machine machine = good_machine();
  EXPECT_EQ(line_of(machine, "tuner"), "no finding");
  machine.tuner_table = "/etc/noria.table";
  machine.tuner_rows = 12;
  EXPECT_EQ(line_of(machine, "tuner"), "/etc/noria.table: 12 rows");
  EXPECT_EQ(wrong(machine), "");
  machine.bad_table = "/etc/noria.table:3:1: no such collective";
  EXPECT_EQ(line_of(machine, "tuner"),
            "the tuner leaves all choices to NCCL: /etc/noria.table:3:1: no such collective");
  EXPECT_NE(wrong(machine).find("tuner: mend the table"), std::string::npos);
}

TEST(Machine_check, The_table_of_the_tuner_is_read_where_the_tuner_is_on) {
  const auto read = [](const std::string& path, const char* tuner) {
    const std::string table = "NORIA_TUNER_TABLE=" + path;
    const char* const environment[] = {table.c_str(), tuner, "NORIA_SOFT=1", nullptr};
    return read_machine(environment);
  };
  EXPECT_EQ(read("/nosuch", "NORIA_TUNER=1").bad_table,
            "/nosuch: cannot be read: No such file or directory");
  EXPECT_EQ(read("/nosuch", "NORIA_TUNER=0").tuner_table, "");
  EXPECT_EQ(read("", "NORIA_TUNER=1").tuner_table, "");

  std::string directory = testing::TempDir() + "noria_table_XXXXXX";
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  const std::string path = directory + "/table";
  std::ofstream(path) << "no table\n";
  EXPECT_EQ(read(path, "NORIA_TUNER=1").bad_table.find(path + ":1:"), 0u);
  plugin::tuner::Table good;
  good.rows.emplace_back().provenance = "modelled";
  std::ofstream(path) << plugin::tuner::text_of(good);
  EXPECT_EQ(read(path, "NORIA_TUNER=1").bad_table, "");
  EXPECT_EQ(read(path, "NORIA_TUNER=1").tuner_rows, 1u);
  std::filesystem::remove_all(directory);
}

TEST(Machine_check, A_port_that_is_down_is_wrong_only_where_none_is_up) {
  Machine machine = good_machine();
  machine.ports.push_back(port_of("mlx5_1"));
  machine.ports[1].is_active = false;
  machine.ports[1].state = "down";
  EXPECT_EQ(wrong(machine), "");
  EXPECT_EQ(line_of(machine, "ports"), "1 of 2 are active; mlx5_1 port 1 is down");
  machine.ports.erase(machine.ports.begin());
  EXPECT_NE(wrong(machine).find("ports: look at cables"), std::string::npos);
  machine.ports.clear();
  EXPECT_NE(wrong(machine).find("ports: load its driver"), std::string::npos);
}

TEST(Machine_check, An_address_that_does_not_reach_far_is_wrong) {
  Machine machine = good_machine();
  machine.ports[0].gid = "fe80::1";
  EXPECT_NE(wrong(machine).find("address: give its interface an address"), std::string::npos);
  machine.ports[0] = port_of("mlx5_0");
  machine.ports[0].gid_type = "RoCE v1";
  EXPECT_NE(wrong(machine).find("NORIA_ROCE_VERSION=1"), std::string::npos);
  machine.wants_roce_v1 = true;
  EXPECT_EQ(wrong(machine), "");
  machine.ports[0].is_ethernet = false;
  EXPECT_EQ(wrong(machine), "address: start a subnet manager: it gives the LID\n");
  machine.ports[0].lid = 7;
  EXPECT_EQ(wrong(machine), "");
}

TEST(Machine_check, A_small_mtu_is_wrong_and_whose_it_is_depends_on_the_link) {
  Machine machine = good_machine();
  machine.ports[0].mtu_bytes = 1024;
  EXPECT_EQ(line_of(machine, "mtu"), "mlx5_0 port 1: 1024 of 4096");
  EXPECT_NE(wrong(machine).find("mtu: raise the MTU of its interface"), std::string::npos);
  machine.ports[0].is_ethernet = false;
  machine.ports[0].lid = 7;
  EXPECT_NE(wrong(machine).find("mtu: raise the MTU of its partition"), std::string::npos);
}

TEST(Machine_check, Without_an_interface_at_which_peers_call_the_plugin_is_off) {
  Machine machine = good_machine();
  EXPECT_EQ(line_of(machine, "interface"), "peers call at eth0 10.1.2.3");
  machine.no_interface = "no interface fits: NORIA_SOCKET_IFNAME asks for 'ib9'; there is none";
  EXPECT_NE(wrong(machine).find("interface: set NORIA_SOCKET_IFNAME"), std::string::npos);
  EXPECT_EQ(line_of(machine, "interface"), "the NCCL plugin is off: " + machine.no_interface);
}

TEST(Machine_check, A_limit_of_locked_memory_is_wrong_on_hardware) {
  Machine machine = good_machine();
  machine.memlock_bytes = 8 << 20;
  EXPECT_EQ(line_of(machine, "memlock"), "8192 KiB may be locked");
  EXPECT_NE(wrong(machine).find("`ulimit -l unlimited`"), std::string::npos);
  machine.is_software = true;
  EXPECT_EQ(wrong(machine), "");
}

TEST(Machine_check, The_capability_to_lock_counts_in_the_first_user_namespace_alone) {
  constexpr uint64_t kFirst = 0xeffffffd, kContainer = 0xf0000123;
  const std::string root = "Name:\tnoria_info\nCapEff:\t000001ffffffffff\nSeccomp:\t0\n";
  const std::string lock_alone = "CapInh:\t0000000000000000\nCapEff:\t0000000000004000\n";
  const std::string all_but_lock = "CapEff:\t000001ffffffbfff\n";
  EXPECT_TRUE(may_lock_all(root, kFirst));
  EXPECT_TRUE(may_lock_all(lock_alone, kFirst));
  EXPECT_FALSE(may_lock_all(all_but_lock, kFirst));
  EXPECT_FALSE(may_lock_all("", kFirst));
  // Root of a container without a mapping to the host's root.
  EXPECT_FALSE(may_lock_all(root, kContainer));
}

TEST(Machine_check, GPUs_need_a_module_or_dmabuf) {
  Machine machine = good_machine();
  EXPECT_EQ(line_of(machine, "gpu"), "no NVIDIA driver: host memory only");
  machine.has_nvidia_driver = true;
  EXPECT_NE(wrong(machine).find("gpu: modprobe nvidia_peermem"), std::string::npos);
  machine.has_dmabuf = true;
  EXPECT_EQ(wrong(machine), "");
  machine.peer_memory = "nvidia_peermem";
  EXPECT_EQ(line_of(machine, "gpu"), "memory of GPUs by nvidia_peermem and dmabuf");
}

TEST(Machine_check, Variables_of_NCCL_that_work_against_noria_are_wrong) {
  const std::pair<const char*, const char*> table[] = {
      {"NCCL_NET", "Socket"}, {"NCCL_NET_PLUGIN", "none"}, {"NCCL_IB_DISABLE", "1"}};
  for (const auto& [name, value] : table) {
    Machine machine = good_machine();
    machine.nccl[name] = value;
    EXPECT_EQ(wrong(machine).find("nccl: "), 0u) << name;
  }
  Machine machine = good_machine();
  machine.nccl = {{"NCCL_NET_PLUGIN", "/opt/lib/libnccl-net-noria.so"}, {"NCCL_NET", ""}};
  EXPECT_EQ(wrong(machine), "");
  machine.nccl.clear();
  EXPECT_EQ(wrong(machine), "");
}

}  // namespace
}  // namespace noria::perf
