#include "verbs/transport/interfaces.hpp"

#include <gtest/gtest.h>

namespace noria::transport {
namespace {

Params params_of(std::vector<const char*> environment) {
  environment.push_back(nullptr);
  auto params = load_params(environment.data());
  EXPECT_TRUE(params.is_ok());
  return *params;
}

const std::vector<Interface>& some_interfaces() {
  static const std::vector<Interface> list{{"lo", "127.0.0.1"},   {"docker0", "172.17.0.1"},
                                           {"eth0", "10.0.0.5"},  {"eth0", "fd00::5"},
                                           {"eth10", "10.1.0.5"}, {"ib0", "192.168.1.5"}};
  return list;
}

std::string chosen(std::vector<const char*> environment) {
  auto choice = choose_interface(some_interfaces(), params_of(std::move(environment)));
  return choice.is_ok() ? choice->name + " " + choice->host : choice.failure();
}

TEST(InterfaceTest, By_itself_it_prefers_real_ones) {
  EXPECT_EQ(chosen({}), "eth0 10.0.0.5");
  EXPECT_EQ(chosen({"NCCL_SOCKET_FAMILY=AF_INET6"}), "eth0 fd00::5");
}

TEST(InterfaceTest, Names_are_prefixes_in_order_of_preference) {
  EXPECT_EQ(chosen({"NORIA_SOCKET_IFNAME=ib,eth"}), "ib0 192.168.1.5");
  EXPECT_EQ(chosen({"NORIA_SOCKET_IFNAME=eth"}), "eth0 10.0.0.5");
  EXPECT_EQ(chosen({"NORIA_SOCKET_IFNAME=eth1"}), "eth10 10.1.0.5");
  EXPECT_EQ(chosen({"NORIA_SOCKET_IFNAME==ib0"}), "ib0 192.168.1.5");
  EXPECT_EQ(chosen({"NORIA_SOCKET_IFNAME=^eth,docker"}), "ib0 192.168.1.5");
  EXPECT_EQ(chosen({"NORIA_SOCKET_IFNAME=lo"}), "lo 127.0.0.1");
}

TEST(InterfaceTest, Ours_wins_over_nccls) {
  EXPECT_EQ(chosen({"NCCL_SOCKET_IFNAME=ib0"}), "ib0 192.168.1.5");
  EXPECT_EQ(chosen({"NCCL_SOCKET_IFNAME=ib0", "NORIA_SOCKET_IFNAME=lo"}), "lo 127.0.0.1");
}

TEST(InterfaceTest, The_failure_names_nccls_variables_where_they_were_set) {
  const std::string text = chosen({"NCCL_SOCKET_IFNAME=wlan", "NCCL_SOCKET_FAMILY=AF_INET6"});
  EXPECT_EQ(text.find("no interface fits: NCCL_SOCKET_IFNAME asks for 'wlan' and "
                      "NCCL_SOCKET_FAMILY asks for 'AF_INET6'; there is "),
            0u)
      << text;
}

TEST(InterfaceTest, The_failure_names_what_was_asked_for_and_what_there_is) {
  const std::string text = chosen({"NORIA_SOCKET_IFNAME==eth", "NCCL_SOCKET_FAMILY=AF_INET"});
  for (const char* part : {"NORIA_SOCKET_IFNAME", "'=eth'", "AF_INET", "eth0 10.0.0.5"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
  EXPECT_FALSE(choose_interface({}, Params{}).is_ok());
}

TEST(InterfaceTest, The_loopback_of_this_host_is_listed) {
  const auto choice = choose_interface(list_interfaces(), params_of({"NORIA_SOCKET_IFNAME==lo"}));
  ASSERT_TRUE(choice.is_ok()) << choice.failure();
  EXPECT_TRUE(choice->host.starts_with("127.") || choice->host == "::1") << choice->host;
}

}  // namespace
}  // namespace noria::transport
