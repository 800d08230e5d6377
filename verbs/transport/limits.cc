#include "verbs/transport/limits.hpp"

#include <sys/resource.h>

#include <cerrno>

namespace noria::transport {
namespace {

uint64_t soft_limit(__rlimit_resource resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return Limits::kNone;
  return limit.rlim_cur;
}

}  // namespace

Limits Limits::of_this_process() {
  return {.memlock_bytes = soft_limit(RLIMIT_MEMLOCK), .descriptors = soft_limit(RLIMIT_NOFILE)};
}

std::string advice_on(Status refusal, const Limits& limits) {
  if (refusal.code() != Code::no_memory || refusal.origin() != Origin::sys_errno) return "";
  if (refusal.raw() == EMFILE)
    return "the limit on open files is " + std::to_string(limits.descriptors) +
           ": raise it with `ulimit -n`, for what systemd starts by LimitNOFILE in its unit";
  if (refusal.raw() != ENOMEM && refusal.raw() != EAGAIN) return "";
  if (limits.memlock_bytes == Limits::kNone)
    return "locked memory is not limited here: the device has no room for more, or the host no "
           "memory";
  return "the limit on locked memory is " + std::to_string(limits.memlock_bytes / 1024) +
         " KiB: raise it with `ulimit -l unlimited`, for all logins in /etc/security/limits.conf "
         "(* - memlock unlimited), for what systemd starts by LimitMEMLOCK=infinity in its unit";
}

}  // namespace noria::transport
