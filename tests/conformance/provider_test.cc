// Which verbs library is chosen, on the machine at hand.

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "base/params.hpp"
#include "verbs/api.hpp"
#include "verbs/provider.hpp"

namespace noria::verbs {
namespace {

bool shows_active_port(const Provider& provider) {
  return std::any_of(provider.ports().begin(), provider.ports().end(),
                     [](const PortInfo& port) { return port.is_active; });
}

TEST(Provider, Finds_the_software_hca_beside_our_own_library_when_told_to) {
  Params params;
  params.soft = true;
  const auto provider = open_provider(params, Use::plugin);
  ASSERT_TRUE(provider.is_ok()) << provider.failure();
  EXPECT_EQ((*provider)->kind(), ProviderKind::software);
  EXPECT_EQ((*provider)->notice(), "");
  EXPECT_NE((*provider)->library_path().find("/libnoria-softverbs.so"), std::string::npos);
  ASSERT_TRUE(shows_active_port(**provider));
  EXPECT_NE((*provider)->api().symbols().noria_alloc, nullptr);
  EXPECT_GT((*provider)->ports().front().speed_mbps, 0u);
}

TEST(Provider, Takes_the_ports_that_NORIA_HCA_names_and_says_which_there_are_when_it_names_none) {
  Params params;
  params.soft = true;
  params.hca = "^mlx5";
  const auto all = open_provider(params, Use::plugin);
  ASSERT_TRUE(all) << all.failure();
  EXPECT_TRUE((*all)->ports_left_out().empty());
  params.hca = "=mlx5_0";
  for (const Use use : {Use::plugin, Use::collective}) {
    const auto none = open_provider(params, use);
    ASSERT_FALSE(none);
    EXPECT_EQ(none.failure().find("NORIA_HCA: '=mlx5_0' takes no port of "), 0u) << none.failure();
    EXPECT_NE(none.failure().find("; there is noria0 port 1"), std::string::npos) << none.failure();
  }
}

int no_gid(ibv_context*, uint8_t, int, ibv_gid* gid) {
  *gid = {};
  return 0;
}

// As the ports of a host's other adapters look from within a container.
TEST(Provider, A_port_without_any_GID_is_as_good_as_down_and_refuses_nothing) {
  Params params;
  params.soft = true;
  const auto whole = open_provider(params, Use::plugin);
  ASSERT_TRUE(whole) << whole.failure();
  Symbols symbols = (*whole)->api().symbols();
  symbols.query_gid = &no_gid;
  for (const auto index : {std::optional<uint64_t>(), std::optional<uint64_t>(3)}) {
    params.gid_index = index;
    const auto seen = make_provider(Api::from_symbols(symbols), "a container's", "", params);
    // Expect:
    ASSERT_EQ(seen->ports().size(), 1u);
    EXPECT_FALSE(seen->ports()[0].is_active);
    EXPECT_STREQ(seen->ports()[0].state, "without a GID");
    EXPECT_EQ(seen->ports()[0].fault, "");
  }
}

TEST(Provider, Falls_back_to_the_software_hca_for_collectives_and_says_so) {
  const auto provider = open_provider(Params{}, Use::collective);
  ASSERT_TRUE(provider.is_ok()) << provider.failure();
  EXPECT_TRUE(shows_active_port(**provider));
  // Expect: silence with hardware, one line that names the library without.
  if ((*provider)->kind() == ProviderKind::hardware)
    EXPECT_EQ((*provider)->notice(), "");
  else
    EXPECT_NE((*provider)->notice().find("using the software HCA ("), std::string::npos)
        << (*provider)->notice();
}

TEST(Provider, Never_gives_the_plugin_a_software_hca_it_did_not_ask_for) {
  const auto provider = open_provider(Params{}, Use::plugin);
  if (provider.is_ok())
    EXPECT_EQ((*provider)->kind(), ProviderKind::hardware);
  else
    EXPECT_NE(provider.failure().find("NORIA_SOFT=1"), std::string::npos) << provider.failure();
}

}  // namespace
}  // namespace noria::verbs
