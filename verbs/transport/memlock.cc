#include "verbs/transport/memlock.hpp"

#include <sys/resource.h>

namespace noria::transport {

uint64_t memlock_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return kNoMemlockLimit;
  return limit.rlim_cur;
}

std::string memlock_advice(uint64_t limit) {
  if (limit == kNoMemlockLimit)
    return "locked memory is not limited here: the device has no room for more, or the host no "
           "memory";
  return "the limit on locked memory is " + std::to_string(limit / 1024) +
         " KiB: raise it with `ulimit -l unlimited`, for all logins in /etc/security/limits.conf "
         "(* - memlock unlimited), for what systemd starts by LimitMEMLOCK=infinity in its unit";
}

}  // namespace noria::transport
