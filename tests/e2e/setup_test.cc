// .ci/setup.sh on machines that this one is not: what is installed, how, and what is said where
// nothing may be. dpkg-query, apt-get, sudo and id are replaced by scripts that write down how they
// were called.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/scratch_folder.hpp"

namespace {

namespace fs = std::filesystem;

class SetupTest : public noria::test::ScratchFolder {
 protected:
  void SetUp() override {
    ScratchFolder::SetUp();
    // Everything but cmake is there, and cmake too once apt-get said so.
    script("dpkg-query",
           "for a; do last=$a; done\n"
           "[ \"$last\" != cmake ] && echo installed\nexit 0\n");
    script("apt-get", "echo \"apt-get $*\" >>calls\n");
    script("id", "echo 0\n");
  }

  void script(const std::string& name, const std::string& body) const {
    const fs::path path = folder_ / name;
    std::ofstream(path) << "#!/bin/sh\ncd '" << folder_.string() << "'\n" << body;
    fs::permissions(path, fs::perms::owner_all);
  }

  // Runs `setup product` in the repository, without a terminal; the exit code.
  int setup() const {
    const std::string command = "cd '" NORIA_SOURCE_DIR "' && PATH='" + folder_.string() +
                                "':/usr/bin:/bin bash -c 'set -euo pipefail; "
                                "source .ci/setup.sh; setup product' </dev/null >'" +
                                (folder_ / "said").string() + "' 2>&1";
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
};

TEST_F(SetupTest, Nothing_is_run_when_nothing_is_missing) {
  script("dpkg-query", "echo installed\n");
  EXPECT_EQ(setup(), 0) << read("said");
  EXPECT_EQ(read("calls"), "");
}

TEST_F(SetupTest, Root_installs_what_is_missing_and_nothing_else) {
  EXPECT_EQ(setup(), 0) << read("said");
  const std::string calls = read("calls");
  EXPECT_NE(calls.find("install -y --no-install-recommends cmake\n"), std::string::npos) << calls;
  EXPECT_EQ(calls.find("update"), std::string::npos) << calls;
}

TEST_F(SetupTest, Lists_of_packages_are_fetched_when_the_install_fails) {
  script("apt-get",
         "echo \"apt-get $*\" >>calls\n"
         "case \"$*\" in *update*) touch updated; exit 0 ;; esac\n"
         "[ -f updated ]\n");
  EXPECT_EQ(setup(), 0) << read("said");
  EXPECT_NE(read("calls").find("update"), std::string::npos) << read("calls");
}

TEST_F(SetupTest, A_failed_install_is_shown_with_what_to_type) {
  script("apt-get", "echo 'E: no network'\nexit 100\n");
  EXPECT_EQ(setup(), 3);
  EXPECT_NE(read("said").find("E: no network"), std::string::npos) << read("said");
  EXPECT_NE(read("said").find("install -y --no-install-recommends cmake"), std::string::npos);
}

TEST_F(SetupTest, A_user_who_would_need_a_password_is_told_what_is_lacking) {
  script("id", "echo 1000\n");
  script("sudo", "exit 1\n");
  EXPECT_EQ(setup(), 3);
  EXPECT_NE(read("said").find("lacking: cmake"), std::string::npos) << read("said");
  EXPECT_EQ(read("calls"), "");
}

TEST_F(SetupTest, A_user_with_sudo_installs_through_it) {
  script("id", "echo 1000\n");
  script("sudo",
         "[ \"$1\" = -n ] && exit 0\n"
         "echo \"sudo $*\" >>calls\n");
  EXPECT_EQ(setup(), 0) << read("said");
  EXPECT_NE(read("calls").find("sudo env"), std::string::npos) << read("calls");
}

}  // namespace
