#include "perf/net_plugin.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "base/mutex.hpp"
#include "perf/command_line.hpp"
#include "perf/machine.hpp"
#include "plugin/abi/log_text.hpp"

namespace noria::perf {
namespace {

constexpr const char* kOurs = "libnccl-net-noria.so";

// The plugin's log: NCCL's logger has no place for a pointer of ours.
struct Log {
  Mutex mutex;
  std::string last_line NORIA_GUARDED_BY(mutex);
  std::string last_warning NORIA_GUARDED_BY(mutex);
  bool is_shown NORIA_GUARDED_BY(mutex) = false;
};
Log& the_log() {
  static Log log;
  return log;
}

void log_line(abi::LogLevel level, unsigned long, const char*, int, const char* format, ...) {
  va_list args;
  va_start(args, format);
  const std::string text = abi::log_text(format, args);
  va_end(args);
  Log& log = the_log();
  const MutexLock lock(log.mutex);
  log.last_line = text;
  if (level == abi::LogLevel::warn) log.last_warning = text;
  if (log.is_shown)
    std::fprintf(stderr, "%s %s\n", level == abi::LogLevel::warn ? "WARN" : "INFO", text.c_str());
}

std::string last_warning() {
  const MutexLock lock(the_log().mutex);
  return the_log().last_warning;
}

// Why there is no device: a plugin that was told to show none warns of nothing.
std::string last_reason() {
  const MutexLock lock(the_log().mutex);
  return !the_log().last_warning.empty() ? the_log().last_warning : the_log().last_line;
}

// What noria's plugin advises where there is no hardware. A bad setting would be as bad over it.
bool would_software_help() { return last_warning().find("set NORIA_SOFT=1") != std::string::npos; }

const char* name_of(abi::Result result) {
  switch (result) {
    case abi::Result::success: return "ncclSuccess";
    case abi::Result::system_error: return "ncclSystemError";
    case abi::Result::internal_error: return "ncclInternalError";
    case abi::Result::invalid_argument: return "ncclInvalidArgument";
    case abi::Result::invalid_usage: return "ncclInvalidUsage";
    case abi::Result::remote_error: return "ncclRemoteError";
  }
  return "a result that NCCL does not know";
}

std::string beside_the_tool(const std::string& file) {
  for (const char* folder : {"../lib/", "../" NORIA_LIBDIR "/"})
    if (std::string path = own_folder() + folder + file; ::access(path.c_str(), R_OK) == 0)
      return path;
  return file;
}

// In the order in which NCCL tries them; what lies beside the tool comes last.
std::vector<std::string> files_of(const std::string& plugin) {
  if (plugin.empty()) return {beside_the_tool(kOurs)};
  std::vector<std::string> files{plugin};
  const bool is_soname = plugin.starts_with("lib") && plugin.ends_with(".so");
  if (plugin.find('/') == std::string::npos && !is_soname) {
    const std::string soname = "libnccl-net-" + plugin + ".so";
    files.push_back(soname);
    files.push_back(beside_the_tool(soname));
  }
  return files;
}

std::unique_ptr<SharedObject> open_library(const std::string& plugin) {
  std::string why;
  for (const std::string& file : files_of(plugin)) {
    auto opened = SharedObject::open(file);
    if (opened) return std::make_unique<SharedObject>(std::move(*opened));
    why = opened.failure();
  }
  throw usage_error("--plugin: " + why + "; it takes a path, or NAME of libnccl-net-NAME.so");
}

}  // namespace

ToolError net_error(const std::string& function, abi::Result result) {
  const std::string warning = last_warning();
  return ToolError(
      result == abi::Result::remote_error ? Exit::peer : Exit::environment,
      printable(function + ": " + name_of(result) + " (" +
                std::to_string(static_cast<int>(result)) + ")" +
                (warning.empty() ? "; the plugin logged no warning" : ": " + warning)));
}

NetPlugin::NetPlugin(const NetPluginChoice& choice) {
  const Params params = params_of_environment();
  {
    const MutexLock lock(the_log().mutex);
    the_log().is_shown = choice.shows_log;
  }
  load(choice.plugin, choice.version);
  int count = count_devices();
  if (count == 0 && choice.plugin.empty() && params.ibverbs.empty() && would_software_help()) {
    notice_ = "no RDMA device is active; the software HCA is used";
    unload();
    ::setenv("NORIA_SOFT", "1", 1);
    load(choice.plugin, choice.version);
    count = count_devices();
  }
  if (count == 0) {
    const std::string reason = last_reason();
    const std::string text =
        printable(path() + " shows no device" + (reason.empty() ? "" : ": " + reason));
    unload();
    throw ToolError(Exit::environment, text);
  }
  try {
    choose_device(choice.device, count);
  } catch (...) {
    unload();
    throw;
  }
}

NetPlugin::~NetPlugin() { unload(); }

void NetPlugin::load(const std::string& plugin, int version) {
  library_ = open_library(plugin);
  const int oldest = version != 0 ? version : abi::kOldestVersion;
  const int newest = version != 0 ? version : abi::kNewestVersion;
  for (version_ = newest; version_ >= oldest && net_ == nullptr; --version_)
    if (const void* table = library_->find(abi::table_symbol(version_).c_str()); table != nullptr)
      net_ = abi::make_caller(version_, table);
  ++version_;
  if (net_ == nullptr)
    throw usage_error(version != 0
                          ? "--abi: " + path() + " has no " + abi::table_symbol(version)
                          : "--plugin: " + path() + " is no net plugin: it has none of " +
                                abi::table_symbol(oldest) + " to _v" + std::to_string(newest));
  if (const abi::Result result = net_->init(&context_, log_line); result != abi::Result::success) {
    net_.reset();
    throw net_error("init", result);
  }
}

void NetPlugin::unload() {
  // Nothing to do about a failure: all that was measured is told already.
  if (net_ != nullptr && net_->has_finalize()) static_cast<void>(net_->finalize(context_));
  net_.reset();
  context_ = nullptr;
  library_.reset();
}

int NetPlugin::count_devices() const {
  int count = 0;
  // NCCL disables a plugin for either, and goes on with the next one.
  return net_->devices(&count) == abi::Result::success ? std::max(count, 0) : 0;
}

void NetPlugin::choose_device(const std::string& wanted, int count) {
  std::string names;
  for (int device = 0; device < count; ++device) {
    abi::PropertiesV12 properties{};
    require_net(net_->get_properties(device, std::byte{0}, &properties, {}), "getProperties");
    const std::string name = properties.name != nullptr ? properties.name : "";
    names += (names.empty() ? "" : ", ") + std::to_string(device) + " (" + name + ")";
    if (!wanted.empty() && wanted != name && wanted != std::to_string(device)) continue;
    device_ = device;
    device_name_ = name;
    speed_mbps_ = properties.speed_mbps;
    return;
  }
  throw usage_error("-d: there is no device '" + wanted + "'; there are " + names);
}

}  // namespace noria::perf
