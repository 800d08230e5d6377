#include "verbs/mr.hpp"

#include <atomic>

namespace noria::verbs {
namespace {

// relaxed everywhere: a plain count, nothing is published through it.
constinit std::atomic<uint64_t> refusals{0};

}  // namespace

Result<Mr> register_memory(const Api& api, ibv_pd* pd, void* base, size_t bytes,
                           Ordering ordering) {
  constexpr unsigned kAccess =
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  if (ordering == Ordering::relaxed) {
    if (api.symbols().reg_mr_iova2 != nullptr)
      return create<Mr, &Symbols::reg_mr_iova2>(
          api, pd->context, pd, base, bytes,
          static_cast<uint64_t>(reinterpret_cast<uintptr_t>(base)),
          kAccess | static_cast<unsigned>(IBV_ACCESS_RELAXED_ORDERING));
    refusals.fetch_add(1, std::memory_order_relaxed);
  }
  return create<Mr, &Symbols::reg_mr>(api, pd->context, pd, base, bytes, static_cast<int>(kAccess));
}

uint64_t relaxed_ordering_refusals() { return refusals.load(std::memory_order_relaxed); }

}  // namespace noria::verbs
