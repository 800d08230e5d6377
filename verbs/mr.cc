#include "verbs/mr.hpp"

namespace noria::verbs {
namespace {

constexpr unsigned kAccess =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

uint64_t address_of(const void* base) { return reinterpret_cast<uintptr_t>(base); }

}  // namespace

Result<Mr> register_memory(const Api& api, ibv_pd* pd, void* base, size_t bytes,
                           Ordering ordering) {
  if (ordering == Ordering::relaxed && api.symbols().reg_mr_iova2 != nullptr)
    return create<Mr, &Symbols::reg_mr_iova2>(
        api, pd->context, pd, base, bytes, address_of(base),
        kAccess | static_cast<unsigned>(IBV_ACCESS_RELAXED_ORDERING));
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

}  // namespace noria::verbs
