// Provider: the verbs library this process uses, and the devices it shows.
//
// Order of choice: NORIA_IBVERBS names a library; NORIA_SOFT=1 takes the software HCA that lies
// beside our own library; libibverbs.so.1 if it shows a port that is ACTIVE; then, for
// Use::collective only, the software HCA. Use::plugin never falls back to it by itself, so that a
// cluster whose NICs vanished falls back to NCCL's own sockets instead of crawling.
//
// Of its ports those count that NORIA_HCA takes. What was asked for and is not there refuses the
// choice: a filter that takes no port, a GID or a partition key that an active port lacks.
// A RoCE port without any GID, as one whose interface is in another network namespace, is as good
// as down.
//
// Threads: open_provider() init only; the result is immutable and shared.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/params.hpp"
#include "base/result.hpp"
#include "verbs/port_rules.hpp"

namespace noria::verbs {

class Api;

enum class Use { plugin, collective };
enum class ProviderKind : uint8_t { hardware = 1, software = 2 };

struct PortInfo {
  std::string device;  // "mlx5_0"
  uint8_t port = 1;
  bool is_active = false;    // and can be reached
  const char* state = "";    // in words
  bool is_ethernet = false;  // RoCE: addressed by GID; else InfiniBand: by LID
  uint32_t speed_mbps = 0;
  uint32_t pcie_mbps = 0;  // what its bus carries; 0: not known
  uint16_t lid = 0;
  uint32_t mtu_bytes = 0, max_mtu_bytes = 0;
  int numa_node = -1;
  std::string sysfs_path;  // where ibv_device.ibdev_path points
  // How peers reach it, or why it cannot be used as it was asked for.
  uint32_t gid_index = 0;
  std::string gid, fault;
  const char* gid_type = "";
  // Of the fabric's planes, where NORIA_HCA says it.
  int16_t rail = -1, plane = -1;

  std::string name() const { return device + " port " + std::to_string(port); }
};

class Provider {
 public:
  ProviderKind kind() const { return kind_; }
  const Api& api() const { return *api_; }
  const std::string& library_path() const { return path_; }
  // Those that NORIA_HCA takes, in the order of the devices.
  const std::vector<PortInfo>& ports() const { return ports_; }
  const std::vector<PortInfo>& ports_left_out() const { return left_out_; }
  const PortRules& rules() const { return rules_; }
  // For people, where no port is active: what each port and each device is instead, as
  // "libibverbs.so.1 shows no active port: mlx5_0 cannot be opened: Permission denied; ...".
  std::string no_active_port() const;
  // One line for people when the choice needs saying, as "no RDMA device was found by
  // libibverbs.so.1: using the software HCA (…/libnoria-softverbs.so)"; empty otherwise.
  const std::string& notice() const { return notice_; }

 private:
  friend std::shared_ptr<const Provider> make_provider(std::shared_ptr<const Api> api,
                                                       std::string path, std::string notice,
                                                       const Params& params);
  Provider() = default;
  std::shared_ptr<const Api> api_;
  PortRules rules_;
  std::vector<PortInfo> ports_, left_out_;
  std::vector<std::string> refused_;  // devices, each with the reason
  std::string path_, notice_;
  ProviderKind kind_ = ProviderKind::hardware;
};

// The failure is one line that says what was tried and what to do.
Result<std::shared_ptr<const Provider>, std::string> open_provider(const Params& params, Use use);

// A provider of a library that is loaded already, as a test's own table of functions.
std::shared_ptr<const Provider> make_provider(std::shared_ptr<const Api> api, std::string path,
                                              std::string notice, const Params& params);

}  // namespace noria::verbs
