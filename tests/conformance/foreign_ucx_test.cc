// UCX at its transport level runs on the software HCA to a clean end: ucx_perftest over rc_verbs
// between two processes.
//
// UCX uses a device only where /dev/infiniband has a character device of its name that may be read
// and written. It never opens it. This test gives it one in a mount namespace of its own, so that
// no name is left behind; where the kernel allows none, it is skipped (77).
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <sstream>

#include "tests/support/foreign_pair.hpp"

namespace noria::perf {
namespace {

// As root; or in a user namespace, which must know user and group to make files.
bool enter_mount_namespace() {
  const std::string user = std::to_string(::geteuid()), group = std::to_string(::getegid());
  if (::unshare(CLONE_NEWNS) != 0) {
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
    std::ofstream("/proc/self/uid_map") << user + ' ' + user + " 1";
    std::ofstream("/proc/self/setgroups") << "deny";
    std::ofstream("/proc/self/gid_map") << group + ' ' + group + " 1";
  }
  return ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

bool bind(const std::string& from, const std::string& to) {
  return ::mount(from.c_str(), to.c_str(), nullptr, MS_BIND | MS_REC, nullptr) == 0;
}
bool bind_file(const std::string& from, const std::string& to) {
  ::close(::open(to.c_str(), O_CREAT | O_CLOEXEC, 0600));
  return bind(from, to);
}
bool bind_directory(const std::string& from, const std::string& to) {
  return ::mkdir(to.c_str(), 0755) == 0 && bind(from, to);
}

// A /dev with what programs need of the old one, and /dev/infiniband beside it.
bool make_device_nodes() {
  const int old = ::open("/dev", O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (::mount("tmpfs", "/dev", "tmpfs", 0, "mode=0755") != 0) return false;
  const std::string before = "/proc/self/fd/" + std::to_string(old);
  bool is_good = ::mkdir("/dev/infiniband", 0755) == 0;
  for (const std::string name : {"/null", "/zero", "/random", "/urandom"})
    is_good = bind_file(before + name, "/dev" + name) && is_good;
  is_good = bind_directory(before + "/shm", "/dev/shm") && is_good;
  return bind_file(before + "/null", "/dev/infiniband/uverbs_noria0") && is_good;
}

struct Run {
  const char* name;
  const char* words;
};
class ForeignUcx : public testing::TestWithParam<Run> {};

// What it counted, of the line that begins so; 0 if there is none.
uint64_t iterations_of(const std::string& out) {
  for (const std::string& line : lines_of(out)) {
    std::istringstream row(line);
    std::string first;
    uint64_t count = 0;
    if (row >> first >> count && first == "Final:") return count;
  }
  return 0;
}

TEST_P(ForeignUcx, Ends_well_on_both_sides) {
  NORIA_SKIP_WITHOUT("ucx_perftest");
  std::vector<std::string> words = words_of("ucx_perftest -d noria0:1 -x rc_verbs -n 500 -w 50 -t");
  for (const std::string& word : words_of(GetParam().words)) words.push_back(word);
  const Ends ends = run_pair_of(words);
  EXPECT_EQ(ends.server.exit_code, 0) << ends.server.out << ends.server.err;
  EXPECT_EQ(ends.client.exit_code, 0) << ends.client.out << ends.client.err;
  EXPECT_EQ(iterations_of(ends.client.out), 500U) << ends.client.out << ends.client.err;
}

INSTANTIATE_TEST_SUITE_P(Each, ForeignUcx,
                         testing::Values(Run{"put_bw", "put_bw"},
                                         Run{"put_bw_without_a_copy", "put_bw -s 65536 -D zcopy"},
                                         Run{"put_lat", "put_lat"}, Run{"am_lat", "am_lat"},
                                         Run{"am_bw_copied", "am_bw -s 1024 -D bcopy"},
                                         Run{"get_without_a_copy", "get -s 65536 -D zcopy"},
                                         Run{"fetch_add", "fadd"}, Run{"compare_swap", "cswap"}),
                         [](const auto& suite) { return std::string(suite.param.name); });

}  // namespace
}  // namespace noria::perf

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (!noria::perf::enter_mount_namespace() || !noria::perf::make_device_nodes()) {
    std::perror("skipped: no mount namespace with a /dev of its own");
    return 77;
  }
  return RUN_ALL_TESTS();
}
