#include "verbs/transport/staging.hpp"

#include "base/log.hpp"

namespace noria::transport {

std::unique_ptr<Staging> Staging::make(const RailSet& rails) {
  if (!rails.rails.front().shared->provider_memory().exists()) return nullptr;
  auto memory = RegionState::allocate(rails, kWindow * kMaxBytes, verbs::Ordering::strict);
  if (memory && (*memory)->is_mapped_by_peers())
    return std::unique_ptr<Staging>(new Staging(std::move(*memory)));
  log(LogLevel::info, "%s: no memory that peers map is left: small messages land in place",
      rails.rails.front().port().info.device.c_str());
  return nullptr;
}

}  // namespace noria::transport
