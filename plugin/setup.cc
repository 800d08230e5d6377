#include "plugin/setup.hpp"

#include <unistd.h>

#include <atomic>
#include <map>

#include "base/log.hpp"
#include "verbs/transport/interfaces.hpp"
#include "verbs/transport/peer_memory.hpp"

namespace noria::plugin {
namespace {

constinit std::atomic<abi::Logger> nccl_logger{nullptr};

void write_to_nccl(LogLevel level, const char* text) {
  const abi::Logger logger = nccl_logger.load(std::memory_order_acquire);  // pairs with the store
  if (logger == nullptr) return;
  const bool is_info = level == LogLevel::info;
  const bool is_named = std::string_view(text).starts_with("noria");
  logger(is_info ? abi::LogLevel::info : abi::LogLevel::warn, abi::kLogInit | abi::kLogNet, "noria",
         0, is_named ? "%s" : "noria: %s", text);
}

// Empty, or why the plugin cannot serve.
std::string find_devices(Setup* setup) {
  auto provider = verbs::open_provider(setup->params, verbs::Use::plugin);
  if (!provider) return provider.failure();
  auto devices = std::make_unique<DeviceTable>(**provider);
  if (devices->count() == 0)
    return (*provider)->no_active_port() + "; set NORIA_SOFT=1 to use the software HCA";
  const auto interface = transport::choose_interface(transport::list_interfaces(), setup->params);
  if (!interface) return interface.failure();
  setup->devices = std::move(devices);
  setup->host = interface->host;
  setup->ports = std::make_unique<transport::OpenPorts>(*provider);
  setup->provider = std::move(*provider);
  return "";
}

// Asks each device, and says once for all that answer alike.
void find_gpu_memory(Setup* setup) {
  const verbs::ProviderKind kind = setup->provider->kind();
  const std::string module = transport::peer_memory_module();
  std::map<std::string, std::string> names;  // by what is said of them
  for (int i = 0; i < setup->devices->count(); ++i) {
    const Device& device = *setup->devices->find(i);
    const auto port = setup->ports->open(device.ports.front());
    const bool takes_dmabuf = port && (*port)->registers_dmabuf();
    const GpuMemory memory = gpu_memory_of(kind, module, takes_dmabuf);
    std::string& alike = names[memory.text];
    alike += (alike.empty() ? "" : ", ") + device.name;
    setup->devices->set_gpu_memory(i, memory,
                                   flushing_of(memory, kind, setup->params.flush_disable));
  }
  std::string text;
  for (const auto& [way, devices] : names) text += (text.empty() ? "" : "; ") + devices + " " + way;
  log(LogLevel::info, "noria: GPU memory: %s", text.c_str());
}

void say_devices(const Setup& setup) {
  log(LogLevel::info, "noria " NORIA_PLUGIN_VERSION " over %s: %s; peers call at %s",
      setup.provider->library_path().c_str(), setup.device_names().c_str(), setup.host.c_str());
  if (setup.provider->kind() == verbs::ProviderKind::software)
    log(LogLevel::info,
        "noria: the software HCA may place a line of 128 bytes in parts: noria's tuner leaves "
        "LL128 out; without it, or before NCCL 2.22, set NCCL_PROTO=^LL128");
}

}  // namespace

void send_log_to(abi::Logger logger) {
  if (logger == nullptr) return;
  nccl_logger.store(logger, std::memory_order_release);  // pairs with the load in write_to_nccl()
  set_log_sink(write_to_nccl);
  set_log_level(LogLevel::info);
}

std::string Setup::device_names() const {
  std::string names;
  for (int i = 0; i < devices->count(); ++i) {
    const Device& device = *devices->find(i);
    if (device.parts.size() > 1) continue;  // its parts stand here
    names += (names.empty() ? "" : ", ") + device.name + " " +
             std::to_string(device.speed_mbps() / 1000) + " Gb/s";
  }
  return names;
}

std::shared_ptr<const Setup> Setup::load() {
  auto setup = std::make_shared<Setup>();
  auto params = load_params(environ);
  set_log_level(LogLevel::info);  // NCCL_DEBUG decides, not NORIA_DEBUG
  if (!params) {
    log(LogLevel::warn, "noria is off: %s", params.failure().c_str());
    return setup;
  }
  setup->params = std::move(*params);
  for (const std::string& notice : setup->params.notices)
    log(LogLevel::info, "noria: %s", notice.c_str());
  if (setup->params.disable) {
    log(LogLevel::info, "noria is off: NORIA_DISABLE is set");
    return setup;
  }
  if (const std::string reason = find_devices(setup.get()); !reason.empty()) {
    log(LogLevel::warn, "noria is off: %s", reason.c_str());
    return setup;
  }
  say_devices(*setup);
  find_gpu_memory(setup.get());
  const abi::Logger logger = nccl_logger.load(std::memory_order_acquire);  // pairs with the store
  setup->tuning = Tuning::load(setup->params, find_hardware(setup->provider->ports(), logger));
  return setup;
}

}  // namespace noria::plugin
