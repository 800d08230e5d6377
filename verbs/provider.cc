#include "verbs/provider.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>

#include "base/log.hpp"
#include "verbs/api.hpp"
#include "verbs/device.hpp"

namespace noria::verbs {
namespace {

using Opened = Result<std::shared_ptr<const Provider>, std::string>;

constexpr const char* kSystemLibrary = "libibverbs.so.1";
constexpr const char* kSoftwareLibrary = "libnoria-softverbs.so";

// The software HCA beside the object that contains this code, or in lib/ beside an executable's
// folder; the plain name where neither file is there, so that the failure names it.
std::string software_library_path() {
  Dl_info self{};
  if (dladdr(reinterpret_cast<const void*>(&software_library_path), &self) == 0 ||
      self.dli_fname == nullptr)
    return kSoftwareLibrary;
  std::string folder(self.dli_fname);
  if (folder.find('/') == std::string::npos) {
    // An executable found on PATH is known by its bare name only.
    char link[4096];
    const ssize_t length = readlink("/proc/self/exe", link, sizeof link);
    if (length > 0) folder.assign(link, static_cast<size_t>(length));
  }
  folder.erase(folder.rfind('/') == std::string::npos ? 0 : folder.rfind('/') + 1);
  for (const char* step : {"", "../lib/"}) {
    std::string candidate = folder + step + kSoftwareLibrary;
    if (access(candidate.c_str(), R_OK) == 0) return candidate;
  }
  return folder + kSoftwareLibrary;
}

Opened open_library(const std::string& path, const std::string& notice) {
  auto api = Api::load(path);
  if (!api.is_ok()) return std::move(api).failure();
  return make_provider(std::move(api).value(), path, notice);
}

bool has_active_port(const Provider& provider) {
  return std::any_of(provider.ports().begin(), provider.ports().end(),
                     [](const PortInfo& port) { return port.is_active; });
}

Opened open_software(const std::string& notice) {
  const std::string path = software_library_path();
  Opened opened = open_library(path, notice.empty() ? notice : notice + " (" + path + ")");
  if (!opened.is_ok())
    return "the software HCA cannot be loaded: " + opened.failure() +
           "; it must lie beside noria's own library";
  if (!has_active_port(**opened)) return "the software HCA (" + path + ") shows no active port";
  return opened;
}

}  // namespace

std::shared_ptr<const Provider> make_provider(std::shared_ptr<const Api> api, std::string path,
                                              std::string notice) {
  std::shared_ptr<Provider> provider(new Provider);
  provider->kind_ =
      api->symbols().noria_features != nullptr ? ProviderKind::software : ProviderKind::hardware;
  provider->api_ = std::move(api);
  provider->path_ = std::move(path);
  provider->notice_ = std::move(notice);
  provider->ports_ = list_ports(*provider->api_);
  log(LogLevel::info, "verbs library %s: %zu ports", provider->path_.c_str(),
      provider->ports_.size());
  return provider;
}

Opened open_provider(const Params& params, Use use) {
  if (!params.ibverbs.empty()) {
    Opened opened = open_library(params.ibverbs, "");
    if (!opened.is_ok()) return "NORIA_IBVERBS: " + opened.failure();
    return opened;
  }
  if (params.soft) return open_software("");

  Opened hardware = open_library(kSystemLibrary, "");
  if (hardware.is_ok() && (has_active_port(**hardware) || use == Use::plugin)) return hardware;
  const std::string reason =
      !hardware.is_ok() ? hardware.failure()
      : (*hardware)->ports().empty()
          ? "no RDMA device was found"
          : "no RDMA port is active (first: " + (*hardware)->ports().front().device + ")";
  if (use == Use::plugin) return reason + "; set NORIA_SOFT=1 to use the software HCA";

  Opened software = open_software(reason + ": using the software HCA");
  if (!software.is_ok()) return reason + ", and " + software.failure();
  return software;
}

}  // namespace noria::verbs
