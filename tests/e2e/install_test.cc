// The installed tree, used by a program that knows nothing of this repository: through pkg-config,
// through CMake, and after the tree was moved.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/scratch_folder.hpp"

namespace {

namespace fs = std::filesystem;

// One rank needs no device: what is shown is that the library is found, linked and loaded.
constexpr const char* kProgram = R"(
#include <noria/bucketing.h>
#include <noria/observe.h>
int main(void) {
  noria_comm_config config = NORIA_COMM_CONFIG_INIT;
  noria_comm* comm = NULL;
  float in[3] = {1, 2, 3}, out[3] = {0, 0, 0};
  config.rank = 0;
  config.size = 1;
  if (noria_comm_create(&config, &comm) != NORIA_OK) return 1;
  if (noria_all_reduce(comm, in, out, 3, NORIA_FLOAT32, NORIA_SUM, NULL, NULL) != NORIA_OK)
    return 2;
  noria_comm_destroy(comm);
  return out[2] == 3 ? 0 : 3;
}
)";

constexpr const char* kProject = R"(
cmake_minimum_required(VERSION 3.20)
project(user LANGUAGES C)
find_package(noria 0.1 REQUIRED)
add_executable(user user.c)
target_link_libraries(user PRIVATE noria::noria)
)";

class InstallTest : public noria::test::ScratchFolder {
 protected:
  void SetUp() override {
    ScratchFolder::SetUp();
    std::ofstream(folder_ / "user.c") << kProgram;
    std::ofstream(folder_ / "CMakeLists.txt") << kProject;
    ASSERT_EQ(run(std::string(NORIA_CMAKE " --install " NORIA_BUILD_DIR " --prefix ") +
                  (folder_ / "first").string()),
              0)
        << log();
    // What works only where it was installed would be found out here.
    fs::rename(folder_ / "first", prefix());
  }

  fs::path prefix() const { return folder_ / "moved"; }

  int run(const std::string& command) const {
    const std::string whole = "cd '" + folder_.string() + "' && { " + command + "; } >log 2>&1";
    return std::system(whole.c_str());
  }
  std::string log() const { return read("log"); }
};

TEST_F(InstallTest, A_c_program_finds_it_through_pkg_config) {
  const std::string pc = (prefix() / NORIA_LIBDIR / "pkgconfig").string();
  const std::string flags = "$(PKG_CONFIG_PATH=" + pc + " pkg-config --cflags --libs noria)";
  ASSERT_EQ(run(NORIA_C_COMPILER " -std=c11 -Wall -Werror -o user user.c " + flags), 0) << log();
  // Expect: the program runs with nothing but the path of the library.
  EXPECT_EQ(run("LD_LIBRARY_PATH=" + (prefix() / NORIA_LIBDIR).string() + " ./user"), 0) << log();
}

TEST_F(InstallTest, The_tuners_tables_lie_beside_the_library) {
  const fs::path tables = prefix() / NORIA_LIBDIR / "noria/tables";
  for (const char* name :
       {"ib400-hopper8-1nic.csv", "ib400-hopper8-4nics.csv", "ib400-hopper8-8nics.csv"})
    EXPECT_TRUE(fs::is_regular_file(tables / name)) << name;
}

TEST_F(InstallTest, The_installed_examples_are_built_as_their_first_lines_say) {
  const std::string pc = (prefix() / NORIA_LIBDIR / "pkgconfig").string();
  const std::string flags = "$(PKG_CONFIG_PATH=" + pc + " pkg-config --cflags --libs noria)";
  const std::string from = (prefix() / NORIA_DOCDIR / "examples/mlp").string();
  const std::string with =
      "NORIA_SOFT=1 LD_LIBRARY_PATH=" + (prefix() / NORIA_LIBDIR).string() + " ";
  // Expect: what the C compiler made trains on two ranks.
  ASSERT_EQ(run(NORIA_C_COMPILER " -std=c11 -o mlp " + from + ".c " + flags + " -lm"), 0) << log();
  EXPECT_EQ(run(with + "./mlp 2"), 0) << log();
  // Expect: and so does what the C++ compiler made.
  ASSERT_EQ(run(NORIA_CXX_COMPILER " -std=c++20 -o mlp " + from + ".cc " + flags), 0) << log();
  EXPECT_EQ(run(with + "./mlp 2"), 0) << log();
}

TEST_F(InstallTest, Python_finds_the_library_that_was_installed_with_its_package) {
  const std::string package = (prefix() / "share/noria/python").string();
  const std::string script = "import noria; print(noria.Communicator(0, 1).size)";
  // Expect: it loads and works without a path of the library, which is the moved tree's own.
  EXPECT_EQ(run("env -u NORIA_LIBRARY PYTHONPATH=" + package + " python3 -c '" + script + "'"), 0)
      << log();
  EXPECT_EQ(log(), "1\n");
}

TEST_F(InstallTest, NCCL_finds_the_tuner_by_a_link_to_its_neighbour) {
  const fs::path folder = prefix() / NORIA_LIBDIR;
  EXPECT_EQ(fs::read_symlink(folder / "libnccl-tuner-noria.so"), "libnccl-net-noria.so");
  EXPECT_TRUE(fs::is_regular_file(folder / "libnccl-tuner-noria.so"));
}

TEST_F(InstallTest, A_cmake_project_finds_noria_noria) {
  ASSERT_EQ(run(NORIA_CMAKE " -B out -DCMAKE_C_COMPILER=" NORIA_C_COMPILER " -DCMAKE_PREFIX_PATH=" +
                prefix().string() + " && " NORIA_CMAKE " --build out"),
            0)
      << log();
  EXPECT_EQ(run("out/user"), 0) << log();
}

TEST_F(InstallTest, The_software_hca_lies_beside_the_libraries) {
  // Expect: where libnoria looks for it, which is its own folder.
  EXPECT_TRUE(fs::exists(prefix() / NORIA_LIBDIR / "libnoria.so"));
  EXPECT_TRUE(fs::exists(prefix() / NORIA_LIBDIR / "libnoria-softverbs.so"));
  EXPECT_TRUE(fs::exists(prefix() / NORIA_LIBDIR / "libnccl-net-noria.so"));
  // Expect: where noria_soft looks for it too.
  EXPECT_EQ(run((prefix() / "bin/noria_soft").string() + " true"), 0) << log();
}

}  // namespace
