#include "verbs/transport/mr_cache.hpp"

#include "base/check.hpp"

namespace noria::transport {

MrCache::~MrCache() {
  const MutexLock lock(mutex_);
  NORIA_CHECK(entries_.empty(), "a registration outlives its protection domain");
}

Result<MrShare> MrCache::take(const MemoryRange& range, int fd) {
  {
    const MutexLock lock(mutex_);
    if (const auto found = entries_.find(range); found != entries_.end()) return share(*found);
  }
  NORIA_TRY_ASSIGN(verbs::Mr made, register_range(range, fd));
  const MutexLock lock(mutex_);
  const auto [entry, is_first] = entries_.try_emplace(range);
  // Where another thread was quicker, ours goes when the lock is free again.
  if (is_first) entry->second.mr = std::move(made);
  return share(*entry);
}

Result<verbs::Mr> MrCache::register_range(const MemoryRange& range, int fd) const {
  void* const base = reinterpret_cast<void*>(range.address);
  if (range.way == MemoryRange::Way::descriptor)
    return verbs::register_dmabuf(*api_, pd_, {.fd = fd, .offset = range.offset}, base, range.bytes,
                                  range.ordering);
  return verbs::register_memory(*api_, pd_, base, range.bytes, range.ordering);
}

MrShare MrCache::share(MrShare::Entry& entry) {
  ++entry.second.holders;
  return MrShare(MrShare::Held(&entry, MrShare::Releaser(this)));
}

void MrShare::Releaser::operator()(Entry* entry) const { cache->release(entry); }

void MrCache::release(MrShare::Entry* entry) {
  MrShare::Entries::node_type last;  // deregisters after the lock is gone
  const MutexLock lock(mutex_);
  if (--entry->second.holders == 0) last = entries_.extract(entry->first);
}

}  // namespace noria::transport
