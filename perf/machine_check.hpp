// What noria_info --check looks at, and what is wrong with it.
//
// read_machine() asks the system; check_machine() is pure. A finding that is wrong says what to do.
//
// Threads: one.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "verbs/provider.hpp"

namespace noria::perf {

struct Finding {
  std::string name;  // "memlock"
  std::string says;
  std::string remedy;  // empty: nothing is wrong

  bool is_ok() const { return remedy.empty(); }
};

struct Machine {
  std::string bad_variable;  // what load_params() refused; then there is no provider
  bool is_disabled = false;  // by NORIA_DISABLE
  std::string tuner_table;   // what the tuner reads; empty: none
  size_t tuner_rows = 0;
  std::string bad_table;  // why it is refused; the tuner chooses nothing then
  // Of noria's variables and NCCL's for the same that say different things: which of them holds.
  std::vector<std::string> overridden;
  std::string no_provider;  // why the plugin has none; empty where it has
  std::string library;
  bool is_software = false;
  bool has_dmabuf = false;  // the library can register what a GPU exports
  bool wants_roce_v1 = false;
  std::vector<verbs::PortInfo> ports;
  std::string interface;                // at which peers call: "eth0 10.1.2.3"
  std::string no_interface;             // why there is none; the plugin is off then
  uint64_t memlock_bytes = UINT64_MAX;  // UINT64_MAX: no limit, or a process that is free of it
  bool has_nvidia_driver = false;
  std::string peer_memory;                  // the kernel's module; empty: none is loaded
  std::map<std::string, std::string> nccl;  // its variables
};

// Whether the kernel lets a process lock what it wants, whatever the limit: CAP_IPC_LOCK among its
// effective capabilities, as /proc/self/status has them, and in the first user namespace (the
// number of /proc/self/ns/user), for in any other the capability is good for nothing outside.
bool may_lock_all(const std::string& status, uint64_t user_namespace);

Machine read_machine(const char* const* environment);
std::vector<Finding> check_machine(const Machine& machine);

}  // namespace noria::perf
