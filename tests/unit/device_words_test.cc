#include "base/soft_devices.hpp"

#include <gtest/gtest.h>

#include "base/params.hpp"

namespace noria {
namespace {

std::string failure_of(const std::string& text) {
  const auto parsed = parse_soft_devices(text);
  return parsed.is_ok() ? "" : parsed.failure();
}

TEST(Soft_devices, Nothing_described_is_one_device) {
  const auto devices = parse_soft_devices("");
  ASSERT_EQ(devices->size(), 1U);
  EXPECT_EQ(devices->front().name, "noria0");
  EXPECT_FALSE(devices->front().is_described);
}

TEST(Soft_devices, Every_key_is_read) {
  const auto devices = parse_soft_devices(
      "name=mlx0,rate=200,width=2,ll=ib,numa=1,pci=0000:17:00.0,host=a,shape=2.5,ece=0x7,max_msg=8;"
      " "
      "name=mlx1 ;");
  ASSERT_TRUE(devices.is_ok()) << devices.failure();
  ASSERT_EQ(devices->size(), 2U);
  const SoftDevice& first = devices->front();
  EXPECT_EQ(first.name, "mlx0");
  EXPECT_EQ(first.rate_gbit, 200);
  EXPECT_EQ(first.width, 2U);
  EXPECT_TRUE(first.is_infiniband);
  EXPECT_EQ(first.numa, 1);
  EXPECT_EQ(first.pci, "0000:17:00.0");
  EXPECT_EQ(first.host, "a");
  EXPECT_EQ(first.shape_gbit, 2.5);
  EXPECT_EQ(first.ece, 7U);
  EXPECT_EQ(first.max_message, 8U << 20);
  // What is not said.  Expect: an NDR port over Ethernet, on no bus.
  const SoftDevice& second = devices->back();
  EXPECT_EQ(second.rate_gbit, 400);
  EXPECT_EQ(second.width, 4U);
  EXPECT_FALSE(second.is_infiniband);
  EXPECT_EQ(second.numa, -1);
  EXPECT_EQ(second.pci, "");
  EXPECT_EQ(second.shape_gbit, 0) << "as NORIA_SOFT_RATE_GBIT says";
  EXPECT_EQ(second.max_message, 1U << 30);
  EXPECT_TRUE(second.is_described);
}

TEST(Soft_devices, A_failure_names_device_word_and_range) {
  EXPECT_EQ(failure_of("name=a;name=b,rte=4"),
            "device 2: 'rte' is not a key; the nearest is 'rate'");
  EXPECT_EQ(failure_of("name=a,rate=300"),
            "device 1: rate=300 is no link of width 4; it takes 10, 20, 40, 56, 100, 200 or 400");
  EXPECT_EQ(failure_of("name=a,width=3"),
            "device 1: 'width=3' is not accepted; it takes 1, 2, 4, 8 or 12");
  EXPECT_EQ(failure_of("name=a,numa=1024"),
            "device 1: 'numa=1024' is not accepted; it takes 0 to 1023");
  EXPECT_EQ(failure_of("name=a,ll=roce"),
            "device 1: 'll=roce' is not accepted; it takes ib or eth");
  for (const char* bad : {"0", "-1", "100001", "fast", "nan"})
    EXPECT_EQ(failure_of(std::string("name=a,shape=") + bad),
              std::string("device 1: 'shape=") + bad +
                  "' is not accepted; it takes more than 0, to 100000 Gbit/s, as 2.5");
  for (const char* bad : {"0x0", "3", "0x", "0x100000000", "x3"})
    EXPECT_EQ(failure_of(std::string("name=a,ece=") + bad),
              std::string("device 1: 'ece=") + bad +
                  "' is not accepted; it takes options in hexadecimal, as 0x3");
  for (const char* bad : {"0", "1025", "8M"})
    EXPECT_EQ(failure_of(std::string("name=a,max_msg=") + bad),
              std::string("device 1: 'max_msg=") + bad +
                  "' is not accepted; it takes 1 to 1024 MiB, as 8");
  EXPECT_EQ(failure_of("name=a,name=b"), "device 1: 'name' stands twice");
  EXPECT_EQ(failure_of("name=a;name=a"), "device 2: name=a is taken");
  EXPECT_EQ(failure_of("rate=400"), "device 1: it has no name, as name=mlx0");
  EXPECT_EQ(failure_of("mlx0"), "device 1: 'mlx0' is not key=value, as name=mlx0");
  EXPECT_EQ(failure_of("name=a,pci=0000:17:00.0;name=b,pci=0000:17:00.0"),
            "device 2: pci=0000:17:00.0 is taken by a");
}

TEST(Soft_devices, What_would_name_a_folder_badly_is_refused) {
  for (const char* bad : {"name=", "name=..", "name=a/b", "name=0a", "name=a b", "name=a,host=/",
                          "name=abcdefghijklmnopqrstuvwxyz012345", "name=a,pci=17:00.0",
                          "name=a,pci=0000:17:20.0", "name=a,pci=0000:17:00.8",
                          "name=a,pci=0000:1G:00.0", "name=a,", ";name=a", "name=a,,rate=400"})
    EXPECT_NE(failure_of(bad), "") << bad;
}

TEST(Soft_devices, Another_host_may_have_the_same_bus) {
  EXPECT_EQ(failure_of("name=a,pci=0000:17:00.0,host=x;name=b,pci=0000:17:00.0,host=y"), "");
}

TEST(Soft_devices, There_is_room_for_32) {
  std::string text = "name=d0";
  for (int i = 1; i < 32; ++i) text += ";name=d" + std::to_string(i);
  EXPECT_EQ(failure_of(text), "");
  EXPECT_EQ(failure_of(text + ";name=e"), "device 33: there is room for 32");
}

TEST(Soft_devices, The_environment_is_refused_with_the_name_of_the_variable) {
  const char* environment[] = {"NORIA_SOFT_DEVICES=name=a,widht=4", nullptr};
  const auto params = load_params(environment);
  ASSERT_FALSE(params.is_ok());
  EXPECT_EQ(params.failure(),
            "NORIA_SOFT_DEVICES: device 1: 'widht' is not a key; the nearest is 'width'");
}

}  // namespace
}  // namespace noria
