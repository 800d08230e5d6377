// Which verbs library is chosen, on the machine at hand.

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "base/log.hpp"
#include "base/params.hpp"
#include "tests/support/no_descriptors.hpp"
#include "tests/support/no_threads.hpp"
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

// As often as it is asked, and then with all that its last user had.
TEST(Provider, Where_the_software_HCA_cannot_start_the_failure_names_what_is_lacking) {
  Params params;
  params.soft = true;
  const auto whole = open_provider(params, Use::plugin);
  ASSERT_TRUE(whole) << whole.failure();
  for (const Use use : {Use::plugin, Use::collective}) {
    std::optional<test::NoThreads> none(std::in_place);
    const auto without_thread = open_provider(params, use);
    none.reset();
    // Expect:
    ASSERT_FALSE(without_thread);
    EXPECT_EQ(without_thread.failure(),
              "the software HCA: " + (*whole)->library_path() +
                  " shows no active port: noria0 cannot be opened: Resource temporarily "
                  "unavailable; raise the limit of processes (ulimit -u), or the container's");
    const test::NoDescriptors no_more;
    const auto without_descriptor = open_provider(params, use);
    ASSERT_FALSE(without_descriptor);
    EXPECT_EQ(without_descriptor.failure(),
              "the software HCA: " + (*whole)->library_path() +
                  " shows no active port: noria0 cannot be opened: Too many open files; raise the "
                  "limit of open files (ulimit -n)");
  }
  EXPECT_TRUE(open_provider(params, Use::plugin).is_ok());
}

TEST(Provider, A_software_HCA_that_cannot_be_loaded_is_refused_with_the_loaders_words) {
  Params params;
  params.soft = true;
  const test::NoDescriptors none;
  const auto refused = open_provider(params, Use::plugin);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().find("the software HCA cannot be loaded: "), 0u) << refused.failure();
  EXPECT_NE(refused.failure().find("libnoria-softverbs.so: cannot open shared object file: "),
            std::string::npos)
      << refused.failure();
}

ibv_context* refuse_to_open(ibv_device*) {
  errno = EACCES;
  return nullptr;
}
ibv_device** refuse_to_list(int*) {
  errno = EINVAL;
  return nullptr;
}
ibv_device** list_none(int*) {
  errno = ENOSYS;
  return nullptr;
}
int say_nothing(ibv_context*, ibv_device_attr*) { return EIO; }

TEST(Provider, Devices_that_cannot_be_used_are_named_each_with_the_reason) {
  Params params;
  params.soft = true;
  const auto whole = open_provider(params, Use::plugin);
  ASSERT_TRUE(whole) << whole.failure();
  const auto said_with = [&](const auto& change) {
    Symbols symbols = (*whole)->api().symbols();
    change(&symbols);
    return make_provider(Api::from_symbols(symbols), "a library", "", params)->no_active_port();
  };
  // Expect:
  EXPECT_EQ(said_with([](Symbols* s) { s->open_device = &refuse_to_open; }),
            "a library shows no active port: noria0 cannot be opened: Permission denied; this user "
            "must be let at its file below /dev/infiniband");
  EXPECT_EQ(said_with([](Symbols* s) { s->query_device = &say_nothing; }),
            "a library shows no active port: noria0 cannot be asked: Input/output error");
  EXPECT_EQ(said_with([](Symbols* s) { s->get_device_list = &refuse_to_list; }),
            "a library shows no active port: its devices cannot be listed: Invalid argument");
  EXPECT_EQ(said_with([](Symbols* s) { s->get_device_list = &list_none; }),
            "no RDMA device was found by a library");
  EXPECT_EQ(said_with([](Symbols* s) { s->query_gid = &no_gid; }),
            "a library shows no active port: noria0 port 1 is without a GID");
}

TEST(Provider, A_library_that_cannot_relax_the_order_of_writes_is_told_of_unless_nobody_asked) {
  static std::string told;
  Params params;
  params.soft = true;
  const auto whole = open_provider(params, Use::plugin);
  ASSERT_TRUE(whole) << whole.failure();
  Symbols old = (*whole)->api().symbols();
  old.reg_mr_iova2 = nullptr;
  set_log_level(LogLevel::info);
  set_log_sink([](LogLevel, const char* line) { told += std::string(line) + "\n"; });
  const auto told_with = [&](const Symbols& symbols, const char* wish) {
    told.clear();
    params.relaxed_ordering = wish;
    make_provider(Api::from_symbols(symbols), "a library", "", params);
    return told.find("writes keep their order on the bus: a library has no ibv_reg_mr_iova2") !=
           std::string::npos;
  };
  // Expect:
  EXPECT_TRUE(told_with(old, "auto")) << told;
  EXPECT_FALSE(told_with(old, "off")) << told;
  EXPECT_FALSE(told_with((*whole)->api().symbols(), "auto")) << told;
  set_log_sink(&detail::write_to_stderr);
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
