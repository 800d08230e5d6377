#include "verbs/qp.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>

namespace noria::verbs {
namespace {

ibv_qp_attr told;
int keep_attributes(ibv_qp*, ibv_qp_attr* attr, int) {
  told = *attr;
  return 0;
}

ibv_gid gid_of(const char* text) {
  ibv_gid gid{};
  EXPECT_EQ(inet_pton(AF_INET6, text, gid.raw), 1) << text;
  return gid;
}

// The path that a queue pair of `port` is told to `peer`.
ibv_ah_attr path(const OpenPort& port, const QpPeer& peer) {
  Symbols symbols;
  symbols.modify_qp = &keep_attributes;
  ibv_context context{};
  ibv_qp qp{};
  qp.context = &context;
  const QpService service{.traffic_class = 106, .service_level = 3};
  EXPECT_TRUE(to_rtr(*Api::from_symbols(symbols), &qp, port, peer, service).is_ok());
  return told.ah_attr;
}

OpenPort port_at(const char* gid, bool is_ethernet) {
  OpenPort port;
  port.info.port = 1;
  port.info.is_ethernet = is_ethernet;
  port.gid = gid_of(gid);
  port.gid_index = 3;
  port.attr.active_mtu = IBV_MTU_4096;
  return port;
}

TEST(Qp, Ethernet_is_reached_by_gid_with_the_traffic_class) {
  const QpPeer peer{.lid = 7, .gid = gid_of("::ffff:10.0.0.2")};
  const ibv_ah_attr way = path(port_at("::ffff:10.0.0.1", true), peer);
  EXPECT_EQ(way.is_global, 1);
  EXPECT_EQ(way.dlid, 0);
  EXPECT_EQ(way.grh.sgid_index, 3);
  EXPECT_EQ(way.grh.traffic_class, 106);
  EXPECT_EQ(way.grh.flow_label, 0u);
  EXPECT_EQ(way.sl, 3);
}

TEST(Qp, InfiniBand_is_reached_by_lid_within_a_subnet_and_by_gid_across) {
  const OpenPort port = port_at("fec0:0:0:1::a", false);
  const ibv_ah_attr near = path(port, {.lid = 7, .gid = gid_of("fec0:0:0:1::b")});
  EXPECT_EQ(near.is_global, 0);
  EXPECT_EQ(near.dlid, 7);
  EXPECT_EQ(near.sl, 3);

  // Another subnet, whose router has a floating LID or none.
  const ibv_ah_attr far = path(port, {.lid = 7, .gid = gid_of("fec0:0:0:2::b")});
  EXPECT_EQ(far.is_global, 1);
  EXPECT_EQ(far.dlid, 7);
  EXPECT_EQ(far.grh.traffic_class, 106);
  EXPECT_EQ(path(port, {.lid = 7, .gid = gid_of("fec0:0:12:2::b")}).dlid, 0x12);
}

TEST(Qp, Retries_end_also_where_a_device_takes_seven_for_endless_ones) {
  Symbols symbols;
  symbols.modify_qp = &keep_attributes;
  ibv_context context{};
  ibv_qp qp{};
  qp.context = &context;
  const auto retries = [&](uint32_t vendor, uint8_t wanted) {
    OpenPort port = port_at("::ffff:10.0.0.1", true);
    port.limits.vendor_id = vendor;
    const auto api = Api::from_symbols(symbols);
    EXPECT_TRUE(to_rts(*api, &qp, port, {}, 1, {.retries = wanted}).is_ok());
    return told.retry_cnt;
  };
  constexpr uint32_t kSoftRoce = 0xffffff, kMellanox = 0x2c9;
  EXPECT_EQ(retries(kMellanox, 7), 7);
  EXPECT_EQ(retries(kSoftRoce, 7), 6);
  EXPECT_EQ(retries(kSoftRoce, 3), 3);
}

TEST(Qp, A_port_that_asks_for_a_global_header_gets_one) {
  OpenPort port = port_at("fec0:0:0:1::a", false);
  port.attr.flags = IBV_QPF_GRH_REQUIRED;
  const ibv_ah_attr way = path(port, {.lid = 7, .gid = gid_of("fec0:0:0:1::b")});
  EXPECT_EQ(way.is_global, 1);
  EXPECT_EQ(way.dlid, 7);
}

TEST(Qp, The_smaller_mtu_of_both_sides_is_used) {
  OpenPort port = port_at("::ffff:10.0.0.1", true);
  path(port, {.mtu = IBV_MTU_1024});
  EXPECT_EQ(told.path_mtu, IBV_MTU_1024);
  port.attr.active_mtu = IBV_MTU_512;
  path(port, {.mtu = IBV_MTU_1024});
  EXPECT_EQ(told.path_mtu, IBV_MTU_512);
}

}  // namespace
}  // namespace noria::verbs
