#include "verbs/api.hpp"

#include <array>
#include <cstddef>
#include <cstring>

#include "base/log.hpp"

namespace noria::verbs {
namespace {

// The struct around a context whose library has extended operations; null for an older one.
verbs_context* extended_context(ibv_context* context) {
  if (context->abi_compat != reinterpret_cast<void*>(UINTPTR_MAX)) return nullptr;
  return reinterpret_cast<verbs_context*>(reinterpret_cast<std::byte*>(context) -
                                          offsetof(verbs_context, context));
}

}  // namespace

Result<Symbols, std::string> Symbols::load(const SharedObject& library) {
  Symbols symbols;
  std::string missing;
  // memcpy: an object pointer is not convertible to a function pointer in ISO C++.
  const auto take = [&](auto* member, const char* name, const char* since, bool is_required) {
    void* found = library.find(name, since);
    if (found == nullptr && is_required && missing.empty())
      missing = library.path() + " has no " + name + "@" + since +
                "; rdma-core 44 or later has all that is needed";
    static_assert(sizeof(*member) == sizeof(found));
    std::memcpy(member, &found, sizeof found);
  };
#define NORIA_VERB(member, function, since, required, fails) \
  take(&symbols.member, #function, since, required);
#define NORIA_VERB_EXTENSION(member, type, function) \
  take(&symbols.member, #function, kVerbsExtensionVersion, false);
#include "verbs/symbols.def"
#undef NORIA_VERB
#undef NORIA_VERB_EXTENSION
  if (!missing.empty()) return missing;
  return symbols;
}

Code code_of_errno(int error) {
  switch (error) {
    case EINVAL:
    case EFAULT:
    case EMSGSIZE: return Code::bad_argument;
    case ENOMEM:
    case EAGAIN:
    case ENOSPC:
    case EMFILE:
    case ENFILE: return Code::no_memory;
    case EOPNOTSUPP:
    case ENOSYS:
    case EPROTONOSUPPORT: return Code::unsupported;
    case ENODEV:
    case ENXIO:
    case EIO: return Code::device_lost;
    case ETIMEDOUT: return Code::timed_out;
    case ENETDOWN: return Code::port_down;
    default: return Code::bad_state;
  }
}

Result<std::shared_ptr<const Api>, std::string> Api::load(const std::string& path) {
  NORIA_TRY_ASSIGN(SharedObject library, SharedObject::open(path));
  NORIA_TRY_ASSIGN(const Symbols symbols, Symbols::load(library));
  std::shared_ptr<Api> api(new Api);
  api->library_ = std::make_unique<SharedObject>(std::move(library));
  api->symbols_ = symbols;
  return std::shared_ptr<const Api>(std::move(api));
}

std::shared_ptr<const Api> Api::from_symbols(const Symbols& symbols) {
  std::shared_ptr<Api> api(new Api);
  api->symbols_ = symbols;
  return api;
}

Status Api::query_port(ibv_context* context, uint8_t port, ibv_port_attr* attr,
                       uint32_t* speed) const {
  std::memset(attr, 0, sizeof *attr);
  if (speed != nullptr) *speed = 0;
  verbs_context* const extended = extended_context(context);
  // Operations lie before the context and were appended towards the front: `sz` says how many.
  constexpr size_t kNeeded = sizeof(verbs_context) - offsetof(verbs_context, query_port);
  if (extended == nullptr || extended->sz < kNeeded || extended->query_port == nullptr)
    return call<&Symbols::query_port>(context, context, port,
                                      reinterpret_cast<_compat_ibv_port_attr*>(attr));
  // Newer libraries have one member more than our header may know, active_speed_ex; older ones
  // leave it zero.
  constexpr size_t kSpeedOffset = 52;
  static_assert(offsetof(ibv_port_attr, port_cap_flags2) + sizeof(uint32_t) == kSpeedOffset);
  alignas(ibv_port_attr) std::array<std::byte, kSpeedOffset + sizeof(uint32_t)> room{};
  static_assert(sizeof room >= sizeof *attr);
  const int error = extended->query_port(
      context, port, reinterpret_cast<ibv_port_attr*>(room.data()), sizeof room);
  if (error != 0) return failed("ibv_query_port", context, error, true);
  std::memcpy(attr, room.data(), sizeof *attr);
  if (speed != nullptr) std::memcpy(speed, room.data() + kSpeedOffset, sizeof *speed);
  return {};
}

Result<ibv_cq*> Api::next_cq_event(ibv_comp_channel* channel) const {
  ibv_cq* cq = nullptr;
  void* unused = nullptr;
  errno = 0;
  if (symbols_.get_cq_event(channel, &cq, &unused) == 0) return cq;
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)
    return static_cast<ibv_cq*>(nullptr);
  return failed("ibv_get_cq_event", channel->context, errno, true);
}

Status Api::failed(const char* function, const ibv_context* on, int error, bool is_loud) {
  if (is_loud) {
    const char* device = on != nullptr && on->device != nullptr ? on->device->name : "no device";
    log(LogLevel::warn, "%s on %s failed: %s (errno %d)", function, device, std::strerror(error),
        error);
  }
  return Status::from_errno(code_of_errno(error), error);
}

void Api::note_closed(const char* function, const Status& status) const {
  live_objects_.fetch_sub(1, std::memory_order_relaxed);
  if (status.is_ok()) return;
  failed_closes_.fetch_add(1, std::memory_order_relaxed);
  // EBUSY here says that our own order of destruction is wrong.
  log(LogLevel::warn, "%s could not close its object (errno %d)", function, status.raw());
}

}  // namespace noria::verbs
