#include "verbs/provider.hpp"

#include <unistd.h>

#include <algorithm>

#include "base/hca_filter.hpp"
#include "base/log.hpp"
#include "base/own_folder.hpp"
#include "verbs/api.hpp"
#include "verbs/device.hpp"
#include "verbs/fork_safety.hpp"

namespace noria::verbs {
namespace {

using Opened = Result<std::shared_ptr<const Provider>, std::string>;

constexpr const char* kSystemLibrary = "libibverbs.so.1";
constexpr const char* kSoftwareLibrary = "libnoria-softverbs.so";

// The software HCA beside the object that contains this code, or in lib/ beside an executable's
// folder; the plain name where neither file is there, so that the failure names it.
std::string software_library_path() {
  const std::string folder = own_folder(reinterpret_cast<const void*>(&software_library_path));
  for (const char* step : {"", "../lib/"}) {
    std::string candidate = folder + step + kSoftwareLibrary;
    if (access(candidate.c_str(), R_OK) == 0) return candidate;
  }
  return folder + kSoftwareLibrary;
}

Opened open_library(const std::string& path, const std::string& notice, const Params& params) {
  auto api = Api::load(path);
  if (!api.is_ok()) return std::move(api).failure();
  return make_provider(std::move(api).value(), path, notice, params);
}

bool has_active_port(const Provider& provider) {
  return std::any_of(provider.ports().begin(), provider.ports().end(),
                     [](const PortInfo& port) { return port.is_active; });
}

// There are ports, and the filter takes none of them.
bool takes_none(const Provider& provider) {
  return provider.ports().empty() && !provider.ports_left_out().empty();
}

Opened open_software(const std::string& notice, const Params& params) {
  const std::string path = software_library_path();
  Opened opened = open_library(path, notice.empty() ? notice : notice + " (" + path + ")", params);
  if (!opened.is_ok())
    return "the software HCA cannot be loaded: " + opened.failure() +
           "; it must lie beside noria's own library";
  if (!has_active_port(**opened) && !takes_none(**opened))
    return "the software HCA: " + (*opened)->no_active_port();
  return opened;
}

// What is chosen before it is asked whether its ports are as they were asked for.
Opened choose_provider(const Params& params, Use use) {
  if (!params.ibverbs.empty()) {
    Opened opened = open_library(params.ibverbs, "", params);
    if (!opened.is_ok()) return "NORIA_IBVERBS: " + opened.failure();
    return opened;
  }
  if (params.soft) return open_software("", params);

  Opened hardware = open_library(kSystemLibrary, "", params);
  if (hardware.is_ok() &&
      (has_active_port(**hardware) || use == Use::plugin || takes_none(**hardware)))
    return hardware;
  const std::string reason = !hardware.is_ok() ? hardware.failure() : (*hardware)->no_active_port();
  if (use == Use::plugin) return reason + "; set NORIA_SOFT=1 to use the software HCA";

  Opened software = open_software(reason + ": using the software HCA", params);
  if (!software.is_ok()) return reason + ", and " + software.failure();
  return software;
}

bool can_relax_ordering(const Api& api) { return api.symbols().reg_mr_iova2 != nullptr; }
std::string no_relaxed_ordering(const std::string& library) {
  return library +
         " has no ibv_reg_mr_iova2 to ask for relaxed ordering; rdma-core 28 or later has";
}

// Empty, or what was asked for and is not there.
std::string find_fault(const Provider& provider, const Params& params) {
  if (takes_none(provider)) {
    std::string there;
    for (const PortInfo& port : provider.ports_left_out())
      there += (there.empty() ? "" : ", ") + port.name();
    return variable_of(params, ParamId::hca) + ": '" + params.hca + "' takes no port of " +
           provider.library_path() + "; there is " + there + " (NORIA_HCA= takes all)";
  }
  for (const PortInfo& port : provider.ports())
    if (port.is_active && !port.fault.empty()) return port.fault;
  if (params.relaxed_ordering == "on" && !can_relax_ordering(provider.api()))
    return variable_of(params, ParamId::relaxed_ordering) + ": " +
           no_relaxed_ordering(provider.library_path());
  return "";
}

}  // namespace

std::string Provider::no_active_port() const {
  if (ports_.empty() && refused_.empty()) return "no RDMA device was found by " + path_;
  std::string said = path_ + " shows no active port";
  const char* between = ": ";
  for (const PortInfo& port : ports_) {
    said += between + port.name() + " is " + port.state;
    between = ", ";
  }
  for (const std::string& device : refused_) {
    said += between + device;
    between = ", ";
  }
  return said;
}

std::shared_ptr<const Provider> make_provider(std::shared_ptr<const Api> api, std::string path,
                                              std::string notice, const Params& params) {
  std::shared_ptr<Provider> provider(new Provider);
  provider->kind_ =
      api->symbols().noria_features != nullptr ? ProviderKind::software : ProviderKind::hardware;
  provider->api_ = std::move(api);
  provider->path_ = std::move(path);
  provider->notice_ = std::move(notice);
  provider->rules_ = port_rules(params);
  // A filter that cannot be read has refused the start before; then no port is taken.
  const auto filter = HcaFilter::parse(params.hca);
  PortList list = list_ports(*provider->api_, provider->rules_);
  provider->refused_ = std::move(list.refused);
  for (PortInfo& port : list.ports) {
    const bool is_taken = filter && filter->takes(port.device, port.port);
    if (const auto* said = is_taken ? filter->says(port.device, port.port) : nullptr) {
      port.rail = static_cast<int16_t>(said->rail);
      port.plane = static_cast<int16_t>(said->plane);
    }
    (is_taken ? provider->ports_ : provider->left_out_).push_back(std::move(port));
  }
  log(LogLevel::info, "verbs library %s: %zu ports", provider->path_.c_str(),
      provider->ports_.size());
  if (params.relaxed_ordering != "off" && !can_relax_ordering(*provider->api_))
    log(LogLevel::info, "writes keep their order on the bus: %s",
        no_relaxed_ordering(provider->path_).c_str());
  return provider;
}

Opened open_provider(const Params& params, Use use) {
  Opened opened = choose_provider(params, use);
  if (!opened) return opened;
  if (std::string fault = find_fault(**opened, params); !fault.empty()) return fault;
  // Without a port nothing is registered, and the library keeps for good what it then allocates.
  if (!(*opened)->ports().empty()) make_fork_safe((*opened)->api());
  for (const PortInfo& port : (*opened)->ports())
    if (!port.is_active) log(LogLevel::info, "%s is %s: not used", port.name().c_str(), port.state);
  for (const PortInfo& port : (*opened)->ports_left_out())
    log(LogLevel::info, "%s is left out by %s", port.name().c_str(),
        variable_of(params, ParamId::hca).c_str());
  return opened;
}

}  // namespace noria::verbs
