#include "tests/support/two_hosts.hpp"

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/clock.hpp"
#include "base/units.hpp"
#include "tests/support/listening.hpp"

namespace noria::perf {
namespace {

// Its process, once it is in a network of its own; -1 if there is none to be had.
pid_t hold_network() {
  int ready[2];
  if (::pipe(ready) != 0) return -1;
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const bool is_in = ::getppid() == parent && ::unshare(CLONE_NEWNET) == 0;
    if (!is_in || ::write(ready[1], "", 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  ::close(ready[1]);
  char byte = 0;
  const bool is_in = ::read(ready[0], &byte, 1) == 1;
  ::close(ready[0]);
  if (is_in || pid < 0) return pid;
  ::waitpid(pid, nullptr, 0);
  return -1;
}

}  // namespace

TwoHosts::TwoHosts(int wires) {
  for (pid_t& holder : holders_) {
    holder = hold_network();
    if (holder < 0) {
      failure_ = "no network namespace is to be had (not root?)";
      return;
    }
  }
  for (int host = 0; host < 2; ++host)
    run("nsenter -t " + std::to_string(holders_[host]) + " -n ip link set lo up");
  for (int wire = 0; wire < wires; ++wire) {
    const std::string name = "wire" + std::to_string(wire);
    run("ip link add " + name + " netns " + std::to_string(holders_[0]) + " type veth peer name " +
        name + " netns " + std::to_string(holders_[1]));
    for (int host = 0; host < 2; ++host) {
      const std::string there = "nsenter -t " + std::to_string(holders_[host]) + " -n ip ";
      run(there + "addr add " + address(host, wire) + "/24 dev " + name);
      run(there + "link set " + name + " up");
    }
    for (int host = 0; host < 2; ++host) wait_for_wire(host, wire, true);
  }
}

void TwoHosts::wait_for_wire(int host, int wire, bool is_up) {
  run("for i in $(seq 200); do nsenter -t " + std::to_string(holders_[host]) +
      " -n ip -o link show wire" + std::to_string(wire) + " | grep -q 'state UP' " +
      (is_up ? "&&" : "||") + " exit 0; sleep 0.05; done; exit 1");
}

TwoHosts::~TwoHosts() {
  for (const pid_t holder : holders_) {
    if (holder < 0) continue;
    ::kill(holder, SIGKILL);
    ::waitpid(holder, nullptr, 0);
  }
}

bool TwoHosts::run(const std::string& command) {
  if (!failure_.empty()) return false;
  if (std::system(command.c_str()) != 0) failure_ = "failed: " + command;
  return failure_.empty();
}

std::vector<std::string> TwoHosts::on(int host, const std::vector<std::string>& words) const {
  std::vector<std::string> all{"/usr/bin/nsenter", "-t", std::to_string(holders_[host]), "-n"};
  all.insert(all.end(), words.begin(), words.end());
  return all;
}

bool TwoHosts::comes_to_listen(int host, uint16_t port) const {
  const std::string net = "/proc/" + std::to_string(holders_[host]) + "/net";
  for (const Nanoseconds limit = now_ns() + 20_s; now_ns() < limit; ::usleep(1000))
    if (is_listening(port, net)) return true;
  return false;
}

bool TwoHosts::has_moved(uint64_t bytes) const {
  for (const Nanoseconds limit = now_ns() + 20_s; now_ns() < limit; ::usleep(1000)) {
    std::ifstream file("/proc/" + std::to_string(holders_[0]) + "/net/dev");
    std::string name;
    uint64_t received = 0;
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      if (words >> name >> received && name == "wire0:" && received >= bytes) return true;
    }
  }
  return false;
}

void TwoHosts::cut(int wire) {
  run("nsenter -t " + std::to_string(holders_[0]) + " -n ip link set wire" + std::to_string(wire) +
      " down");
  wait_for_wire(1, wire, false);
}

}  // namespace noria::perf
