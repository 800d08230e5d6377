#include "verbs/transport/peer_memory.hpp"

#include <unistd.h>

#include <utility>

namespace noria::transport {

std::string peer_memory_module(const std::string& root) {
  // The module of NVIDIA's driver, the older one of the network card's vendor, and the names by
  // which either makes itself known to the drivers of network cards.
  constexpr std::pair<const char*, const char*> kPlaces[]{
      {"nvidia_peermem", "/sys/module/nvidia_peermem"},
      {"nv_peer_mem", "/sys/module/nv_peer_mem"},
      {"nv_mem", "/sys/kernel/mm/memory_peers/nv_mem"},
      {"nv_mem_nc", "/sys/kernel/mm/memory_peers/nv_mem_nc"}};
  for (const auto& [name, path] : kPlaces)
    if (::access((root + path).c_str(), F_OK) == 0) return name;
  return "";
}

}  // namespace noria::transport
