// The tuner through the built library, asked as NCCL asks, for each version of its interface.

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/units.hpp"
#include "tests/support/nccl_end.hpp"
#include "tests/support/ranks.hpp"
#include "tests/support/tuner_driver.hpp"

namespace noria::test {
namespace {

using plugin::abi::kIgnoredCost;

constexpr const char* kHead = "noria_table,1\n";
// For two nodes of eight ranks and whatever hardware.
std::string row(const std::string& sizes, const std::string& choice,
                const std::string& times = "-,-") {
  return "all_reduce," + sizes + ",2,8,*,*,*,*," + choice + "," + times + ",of this test\n";
}

// A communicator of 16 ranks on two nodes, by a table of its own.
class NcclTuner : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    path_ = testing::TempDir() + "noria_tuner_" + std::to_string(getpid()) + ".csv";
    forget_logged_lines();
  }
  void TearDown() override {
    if (context_ != nullptr) tuner_.finalize(context_);
    unsetenv("NORIA_TUNER_TABLE");
    unsetenv("NORIA_TUNER");
    unsetenv("NCCL_ALGO");
    unsetenv("NCCL_PROTO");
    unlink(path_.c_str());
  }

  void write(const std::string& text) const {
    std::ofstream(path_) << text;
    setenv("NORIA_TUNER_TABLE", path_.c_str(), 1);
  }
  void use(const std::string& rows, size_t nodes = 2,
           plugin::abi::TunerConstants* constants = nullptr) {
    write(kHead + rows);
    context_ = tuner_.init(8 * nodes, nodes, constants);
  }
  Chosen choose(size_t bytes, Collective collective = Collective::all_reduce) {
    return tuner_.choose(context_, collective, bytes, costs_);
  }
  bool was_logged(const std::string& line) const {
    for (const std::string& logged : logged_lines())
      if (contains(logged, line)) return true;
    return false;
  }

  std::string path_;
  TunerPlugin tuner_{GetParam()};
  CostTable costs_{GetParam()};
  void* context_ = nullptr;
};

const Chosen kOfNccl = chosen(Algorithm::tree, Protocol::ll);

TEST_P(NcclTuner, Is_found_by_its_name_in_the_library_of_the_net_plugin) {
  EXPECT_EQ(tuner_.name(), "noria");
  void* const net = dlopen(NORIA_NET_PLUGIN_FILE, RTLD_NOW | RTLD_LOCAL);
  EXPECT_EQ(net, tuner_.library());
  dlclose(net);
}

TEST_P(NcclTuner, The_first_row_that_fits_is_the_choice_and_channels_stay_NCCLs) {
  use(row("1M-4M", "Ring,Simple,0,0") + row("2M-8M", "Ring,LL,12,0"));
  EXPECT_EQ(choose(1_MiB), chosen(Algorithm::ring, Protocol::simple));
  EXPECT_EQ(choose(4_MiB - 1), chosen(Algorithm::ring, Protocol::simple));
  costs_ = CostTable(GetParam());
  EXPECT_EQ(choose(4_MiB), chosen(Algorithm::ring, Protocol::ll, 12));
  costs_ = CostTable(GetParam());
  EXPECT_EQ(choose(8_MiB), kOfNccl);
  EXPECT_EQ(choose(1_MiB, Collective::all_gather), kOfNccl);
}

TEST_P(NcclTuner, Rows_for_other_communicators_and_other_hardware_leave_NCCLs_choice) {
  use("all_reduce,*,4,8,*,*,*,*,Ring,Simple,0,0,-,-,other nodes\n"
      "all_reduce,*,2,4,*,*,*,*,Ring,Simple,0,0,-,-,other ranks\n"
      "all_reduce,*,2,8,8,*,*,*,Ring,Simple,0,0,-,-,other NICs\n"
      "all_reduce,*,2,8,*,ib,*,*,Ring,Simple,0,0,-,-,another link\n"
      "all_reduce,*,2,8,*,*,hopper,*,Ring,Simple,0,0,-,-,a GPU\n"
      "all_reduce,*,2,8,*,*,*,2.22-2.30,Ring,Simple,0,0,-,-,a version\n");
  EXPECT_EQ(choose(1_MiB), kOfNccl);
  EXPECT_TRUE(
      was_logged("2 of 6 rows are for 1 NICs of eth400, a GPU that is not known, NCCL of a "
                 "version that is not known"));
}

TEST_P(NcclTuner, What_NCCL_ignores_stays_ignored_and_the_next_row_is_taken) {
  if (GetParam() == 2) return;  // has no costs
  use(row("*", "NVLSTree,Simple,0,0") + row("*", "Ring,LL,0,0"));
  costs_.of(Algorithm::nvls_tree, Protocol::simple) = kIgnoredCost;
  EXPECT_EQ(choose(1_MiB), chosen(Algorithm::ring, Protocol::ll));
  EXPECT_EQ(costs_.of(Algorithm::nvls_tree, Protocol::simple), kIgnoredCost);
  // NCCL_PROTO=Simple.  Expect: neither row.
  costs_ = CostTable(GetParam());
  costs_.ignore_all_but(Protocol::simple);
  costs_.of(Algorithm::nvls_tree, Protocol::simple) = kIgnoredCost;
  EXPECT_EQ(choose(1_MiB), chosen(Algorithm::tree, Protocol::simple));
}

// As NCCL folds the variables into its costs, where a version has them.
TEST_P(NcclTuner, A_choice_of_the_users_wins_however_it_is_written) {
  for (const auto& [name, value] :
       {std::pair{"NCCL_ALGO", "Tree"}, std::pair{"NCCL_ALGO", "tree,nvls"},
        std::pair{"NCCL_ALGO", "^Ring,CollNetDirect,CollNetChain,NVLS,NVLSTree,PAT"},
        std::pair{"NCCL_ALGO", "ring;allreduce:tree;broadcast:ring"},
        std::pair{"NCCL_PROTO", "^Simple"}, std::pair{"NCCL_PROTO", "Simple;allreduce:ll"}}) {
    setenv(name, value, 1);
    use(row("*", "Ring,Simple,0,0"));
    costs_ = CostTable(GetParam());
    const bool is_algorithm = std::string(name) == "NCCL_ALGO";
    is_algorithm ? costs_.ignore_all_but(Algorithm::tree) : costs_.ignore_all_but(Protocol::ll);
    EXPECT_EQ(choose(1_MiB), kOfNccl) << value;
    EXPECT_EQ(costs_.of(Algorithm::ring, Protocol::simple), kIgnoredCost) << value;
    tuner_.finalize(context_);
    context_ = nullptr;
    unsetenv(name);
  }
}

TEST_P(NcclTuner, Without_costs_only_what_NCCL_always_has_is_chosen) {
  if (GetParam() != 2) return;
  use(row("*", "CollNetChain,Simple,0,0") + row("*", "Ring,LL128,0,0") +
      row("*", "NVLSTree,Simple,0,0"));
  EXPECT_EQ(choose(1_MiB), chosen(Algorithm::nvls_tree, Protocol::simple));
}

TEST_P(NcclTuner, A_gain_below_max_regret_leaves_NCCLs_choice) {
  if (GetParam() == 2) return;  // does not say what NCCL would choose
  use("max_regret,0.1\n" + row("*", "Ring,Simple,0,0", "100,10") +
      row("*", "Tree,LL,0,0", "105,12"));
  // 110 against 117.
  EXPECT_EQ(choose(1_MiB), kOfNccl);
  // 260 against 297.
  EXPECT_EQ(choose(16_MiB), chosen(Algorithm::ring, Protocol::simple));
}

TEST_P(NcclTuner, LL128_is_ignored_over_the_software_HCA) {
  if (GetParam() == 2) return;  // has no costs: a line at the start says what to set
  use(row("*", "Ring,LL128,0,0"));
  costs_.of(Algorithm::tree, Protocol::ll128) = 1;
  EXPECT_EQ(choose(1_MiB), kOfNccl);
  EXPECT_EQ(costs_.of(Algorithm::tree, Protocol::ll128), kIgnoredCost);
  EXPECT_TRUE(was_logged("noria's tuner leaves LL128 out"));
  // Expect: within a node too, where NCCL may be told to go over the net.
  void* const alone = tuner_.init(8, 1);
  costs_ = CostTable(GetParam());
  costs_.of(Algorithm::tree, Protocol::ll128) = 1;
  EXPECT_EQ(tuner_.choose(alone, Collective::all_reduce, 1_MiB, costs_), kOfNccl);
  EXPECT_EQ(costs_.of(Algorithm::tree, Protocol::ll128), kIgnoredCost);
  tuner_.finalize(alone);
}

TEST_P(NcclTuner, LL128_that_the_user_insists_on_is_left_with_one_warning) {
  if (GetParam() == 2) return;
  use("");
  for (int i = 0; i < 3; ++i) {
    costs_ = CostTable(GetParam());
    costs_.ignore_all_but(Protocol::ll128);
    EXPECT_EQ(choose(1_MiB).protocol, static_cast<int>(Protocol::ll128));
  }
  size_t warnings = 0;
  for (const std::string& line : logged_lines())
    warnings += contains(line, "leaves NCCL no protocol but LL128") ? 1 : 0;
  EXPECT_EQ(warnings, 1u);
}

TEST_P(NcclTuner, A_table_that_is_not_understood_leaves_all_choices_and_the_net_alone) {
  use(row("*", "Ring,LL,0,0") + "all_reduce,*,2,8,*,*,*,*,Rong,LL,0,0,-,-,misspelt\n");
  EXPECT_EQ(choose(1_MiB), kOfNccl);
  EXPECT_TRUE(contains(last_warning(), path_ + ":3:26: 'Rong' stands where algorithm"))
      << last_warning();
  const Communicator net(12);
  int devices = 0;
  EXPECT_EQ(net.net->devices(&devices), Result::success);
  EXPECT_EQ(devices, 1);
}

TEST_P(NcclTuner, A_table_that_is_not_there_is_one_warning) {
  setenv("NORIA_TUNER_TABLE", "/nowhere/table.csv", 1);
  context_ = tuner_.init(16, 2);
  EXPECT_EQ(choose(1_MiB), kOfNccl);
  EXPECT_TRUE(contains(last_warning(), "/nowhere/table.csv: cannot be read")) << last_warning();
  // Expect: no other, for a second communicator too.
  void* const second = tuner_.init(16, 2);
  tuner_.finalize(second);
  const std::vector<std::string> lines = logged_lines();
  EXPECT_EQ(std::count_if(lines.begin(), lines.end(),
                          [](const std::string& line) { return line.starts_with("WARN "); }),
            1);
}

// Beside a copy of the library a file stands where the folder would.
TEST_P(NcclTuner,
       A_folder_of_tables_that_cannot_be_read_is_one_warning_with_its_path_and_the_cause) {
  namespace fs = std::filesystem;
  const std::string folder = testing::TempDir() + "noria_tuner_" + std::to_string(getpid());
  ASSERT_TRUE(fs::create_directory(folder));
  const std::string file = folder + "/libnccl-tuner-noria.so";
  fs::copy_file(NORIA_TUNER_PLUGIN_FILE, file);
  const std::string soft = "/libnoria-softverbs.so";  // without a device there is no tuner either
  fs::create_symlink(fs::path(NORIA_TUNER_PLUGIN_FILE).parent_path().string() + soft,
                     folder + soft);
  std::ofstream(folder + "/noria") << "no folder\n";
  {
    const TunerPlugin copy(GetParam(), file.c_str());
    void* const first = copy.init(16, 2);
    copy.finalize(copy.init(16, 2));
    copy.finalize(first);
  }
  fs::remove_all(folder);
  // Expect:
  const std::vector<std::string> lines = logged_lines();
  EXPECT_EQ(std::count_if(lines.begin(), lines.end(),
                          [&](const std::string& line) {
                            return line.starts_with("WARN ") &&
                                   contains(line, folder +
                                                      "/noria/tables: cannot be read: Not a "
                                                      "directory");
                          }),
            1);
}

TEST_P(NcclTuner, Switched_off_it_chooses_nothing) {
  setenv("NORIA_TUNER", "0", 1);
  use(row("*", "Ring,LL,0,0"));
  EXPECT_EQ(choose(1_MiB), kOfNccl);
  EXPECT_EQ(last_warning(), "");
}

TEST_P(NcclTuner, Where_noria_is_off_NCCL_chooses) {
  setenv("NORIA_DISABLE", "1", 1);
  use(row("*", "Ring,LL,0,0"));
  unsetenv("NORIA_DISABLE");
  EXPECT_EQ(choose(1_MiB), kOfNccl);
}

TEST_P(NcclTuner, Whatever_it_is_asked_it_answers_success) {
  use(row("*", "Ring,Simple,0,0"));
  EXPECT_EQ(choose(0), chosen(Algorithm::ring, Protocol::simple));
  EXPECT_EQ(choose(SIZE_MAX), chosen(Algorithm::ring, Protocol::simple));
  costs_ = CostTable(GetParam());
  EXPECT_EQ(choose(1, static_cast<Collective>(14)), kOfNccl);
  // All ignored, and a context that is none.
  costs_.ignore_all_but(static_cast<Protocol>(7));
  if (GetParam() != 2) {
    EXPECT_EQ(choose(1), Chosen());
  }
  costs_ = CostTable(GetParam());
  EXPECT_EQ(tuner_.choose(nullptr, Collective::all_reduce, 1, costs_), kOfNccl);
  tuner_.finalize(nullptr);
  tuner_.with_table([&](const auto& t) {
    if constexpr (requires { t.destroy; })
      EXPECT_EQ(t.init(16, 2, nullptr, nullptr), Result::success);
    else
      EXPECT_EQ(t.init(nullptr, 0, 16, 2, nullptr, nullptr, nullptr), Result::success);
  });
}

TEST_P(NcclTuner, Constants_of_the_table_replace_NCCLs_and_no_others) {
  if (GetParam() < 5) return;  // are not told
  plugin::abi::TunerConstants constants;
  auto* const values = reinterpret_cast<double*>(&constants);
  std::fill_n(values, sizeof constants / sizeof *values, 7.0);
  use("constant,llMaxBws,2,1,45\nconstant,hwLatencies,2,1,2,14.5\n", 2, &constants);
  EXPECT_EQ(constants.ll_max_bws[2][1], 45);
  EXPECT_EQ(constants.hw_latencies[2][1][2], 14.5);
  EXPECT_EQ(std::count(values, values + sizeof constants / sizeof *values, 7.0), 142);
}

TEST_P(NcclTuner, Constants_of_a_table_for_other_hardware_are_not_used) {
  if (GetParam() < 5) return;  // are not told
  plugin::abi::TunerConstants constants{};
  use("constant,llMaxBws,2,1,45\nall_reduce,*,2,8,*,ib,*,*,Ring,LL,0,0,-,-,another link\n", 2,
      &constants);
  EXPECT_EQ(constants.ll_max_bws[2][1], 0);
  EXPECT_TRUE(was_logged("0 of 1 rows are for 1 NICs of eth400"));
}

TEST_P(NcclTuner, A_chunk_is_the_rows_where_it_has_one) {
  if (GetParam() < 6) return;  // is not asked for
  use(row("*", "Ring,Simple,0,256K") + row("*", "Tree,Simple,0,0") + row("*", "Ring,LL128,0,1920"));
  const auto chunk = [&](Algorithm algorithm, Protocol protocol) {
    return tuner_.chunk(context_, Collective::all_reduce, 1_MiB, algorithm, protocol, 4711);
  };
  EXPECT_EQ(chunk(Algorithm::ring, Protocol::simple), 256_KiB);
  EXPECT_EQ(chunk(Algorithm::ring, Protocol::ll128), 1920u);
  EXPECT_EQ(chunk(Algorithm::tree, Protocol::simple), 4711u);
  EXPECT_EQ(chunk(Algorithm::ring, Protocol::ll), 4711u);
  EXPECT_EQ(tuner_.chunk(nullptr, Collective::all_reduce, 1, Algorithm::ring, Protocol::simple, 5),
            5u);
}

TEST_P(NcclTuner, The_GPU_and_NCCLs_version_are_found_where_they_are_loaded) {
  void* const cuda = dlopen(NORIA_FAKE_CUDA_FILE, RTLD_NOW);
  void* const nccl = dlopen(NORIA_FAKE_NCCL_FILE, RTLD_NOW);
  ASSERT_NE(cuda, nullptr) << dlerror();
  ASSERT_NE(nccl, nullptr) << dlerror();
  write(kHead + std::string("all_reduce,*,2,8,1,eth400,hopper,2.30,Ring,LL,0,0,-,-,here\n"
                            "all_reduce,*,2,8,*,*,*,2.22-2.29,Ring,Simple,0,0,-,-,older\n"));
  context_ = tuner_.init(16, 2, nullptr,
                         reinterpret_cast<plugin::abi::Logger>(dlsym(nccl, "fake_nccl_log")));
  EXPECT_EQ(choose(1_MiB), chosen(Algorithm::ring, Protocol::ll));
  tuner_.finalize(context_);
  context_ = nullptr;
  dlclose(nccl);
  dlclose(cuda);
}

TEST_P(NcclTuner, The_tables_that_come_with_noria_are_for_their_hardware_alone) {
  // Ethernet and no GPU.  Expect: none of their rows, and NCCL's choice.
  context_ = tuner_.init(16, 2, nullptr);
  EXPECT_EQ(choose(1_GiB), kOfNccl);
  EXPECT_TRUE(was_logged("of the tables that came with it 0 of "));
  tuner_.finalize(context_);
  context_ = nullptr;
  // A node of 8 NICs that lost one, and a GPU of the kind.  Expect: the choice of 8, and a row of
  // the user's before it.
  forget_logged_lines();
  void* const cuda = dlopen(NORIA_FAKE_CUDA_FILE, RTLD_NOW);
  ASSERT_NE(cuda, nullptr) << dlerror();
  std::string devices;
  for (const char name : {'a', 'b', 'c', 'd', 'e', 'f', 'g'})
    devices += std::string(devices.empty() ? "" : ";") + "name=" + name + ",rate=400,ll=ib";
  setenv("NORIA_SOFT_DEVICES", devices.c_str(), 1);
  costs_ = CostTable(GetParam());
  use(row("2G-", "Ring,LL,0,0"));
  EXPECT_EQ(choose(1_GiB), chosen(Algorithm::nvls_tree, Protocol::simple));
  costs_ = CostTable(GetParam());
  EXPECT_EQ(choose(4_GiB), chosen(Algorithm::ring, Protocol::ll));
  EXPECT_FALSE(was_logged("of the tables that came with it 0 of "));
  tuner_.finalize(context_);
  context_ = nullptr;
  unsetenv("NORIA_SOFT_DEVICES");
  dlclose(cuda);
}

TEST_P(NcclTuner, A_library_that_NCCL_closes_with_communicators_open_goes) {
  use(row("*", "Ring,LL,0,0"));
  context_ = nullptr;  // forgotten
}

INSTANTIATE_TEST_SUITE_P(Versions, NcclTuner, testing::Range(kOldestTuner, kNewestTuner + 1),
                         [](const auto& version) { return "v" + std::to_string(version.param); });

TEST(NcclTunerTables, Ranks_that_would_choose_by_unlike_tables_do_not_connect) {
  const std::string folder = testing::TempDir();
  RankCrew crew(2, [&](int32_t rank, Wire& parent) {
    const std::string path = folder + "noria_unlike_" + std::to_string(getpid()) + ".csv";
    std::ofstream(path) << kHead << row(rank == 0 ? "1M-" : "2M-", "Ring,LL,0,0");
    setenv("NORIA_TUNER_TABLE", path.c_str(), 1);
    const Communicator communicator(12);
    unlink(path.c_str());
    NetHandle handle{};
    void* listener = nullptr;
    void* comm = nullptr;
    Result result = Result::success;
    if (rank == 0) {
      ASSERT_EQ(communicator.net->listen(communicator.context, 0, handle.data(), &listener),
                Result::success);
      parent.send(handle);
    } else {
      handle = parent.recv<NetHandle>();
    }
    const Nanoseconds deadline = now_ns() + 30_s;
    while (result == Result::success && comm == nullptr && now_ns() < deadline)
      result = rank == 0 ? communicator.net->accept(listener, &comm)
                         : communicator.net->connect(communicator.context, 0, handle.data(), &comm);
    // Expect: refused on both sides, with what to do.
    EXPECT_EQ(comm, nullptr);
    EXPECT_EQ(result, Result::invalid_usage);
    EXPECT_TRUE(contains(last_warning(), "fingerprints differ")) << last_warning();
    EXPECT_TRUE(contains(last_warning(), "NORIA_TUNER=0")) << last_warning();
  });
  crew.wire(1).send(crew.wire(0).recv<NetHandle>());
  crew.expect_success();
}

}  // namespace
}  // namespace noria::test
