#include "plugin/tuning.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <iterator>

#include "base/dl.hpp"
#include "base/log.hpp"
#include "base/own_folder.hpp"

namespace noria::plugin {
namespace {

template <class Function>
Function find_function(const SharedObject& library, const char* name) {
  return reinterpret_cast<Function>(library.find(name));
}

// Of the first GPU: those of a node are alike. Nothing where CUDA is not loaded.
std::optional<tuner::Gpu> find_gpu() {
  constexpr int kMajor = 75;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
  const auto cuda = SharedObject::find_loaded("libcuda.so.1");
  if (!cuda) return std::nullopt;
  const auto get = find_function<int (*)(int*, int)>(*cuda, "cuDeviceGet");
  const auto ask = find_function<int (*)(int*, int, int)>(*cuda, "cuDeviceGetAttribute");
  int device = 0, major = 0;
  if (get == nullptr || ask == nullptr || get(&device, 0) != 0 || ask(&major, kMajor, device) != 0)
    return std::nullopt;
  if (major >= 10) return tuner::Gpu::blackwell;
  if (major == 9) return tuner::Gpu::hopper;
  if (major == 8) return tuner::Gpu::ampere;
  return tuner::Gpu::volta;
}

uint64_t find_nccl_version(abi::Logger logger) {
  Dl_info info{};
  if (logger == nullptr || ::dladdr(reinterpret_cast<void*>(logger), &info) == 0) return 0;
  const auto nccl = SharedObject::find_loaded(info.dli_fname);
  if (!nccl) return 0;
  const auto ask = find_function<int (*)(int*)>(*nccl, "ncclGetVersion");
  int version = 0;
  if (ask == nullptr || ask(&version) != 0 || version < 0) return 0;
  return static_cast<uint64_t>(version);
}

void add_shipped(const tuner::Hardware& hardware, tuner::Table* table) {
  size_t all = 0, kept = 0;
  const std::string folder =
      own_folder(reinterpret_cast<const void*>(&add_shipped)) + tuner::kTablesFolder;
  const auto paths = tuner::tables_in(folder);
  if (!paths) {
    log(LogLevel::warn,
        "noria: the tables that came with it are left out: %s; let this user read it, or install "
        "noria anew",
        paths.failure().c_str());
    return;
  }
  for (const std::string& path : *paths) {
    auto shipped = tuner::read_table(path);
    if (!shipped) {
      log(LogLevel::warn, "noria: a table that came with it is left out: %s",
          shipped.failure().c_str());
      continue;
    }
    all += shipped->rows.size();
    keep_rows_for(hardware, &*shipped);
    kept += shipped->rows.size();
    std::move(shipped->rows.begin(), shipped->rows.end(), std::back_inserter(table->rows));
  }
  log(LogLevel::info, "noria: of the tables that came with it %zu of %zu rows are for %s", kept,
      all, text_of(hardware).c_str());
}

}  // namespace

tuner::Hardware find_hardware(const std::vector<verbs::PortInfo>& ports, abi::Logger logger) {
  tuner::Hardware found{.gpu = find_gpu(), .nccl_version = find_nccl_version(logger)};
  const verbs::PortInfo* fastest = nullptr;
  for (const verbs::PortInfo& port : ports)
    if (port.is_active && (fastest == nullptr || port.speed_mbps > fastest->speed_mbps))
      fastest = &port;
  if (fastest == nullptr) return found;
  found.link = {fastest->is_ethernet ? tuner::LinkKind::ethernet : tuner::LinkKind::infiniband,
                fastest->speed_mbps / 1000};
  found.nics = static_cast<uint64_t>(
      std::count_if(ports.begin(), ports.end(), [&](const verbs::PortInfo& port) {
        return port.is_active && port.speed_mbps == fastest->speed_mbps &&
               port.is_ethernet == fastest->is_ethernet;
      }));
  return found;
}

Tuning Tuning::load(const Params& params, const tuner::Hardware& hardware) {
  Tuning tuning{.hardware = hardware};
  if (!params.tuner) return tuning;
  if (!params.tuner_table.empty()) {
    auto table = tuner::read_table(params.tuner_table);
    if (!table) {
      log(LogLevel::warn, "noria: the tuner leaves all choices to NCCL: %s",
          table.failure().c_str());
      return tuning;
    }
    tuning.table = std::move(*table);
    const size_t others = keep_rows_for(hardware, &tuning.table);
    const size_t kept = tuning.table.rows.size();
    log(LogLevel::info, "noria: %s: %zu of %zu rows are for %s", params.tuner_table.c_str(), kept,
        kept + others, text_of(hardware).c_str());
  }
  add_shipped(hardware, &tuning.table);
  tuning.fingerprint = tuner::fingerprint_of(tuning.table);
  return tuning;
}

}  // namespace noria::plugin
