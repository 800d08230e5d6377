#include "verbs/gid.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <vector>

#include "verbs/device.hpp"
#include "verbs/port_path.hpp"

namespace noria::verbs {
namespace {

Gid gid_of(const char* text) {
  Gid gid{};
  if (inet_pton(AF_INET6, text, gid.data()) == 1) return gid;
  gid[10] = gid[11] = 0xff;
  EXPECT_EQ(inet_pton(AF_INET, text, gid.data() + 12), 1) << text;
  return gid;
}

GidRow row(uint32_t index, const char* text, GidType type) {
  return {.index = index, .gid = gid_of(text), .type = type};
}

// As the kernel fills it: of each address version 1, then version 2.
const std::vector<GidRow>& roce_table() {
  static const std::vector<GidRow> table{
      row(0, "fe80::1", GidType::roce_v1),    row(1, "fe80::1", GidType::roce_v2),
      row(2, "10.1.2.3", GidType::roce_v1),   row(3, "10.1.2.3", GidType::roce_v2),
      row(4, "fd00::3", GidType::roce_v1),    row(5, "fd00::3", GidType::roce_v2),
      row(6, "172.16.0.3", GidType::roce_v1), row(7, "172.16.0.3", GidType::roce_v2)};
  return table;
}

std::string chosen(const GidRules& rules, const std::vector<GidRow>& table = roce_table()) {
  const auto found = choose_gid(table, true, rules);
  return found ? std::to_string(found->index) : found.failure();
}

TEST(Gid, Ethernet_takes_what_fits_best) {
  const struct {
    GidRules rules;
    const char* index;
  } table[] = {
      {{}, "3"},
      {{.roce_version = 1}, "2"},
      {{.prefers_ipv6 = true}, "5"},
      {{.prefers_ipv6 = true, .roce_version = 1}, "4"},
      {{.range = parse_address_range("172.16.0.0/12")}, "7"},
      {{.range = parse_address_range("fd00::/8")}, "5"},
      {{.roce_version = 1, .range = parse_address_range("172.16.0.3/32")}, "6"},
      {{.index = 0}, "0"},
      {{.index = 6, .range = parse_address_range("10.0.0.0/8")}, "6"},
  };
  for (const auto& [rules, index] : table) EXPECT_EQ(chosen(rules), index);
}

TEST(Gid, Where_nothing_fits_the_wishes_the_nearest_is_taken) {
  // Addresses of IPv6 only, the link-local ones first.
  const std::vector<GidRow> no_ipv4(roce_table().begin(), roce_table().begin() + 2);
  EXPECT_EQ(chosen({}, no_ipv4), "1");
  // One of unknown type alone.
  EXPECT_EQ(chosen({}, {row(9, "10.1.2.3", GidType::unknown)}), "9");
}

TEST(Gid, What_was_asked_for_and_is_not_there_is_refused_with_what_is) {
  const std::vector<GidRow> one{row(2, "10.1.2.3", GidType::roce_v2)};
  EXPECT_EQ(chosen({.index = 1}, one), "GID 1 is not set; there is 2 10.1.2.3 (RoCE v2)");
  EXPECT_EQ(chosen({.range = parse_address_range("192.168.0.0/16")}, one),
            "no GID lies in the address range; there is 2 10.1.2.3 (RoCE v2)");
  EXPECT_EQ(chosen({.range = parse_address_range("192.168.0.0/16"), .range_is_wish = true}, one),
            "2")
      << "as NCCL, which goes on";
  EXPECT_EQ(chosen({}, {}), "no GID is set; there is none");
}

TEST(Gid, InfiniBand_takes_the_first_row_or_the_one_with_a_floating_lid) {
  const auto index_of = [](const char* second) {
    const std::vector<GidRow> table{row(0, "fe80::a", GidType::infiniband),
                                    row(1, second, GidType::infiniband)};
    return choose_gid(table, false, {.index = 7})->index;
  };
  EXPECT_EQ(index_of("fe80::b"), 0u);
  EXPECT_EQ(index_of("fec0:0:12:3::b"), 1u);
}

TEST(Gid, A_router_is_needed_between_subnets_only) {
  const Gid here = gid_of("fec0:0:11:3::a");
  EXPECT_TRUE(is_same_subnet(here, gid_of("fec0:0:12:3::b"))) << "the FLID is no part of it";
  EXPECT_FALSE(is_same_subnet(here, gid_of("fec0:0:11:4::a")));
  EXPECT_FALSE(is_same_subnet(here, gid_of("fe80:0:11:3::a")));
  EXPECT_EQ(flid_of(here), 0x11);
  EXPECT_EQ(flid_of(gid_of("fe80::1")), 0);
}

TEST(Gid, Rows_that_hold_no_address_are_not_set) {
  EXPECT_FALSE(is_set(gid_of("::")));
  EXPECT_FALSE(is_set(gid_of("fe80::")));
  EXPECT_TRUE(is_set(gid_of("fe80::1")));
  EXPECT_TRUE(is_set(gid_of("10.0.0.1")));
}

TEST(Gid, A_range_is_an_address_and_bits) {
  const Gid address = gid_of("10.1.2.3");
  EXPECT_TRUE(parse_address_range("10.1.2.0/23")->contains(address.data()));
  EXPECT_FALSE(parse_address_range("10.1.4.0/23")->contains(address.data()));
  EXPECT_TRUE(parse_address_range("0.0.0.0/0")->contains(address.data()));
  EXPECT_FALSE(parse_address_range("0.0.0.0/0")->contains(gid_of("fd00::1").data()));
  EXPECT_TRUE(parse_address_range("::/0")->contains(gid_of("fd00::1").data()));
  EXPECT_TRUE(parse_address_range("10.1.2.3/32")->contains(address.data()));
  for (const char* bad : {"", "10.1.2.3", "10.1.2.3/33", "10.1.2/8", "fd00::/129", "/8",
                          "10.0.0.0/", "10.0.0.0/-1", "10.0.0.0/8x"})
    EXPECT_FALSE(parse_address_range(bad)) << bad;
}

TEST(Port_path, A_partition_is_found_by_its_number_as_a_full_member_first) {
  EXPECT_EQ(find_pkey({0xffff, 0x0001, 0x8001}, 0x8001), 2);
  EXPECT_EQ(find_pkey({0xffff, 0x0001, 0x8001}, 0x0001), 2);
  EXPECT_EQ(find_pkey({0xffff, 0x0001}, 0x8001), 1);
  EXPECT_EQ(find_pkey({0xffff, 0}, 0x8000), std::nullopt);
  EXPECT_EQ(find_pkey({}, 0xffff), std::nullopt);
}

TEST(Port_speed, Is_lanes_times_the_speed_of_one) {
  const struct {
    uint32_t speed;
    uint8_t width;
    uint32_t mbps;
  } table[] = {{1, 2, 10'000},    {2, 2, 20'000},   {4, 2, 40'000},     {8, 2, 40'000},
               {16, 2, 56'000},   {32, 2, 100'000}, {64, 2, 200'000},   {128, 2, 400'000},
               {256, 2, 800'000}, {32, 1, 25'000},  {128, 16, 200'000}, {64, 8, 600'000},
               {128, 4, 800'000}, {512, 2, 0},      {0, 2, 0},          {128, 3, 0}};
  for (const auto& [speed, width, mbps] : table)
    EXPECT_EQ(speed_mbps(speed, width), mbps) << speed << " x " << int{width};
}

}  // namespace
}  // namespace noria::verbs
