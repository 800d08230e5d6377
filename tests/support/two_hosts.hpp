// Two hosts on this machine: network namespaces with a wire between them, or several.
//
// Each is a namespace without a name, which lives as long as the process that holds it: it is
// killed with the test, so that nothing is left behind. Host 0 has the addresses 10.77.<wire>.1,
// host 1 10.77.<wire>.2; nothing leads from there to any other network. Wants root.
//
// Threads: one at a time.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace noria::perf {

class TwoHosts {
 public:
  explicit TwoHosts(int wires = 1);
  ~TwoHosts();
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;

  // Why there are none; empty if there are.
  const std::string& failure() const { return failure_; }
  static std::string address(int host, int wire = 0) {
    return "10.77." + std::to_string(wire) + "." + std::to_string(host + 1);
  }
  // `words` with what runs them there. Interfaces there are called wire0, wire1, ...
  std::vector<std::string> on(int host, const std::vector<std::string>& words) const;
  // Whether somebody there listens on the port, within 20 s.
  bool comes_to_listen(int host, uint16_t port) const;
  // Whether so many bytes come over the first wire to host 0, within 20 s.
  bool has_moved(uint64_t bytes) const;
  // Takes host 0 off the wire: nothing passes any more, and connections hear nothing of it.
  void cut(int wire);

 private:
  bool run(const std::string& command);
  // Waits until the kernel says so of the wire at that end.
  void wait_for_wire(int host, int wire, bool is_up);
  pid_t holders_[2] = {-1, -1};
  std::string failure_;
};

}  // namespace noria::perf
