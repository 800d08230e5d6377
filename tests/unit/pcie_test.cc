#include "verbs/pcie.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace noria::verbs {
namespace {

namespace fs = std::filesystem;

TEST(Pcie, A_link_carries_what_its_generation_and_its_lanes_do) {
  struct Row {
    const char* speed;
    const char* lanes;
    uint32_t mbps;
  };
  for (const Row& row :
       {Row{"2.5 GT/s PCIe", "8", 14'840}, Row{"5.0 GT/s PCIe", "8", 29'681},
        Row{"5 GT/s PCIe", "8", 29'681}, Row{"8.0 GT/s PCIe", "16", 116'899},
        Row{"16.0 GT/s PCIe", "16", 233'798}, Row{"16.0 GT/s PCIe", "8", 116'899},
        Row{"32.0 GT/s PCIe", "16", 467'596}, Row{"64.0 GT/s PCIe", "16", 897'855}})
    EXPECT_EQ(pcie_link_mbps(row.speed, row.lanes), row.mbps) << row.speed << " x" << row.lanes;
}

TEST(Pcie, What_is_not_known_limits_nothing) {
  for (const char* speed : {"", "Unknown", "Unknown speed", "16.0", "16.0 GT/s", "7.0 GT/s PCIe"})
    EXPECT_EQ(pcie_link_mbps(speed, "16"), 0u) << speed;
  for (const char* lanes : {"", "0", "255", "-1", "x16", "33"})
    EXPECT_EQ(pcie_link_mbps("16.0 GT/s PCIe", lanes), 0u) << lanes;
  EXPECT_EQ(pcie_mbps("/nowhere/at/all"), 0u);
}

// A folder of its own, gone with the object.
struct Tree {
  Tree() {
    std::string name = (fs::temp_directory_path() / "pcie-XXXXXX").string();
    root = ::mkdtemp(name.data());
  }
  ~Tree() { fs::remove_all(root); }
  void link(const std::string& folder, const std::string& speed, const std::string& lanes) const {
    fs::create_directories(root / folder);
    std::ofstream(root / folder / "current_link_speed") << speed << '\n';
    std::ofstream(root / folder / "current_link_width") << lanes << '\n';
  }
  fs::path root;
};

TEST(Pcie, The_slowest_link_on_the_way_to_the_device_counts) {
  const Tree tree;
  const std::string root_port = "pci0000:16/0000:16:01.0", bridge = root_port + "/0000:17:00.0";
  tree.link(root_port, "16.0 GT/s PCIe", "16");
  tree.link(bridge, "Unknown", "255");
  tree.link(bridge + "/0000:18:00.0", "32.0 GT/s PCIe", "16");
  fs::create_directory_symlink(tree.root / bridge / "0000:18:00.0", tree.root / "device");
  EXPECT_EQ(pcie_mbps((tree.root / "device").string()), 233'798u);

  // The root port learns of a faster link.  Expect: the device's own is the slowest now.
  tree.link(root_port, "64.0 GT/s PCIe", "16");
  EXPECT_EQ(pcie_mbps((tree.root / "device").string()), 467'596u);
}

TEST(Pcie, A_device_that_is_on_no_bus_is_not_limited) {
  const Tree tree;
  fs::create_directories(tree.root / "virtual/noria0");
  EXPECT_EQ(pcie_mbps((tree.root / "virtual/noria0").string()), 0u);
}

}  // namespace
}  // namespace noria::verbs
