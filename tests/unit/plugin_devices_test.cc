// What NCCL is told of adapters of several ports, of bonds and of ports that are down, by a library
// that shows whatever a test wants.

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "plugin/devices.hpp"
#include "verbs/api.hpp"

namespace noria::plugin {
namespace {

namespace fs = std::filesystem;

struct Card {
  const char* name;
  const char* pci;
  std::vector<ibv_port_state> ports;
  ibv_device device{};
  ibv_context context{};
};
std::vector<Card>* cards = nullptr;

const Card& card_of(const ibv_context* context) {
  for (const Card& card : *cards)
    if (&card.context == context) return card;
  ADD_FAILURE() << "a context that was never opened";
  return cards->front();
}

class PluginDevicesTest : public testing::Test {
 protected:
  void TearDown() override { fs::remove_all(root_); }

  // The devices that NCCL is told of where these cards are.
  std::unique_ptr<DeviceTable> table_of(std::vector<Card> shown) {
    cards_ = std::move(shown);
    cards = &cards_;
    fs::remove_all(root_);
    list_.clear();
    for (Card& card : cards_) {
      const fs::path folder = root_ / "infiniband" / card.name;
      const fs::path function = root_ / "pci0000:00" / card.pci;
      fs::create_directories(folder);
      fs::create_directories(function);
      fs::create_directory_symlink(function, folder / "device");
      std::ofstream(folder / "node_guid") << "0002:c903:0000:000" << list_.size() << "\n";
      std::strcpy(card.device.name, card.name);
      std::strcpy(card.device.ibdev_path, folder.c_str());
      card.context.device = &card.device;
      list_.push_back(&card.device);
    }
    list_.push_back(nullptr);
    device_list = list_.data();
    provider_ = verbs::make_provider(verbs::Api::from_symbols(symbols()), "a test's", "", {});
    return std::make_unique<DeviceTable>(*provider_);
  }

 private:
  static verbs::Symbols symbols() {
    verbs::Symbols symbols;
    symbols.get_device_list = [](int* count) {
      *count = static_cast<int>(cards->size());
      return device_list;
    };
    symbols.free_device_list = [](ibv_device**) {};
    symbols.open_device = [](ibv_device* device) {
      for (Card& card : *cards)
        if (&card.device == device) return &card.context;
      return static_cast<ibv_context*>(nullptr);
    };
    symbols.close_device = [](ibv_context*) { return 0; };
    symbols.query_device = [](ibv_context* context, ibv_device_attr* limits) {
      limits->phys_port_cnt = static_cast<uint8_t>(card_of(context).ports.size());
      return 0;
    };
    symbols.query_port = [](ibv_context* context, uint8_t port, _compat_ibv_port_attr* out) {
      auto* const attr = reinterpret_cast<ibv_port_attr*>(out);
      attr->state = card_of(context).ports.at(port - 1u);
      attr->link_layer = IBV_LINK_LAYER_INFINIBAND;
      attr->active_speed = 128;  // NDR
      attr->active_width = 2;    // four lanes
      attr->gid_tbl_len = 1;
      return 0;
    };
    symbols.query_gid = [](ibv_context*, uint8_t port, int, ibv_gid* gid) {
      gid->raw[15] = port;
      return 0;
    };
    return symbols;
  }
  static inline ibv_device** device_list = nullptr;

  const fs::path root_ = fs::path(testing::TempDir()) / "noria_plugin_devices";
  std::vector<Card> cards_;
  std::vector<ibv_device*> list_;
  std::shared_ptr<const verbs::Provider> provider_;
};

constexpr ibv_port_state kUp = IBV_PORT_ACTIVE, kDown = IBV_PORT_DOWN;

TEST_F(PluginDevicesTest, Two_ports_of_a_device_are_two_devices_at_one_place) {
  const auto table = table_of({{"mlx5_0", "0000:17:00.0", {kUp, kUp}}});
  ASSERT_EQ(table->count(), 2);
  const Device& first = *table->find(0);
  const Device& second = *table->find(1);
  EXPECT_EQ(first.name, "mlx5_0:1");
  EXPECT_EQ(second.name, "mlx5_0:2");
  EXPECT_TRUE(first.pci_path.ends_with("/0000:17:00.0")) << first.pci_path;
  EXPECT_EQ(first.pci_path, second.pci_path);
  // Expect: as NCCL tells ports apart, by the number, for the adapter is one.
  EXPECT_EQ(first.guid, second.guid);
  abi::PropertiesV12 told[2]{};
  describe(first, &told[0]);
  describe(second, &told[1]);
  EXPECT_EQ(told[0].port, 1);
  EXPECT_EQ(told[1].port, 2);
  // Fused.  Expect: one of twice the speed.
  const auto fused = table->fuse(std::array{0, 1});
  ASSERT_TRUE(fused);
  EXPECT_EQ(table->find(*fused)->name, "mlx5_0:1+mlx5_0:2");
  EXPECT_EQ(table->find(*fused)->speed_mbps(), 800'000u);
}

TEST_F(PluginDevicesTest, Functions_of_a_card_are_devices_of_their_own_at_one_place) {
  const auto table =
      table_of({{"mlx5_0", "0000:17:00.0", {kUp}}, {"mlx5_1", "0000:17:00.1", {kUp}}});
  ASSERT_EQ(table->count(), 2);
  EXPECT_EQ(table->find(0)->name, "mlx5_0");
  EXPECT_EQ(table->find(1)->name, "mlx5_1");
  EXPECT_EQ(table->find(0)->pci_path, table->find(1)->pci_path);
  EXPECT_NE(table->find(0)->guid, table->find(1)->guid);
}

TEST_F(PluginDevicesTest, A_port_that_is_down_is_no_device_and_names_no_sibling) {
  const auto table = table_of({{"mlx5_0", "0000:17:00.0", {kDown, kUp}},
                               {"mlx5_1", "0000:31:00.0", {kDown}},
                               {"mlx5_2", "0000:4b:00.0", {IBV_PORT_INIT, kUp}}});
  ASSERT_EQ(table->count(), 2);
  EXPECT_EQ(table->find(0)->name, "mlx5_0");
  EXPECT_EQ(table->find(0)->ports[0].port, 2);
  EXPECT_EQ(table->find(1)->name, "mlx5_2");
}

TEST_F(PluginDevicesTest, A_bond_is_one_device_that_goes_by_its_own_name) {
  const auto table =
      table_of({{"mlx5_bond_0", "0000:17:00.0", {kUp}}, {"mlx5_bond_1", "0000:31:00.0", {kUp}}});
  ASSERT_EQ(table->count(), 2);
  EXPECT_EQ(table->find(0)->name, "mlx5_bond_0");
  EXPECT_EQ(table->find(1)->name, "mlx5_bond_1");
  EXPECT_TRUE(table->find(1)->pci_path.ends_with("/0000:31:00.0"));
}

TEST_F(PluginDevicesTest, A_path_that_is_none_of_PCI_is_not_told) {
  const auto table = table_of({{"siw0", "virtual", {kUp}}});
  ASSERT_EQ(table->count(), 1);
  EXPECT_EQ(table->find(0)->pci_path, "");
}

}  // namespace
}  // namespace noria::plugin
