#include "verbs/soft/host_address.hpp"

#include <gtest/gtest.h>

namespace noria::soft {
namespace {

in_addr_t choose(std::string_view asked) {
  return choose_address({{"docker0", 1}, {"unplugged", 2, false}, {"eth0", 3}, {"eth1", 4}}, asked);
}

TEST(Host_address, Of_itself_it_is_the_first_real_one_whose_wire_is_plugged_in) {
  EXPECT_EQ(choose(""), 3U);
  EXPECT_EQ(choose_address({{"docker0", 1}, {"unplugged", 2, false}}, ""), 1U);
  EXPECT_EQ(choose_address({{"unplugged", 2, false}}, ""), 2U);
}

TEST(Host_address, Is_of_the_interface_that_is_asked_for) {
  EXPECT_EQ(choose("eth1,eth0"), 4U);
  EXPECT_EQ(choose("^eth0"), 4U);
  EXPECT_EQ(choose("docker"), 1U);
  EXPECT_EQ(choose("unplugged"), 2U);
}

TEST(Host_address, Is_not_the_loopbacks_where_that_is_asked_for_and_there_is_another) {
  EXPECT_EQ(choose("lo"), 3U);
  EXPECT_EQ(choose_address({}, "lo"), htonl(INADDR_LOOPBACK));
}

}  // namespace
}  // namespace noria::soft
