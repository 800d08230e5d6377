#include "perf/machine_check.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>

#include "base/params.hpp"
#include "plugin/tuner/table.hpp"
#include "verbs/api.hpp"
#include "verbs/transport/interfaces.hpp"
#include "verbs/transport/limits.hpp"
#include "verbs/transport/peer_memory.hpp"

namespace noria::perf {
namespace {

Finding check_variables(const Machine& machine) {
  if (!machine.bad_variable.empty())
    return {"variables", machine.bad_variable, "unset it, or set what it takes"};
  if (machine.is_disabled)
    return {"variables", "NORIA_DISABLE turns the NCCL plugin off", "unset it to use noria"};
  return {"variables", "every one is as it should be", ""};
}

Finding check_tuner(const Machine& machine) {
  if (machine.bad_table.empty())
    return {"tuner", machine.tuner_table + ": " + std::to_string(machine.tuner_rows) + " rows", ""};
  return {"tuner", "the tuner leaves all choices to NCCL: " + machine.bad_table,
          "mend the table (noria_tune check FILE), or unset NORIA_TUNER_TABLE"};
}

Finding check_library(const Machine& machine) {
  if (!machine.no_provider.empty())
    return {"library", "the NCCL plugin is off: " + machine.no_provider, "do as it says"};
  return {"library", machine.library + (machine.is_software ? " (software HCA)" : ""), ""};
}

Finding check_ports(const Machine& machine) {
  if (machine.ports.empty())
    return {"ports", "there is no RDMA device",
            "load its driver (ibv_devices lists what it shows), or set NORIA_SOFT=1 to use the "
            "software HCA"};
  std::string down;
  size_t active = 0;
  for (const verbs::PortInfo& port : machine.ports) {
    if (port.is_active)
      ++active;
    else
      down += (down.empty() ? "; " : ", ") + port.name() + " is " + port.state;
  }
  Finding finding{
      "ports",
      std::to_string(active) + " of " + std::to_string(machine.ports.size()) + " are active" + down,
      ""};
  if (active == 0)
    finding.remedy = "look at cables and switches, and whether the subnet manager runs (ibstat)";
  return finding;
}

// How peers reach an active port.
Finding check_address(const verbs::PortInfo& port, bool wants_roce_v1) {
  Finding finding{"address", port.name() + ": ", ""};
  if (!port.is_ethernet) {
    finding.says += "LID " + std::to_string(port.lid);
    if (port.lid == 0) finding.remedy = "start a subnet manager: it gives the LID";
    return finding;
  }
  finding.says +=
      "GID " + std::to_string(port.gid_index) + " " + port.gid + " (" + port.gid_type + ")";
  if (port.gid.starts_with("fe80:"))
    finding.remedy = "give its interface an address: this one reaches no further than the link";
  else if (std::string_view(port.gid_type) == "RoCE v1" && !wants_roce_v1)
    finding.remedy =
        "set the device to RoCE v2 (cma_roce_mode), or NORIA_ROCE_VERSION=1 where v1 is meant";
  return finding;
}

Finding check_mtu(const verbs::PortInfo& port) {
  Finding finding{"mtu",
                  port.name() + ": " + std::to_string(port.mtu_bytes) + " of " +
                      std::to_string(port.max_mtu_bytes),
                  ""};
  if (port.mtu_bytes >= port.max_mtu_bytes) return finding;
  finding.remedy = port.is_ethernet
                       ? "raise the MTU of its interface, and of the switches, to " +
                             std::to_string(port.max_mtu_bytes) + " and what headers take (9000)"
                       : "raise the MTU of its partition in the subnet manager";
  return finding;
}

Finding check_interface(const Machine& machine) {
  if (machine.no_interface.empty()) return {"interface", "peers call at " + machine.interface, ""};
  return {"interface", "the NCCL plugin is off: " + machine.no_interface,
          "set NORIA_SOCKET_IFNAME to the one that leads to the peers"};
}

Finding check_memlock(const Machine& machine) {
  if (machine.memlock_bytes == transport::Limits::kNone) return {"memlock", "no limit", ""};
  Finding finding{"memlock", std::to_string(machine.memlock_bytes >> 10) + " KiB may be locked",
                  ""};
  if (machine.is_software)
    finding.says += ", and the software HCA locks none";
  else
    finding.remedy =
        "lift the limit: `ulimit -l unlimited`, memlock in /etc/security/limits.conf, "
        "LimitMEMLOCK=infinity of a systemd unit, or --ulimit memlock=-1 of a container";
  return finding;
}

Finding check_gpu_memory(const Machine& machine) {
  if (!machine.has_nvidia_driver) return {"gpu", "no NVIDIA driver: host memory only", ""};
  std::string ways = machine.peer_memory;
  if (machine.has_dmabuf) ways += (ways.empty() ? "" : " and ") + std::string("dmabuf");
  if (!ways.empty()) return {"gpu", "memory of GPUs by " + ways, ""};
  return {"gpu", "memory of GPUs cannot be registered: neither a peer memory module nor dmabuf",
          "modprobe nvidia_peermem, or take rdma-core 34 and kernel 5.12 or later"};
}

bool is_noria(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text == "noria";
}

std::vector<Finding> check_nccl(const Machine& machine) {
  std::vector<Finding> findings;
  const auto add = [&](const char* name, const auto& is_wrong, const char* remedy) {
    const auto found = machine.nccl.find(name);
    if (found == machine.nccl.end() || found->second.empty()) return;
    findings.push_back({"nccl", std::string(name) + "=" + printable(found->second),
                        is_wrong(found->second) ? remedy : ""});
  };
  add(
      "NCCL_NET", [](const std::string& value) { return !is_noria(value); },
      "set NCCL_NET=noria, or unset it: NCCL takes no other net than the one it names");
  add(
      "NCCL_NET_PLUGIN",
      [](const std::string& value) { return value.find("noria") == std::string::npos; },
      "set NCCL_NET_PLUGIN=noria: NCCL does not load this plugin");
  add(
      "NCCL_IB_DISABLE", [](const std::string& value) { return value != "0"; },
      "unset it: it does not turn noria off (NORIA_DISABLE=1 does), and where noria is off NCCL is "
      "left with sockets");
  if (findings.empty())
    findings.push_back(
        {"nccl", "NCCL_NET_PLUGIN is unset: NCCL loads this plugin when it is noria", ""});
  return findings;
}

// What NCCL's variable for a row stands for: the value where noria's own is left out, or nothing
// where it is refused.
std::optional<std::string> value_by_nccl(const char* const* environment, const ParamRow& row) {
  const std::string own = std::string(row.name) + "=";
  std::vector<const char*> others;
  for (const char* const* entry = environment; *entry != nullptr; ++entry)
    if (!std::string_view(*entry).starts_with(own)) others.push_back(*entry);
  others.push_back(nullptr);
  const auto params = load_params(others.data());
  if (params)
    for (const ParamRow& other : param_rows(*params))
      if (std::string_view(other.name) == row.name) return other.value;
  return std::nullopt;
}

void read_tuner_table(const Params& params, Machine* machine) {
  if (!params.tuner || params.tuner_table.empty()) return;
  machine->tuner_table = printable(params.tuner_table);
  const auto table = plugin::tuner::read_table(params.tuner_table);
  if (table)
    machine->tuner_rows = table->rows.size();
  else
    machine->bad_table = printable(table.failure());
}

bool this_process_may_lock_all() {
  std::ostringstream status;
  status << std::ifstream("/proc/self/status").rdbuf();
  struct stat user {};
  if (::stat("/proc/self/ns/user", &user) != 0) return false;
  return may_lock_all(status.str(), user.st_ino);
}

}  // namespace

bool may_lock_all(const std::string& status, uint64_t user_namespace) {
  constexpr unsigned kIpcLock = 14;
  constexpr uint64_t kFirst = 0xeffffffd;  // fixed by the kernel
  if (user_namespace != kFirst) return false;
  std::istringstream lines(status);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("CapEff:"))
      return (std::strtoull(line.c_str() + 7, nullptr, 16) >> kIpcLock & 1) != 0;
  return false;
}

Machine read_machine(const char* const* environment) {
  Machine machine;
  machine.memlock_bytes = this_process_may_lock_all()
                              ? transport::Limits::kNone
                              : transport::Limits::of_this_process().memlock_bytes;
  machine.has_nvidia_driver = std::ifstream("/proc/driver/nvidia/version").good();
  machine.peer_memory = transport::peer_memory_module();
  for (const detail::Variable& variable : detail::split_environment(environment))
    if (variable.name.starts_with("NCCL_"))
      machine.nccl.insert_or_assign(std::string(variable.name), std::string(variable.value));
  const auto params = load_params(environment);
  if (!params) {
    machine.bad_variable = params.failure();
    return machine;
  }
  for (const ParamRow& row : param_rows(*params)) {
    const auto other = machine.nccl.find(row.nccl_name);
    if (row.source != row.name || other == machine.nccl.end()) continue;
    if (!other->second.empty() && value_by_nccl(environment, row) != row.value)
      machine.overridden.push_back(std::string(row.name) + "=" + row.value + " holds, and not " +
                                   other->first + "=" + printable(other->second));
  }
  machine.is_disabled = params->disable;
  if (machine.is_disabled) return machine;
  read_tuner_table(*params, &machine);
  machine.wants_roce_v1 = params->roce_version == 1;
  const auto provider = verbs::open_provider(*params, verbs::Use::plugin);
  if (!provider) {
    machine.no_provider = provider.failure();
    return machine;
  }
  machine.library = (*provider)->library_path();
  machine.is_software = (*provider)->kind() == verbs::ProviderKind::software;
  machine.has_dmabuf = (*provider)->api().symbols().reg_dmabuf_mr != nullptr;
  machine.ports = (*provider)->ports();
  const auto interface = transport::choose_interface(transport::list_interfaces(), *params);
  if (interface)
    machine.interface = interface->name + " " + interface->host;
  else
    machine.no_interface = interface.failure();
  return machine;
}

std::vector<Finding> check_machine(const Machine& machine) {
  std::vector<Finding> findings{check_variables(machine)};
  for (const std::string& both : machine.overridden) findings.push_back({"variables", both, ""});
  const bool is_on = findings[0].is_ok();
  if (is_on && !machine.tuner_table.empty()) findings.push_back(check_tuner(machine));
  if (is_on) findings.push_back(check_library(machine));
  if (is_on && findings.back().is_ok()) {
    findings.push_back(check_ports(machine));
    for (const verbs::PortInfo& port : machine.ports) {
      if (!port.is_active) continue;
      findings.push_back(check_address(port, machine.wants_roce_v1));
      findings.push_back(check_mtu(port));
    }
    findings.push_back(check_interface(machine));
  }
  findings.push_back(check_memlock(machine));
  findings.push_back(check_gpu_memory(machine));
  for (Finding& finding : check_nccl(machine)) findings.push_back(std::move(finding));
  return findings;
}

}  // namespace noria::perf
