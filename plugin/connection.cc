#include "plugin/connection.hpp"

#include <utility>

namespace noria::plugin {

Result<transport::Region*> Connection::register_memory(void* data, uint64_t bytes) {
  NORIA_TRY_ASSIGN(transport::Region region, domain_->register_region(data, bytes));
  auto kept = std::make_unique<transport::Region>(std::move(region));
  transport::Region* const made = kept.get();
  const MutexLock lock(mutex_);
  regions_.emplace(made, std::move(kept));
  return made;
}

bool Connection::deregister(const void* region) {
  std::unique_ptr<transport::Region> freed;  // after the lock is gone
  const MutexLock lock(mutex_);
  const auto found = regions_.find(region);
  if (found == regions_.end()) return false;
  freed = std::move(regions_.extract(found).mapped());
  return true;
}

}  // namespace noria::plugin
