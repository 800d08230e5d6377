#include "verbs/mr.hpp"

#include <atomic>

namespace noria::verbs {
namespace {

// relaxed everywhere: a plain count, nothing is published through it.
constinit std::atomic<uint64_t> refusals{0};

constexpr unsigned kAccess =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

uint64_t address_of(const void* base) { return reinterpret_cast<uintptr_t>(base); }

}  // namespace

Result<Mr> register_memory(const Api& api, ibv_pd* pd, void* base, size_t bytes,
                           Ordering ordering) {
  if (ordering == Ordering::relaxed) {
    if (api.symbols().reg_mr_iova2 != nullptr)
      return create<Mr, &Symbols::reg_mr_iova2>(
          api, pd->context, pd, base, bytes, address_of(base),
          kAccess | static_cast<unsigned>(IBV_ACCESS_RELAXED_ORDERING));
    refusals.fetch_add(1, std::memory_order_relaxed);
  }
  return create<Mr, &Symbols::reg_mr>(api, pd->context, pd, base, bytes, static_cast<int>(kAccess));
}

Result<Mr> register_dmabuf(const Api& api, ibv_pd* pd, const Dmabuf& memory, void* base,
                           size_t bytes, Ordering ordering) {
  const unsigned access = ordering == Ordering::relaxed
                              ? kAccess | static_cast<unsigned>(IBV_ACCESS_RELAXED_ORDERING)
                              : kAccess;
  NORIA_TRY_ASSIGN(ibv_mr * mr, api.probe<&Symbols::reg_dmabuf_mr>(
                                    pd->context, pd, memory.offset, bytes, address_of(base),
                                    memory.fd, static_cast<int>(access)));
  api.note_opened();
  return Mr(mr, Mr::deleter_type{&api});
}

bool can_register_dmabuf(const Api& api, ibv_pd* pd) {
  // Refused either way: for the descriptor, by who looked at it.
  const auto answer = register_dmabuf(api, pd, {}, nullptr, 1, Ordering::strict);
  return answer.is_ok() || answer.failure().code() != Code::unsupported;
}

uint64_t relaxed_ordering_refusals() { return refusals.load(std::memory_order_relaxed); }

}  // namespace noria::verbs
