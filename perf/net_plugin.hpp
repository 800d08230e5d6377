// A net plugin of any maker, found, loaded and initialised as NCCL does, with one of its devices.
//
// A name is what NCCL_NET_PLUGIN takes: a path, a soname, or NAME for libnccl-net-NAME.so. None is
// noria's, which lies beside the tools. It, and it alone, is told to use the software HCA where it
// shows no device and says that this would help, and notice() says so.
//
// Threads: one at a time; it logs from any.
#pragma once

#include <memory>
#include <string>

#include "base/dl.hpp"
#include "perf/exit_codes.hpp"
#include "plugin/abi/caller.hpp"

namespace noria::perf {

namespace abi = plugin::abi;

struct NetPluginChoice {
  std::string plugin;      // empty: noria's
  int version = 0;         // of the table; 0: the highest there is
  std::string device;      // index or name; empty: the first
  bool shows_log = false;  // on standard error, INFO too
};

class NetPlugin {
 public:
  // Throws ToolError: usage where the name leads to no plugin or no such device, environment where
  // the plugin does not start or shows no device.
  explicit NetPlugin(const NetPluginChoice& choice);
  ~NetPlugin();
  NetPlugin(const NetPlugin&) = delete;
  NetPlugin& operator=(const NetPlugin&) = delete;

  abi::Caller& net() const { return *net_; }
  void* context() const { return context_; }
  int device() const { return device_; }

  const std::string& path() const { return library_->path(); }
  int version() const { return version_; }
  const std::string& device_name() const { return device_name_; }
  int speed_mbps() const { return speed_mbps_; }
  // What the user should know of the choice; mostly empty.
  const char* notice() const { return notice_; }

 private:
  void load(const std::string& file, int version);
  void unload();
  int count_devices() const;
  void choose_device(const std::string& wanted, int count);

  std::unique_ptr<SharedObject> library_;
  std::unique_ptr<abi::Caller> net_;
  void* context_ = nullptr;
  int version_ = 0;
  int device_ = 0;
  std::string device_name_;
  int speed_mbps_ = 0;
  const char* notice_ = "";
};

// What a function of the plugin answered, and the last line that it wrote to NCCL's log.
ToolError net_error(const std::string& function, abi::Result result);
// Throws it unless the result is success.
inline void require_net(abi::Result result, const char* function) {
  if (result != abi::Result::success) throw net_error(function, result);
}

}  // namespace noria::perf
