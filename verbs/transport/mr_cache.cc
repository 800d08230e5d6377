#include "verbs/transport/mr_cache.hpp"

#include <utility>

#include "base/check.hpp"

namespace noria::transport {

MrCache::~MrCache() {
  NORIA_CHECK(registrations_.empty(), "a registration outlives its protection domain");
}

Result<MrShare> MrCache::take(const MemoryRange& range, int fd) {
  if (MrShare held = registrations_.find(range)) return held;
  NORIA_TRY_ASSIGN(verbs::Mr made, register_range(range, fd));
  return registrations_.add(range, std::move(made));
}

Result<verbs::Mr> MrCache::register_range(const MemoryRange& range, int fd) const {
  void* const base = reinterpret_cast<void*>(range.address);
  if (range.way == MemoryRange::Way::descriptor)
    return verbs::register_dmabuf(*api_, pd_, {.fd = fd, .offset = range.offset}, base, range.bytes,
                                  range.ordering);
  return verbs::register_memory(*api_, pd_, base, range.bytes, range.ordering);
}

}  // namespace noria::transport
