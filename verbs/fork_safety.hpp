// A parent's registered memory stays its own when it forks, as it does for a data loader's workers.
//
// Without it the first of parent and child that writes to such a page gets another one, and the
// device goes on with the old: bytes that arrive are lost. Kernels from 5.12 on give the child the
// copy; for older ones the library keeps registered pages out of children (ibv_fork_init(3)), which
// must be asked for before the first registration and costs a system call in each.
//
// Threads: any thread, before memory is registered.
#pragma once

#include "base/log.hpp"
#include "verbs/api.hpp"

namespace noria::verbs {

inline void make_fork_safe(const Api& api) {
  const Symbols& symbols = api.symbols();
  if (symbols.fork_init == nullptr) return;
  if (symbols.is_fork_initialized != nullptr &&
      api.call<&Symbols::is_fork_initialized>(nullptr) != IBV_FORK_DISABLED)
    return;
  if (const Status status = api.probe<&Symbols::fork_init>(nullptr); !status.is_ok())
    log(LogLevel::info,
        "ibv_fork_init: error %d: a child of fork() may take registered memory from its parent; "
        "fork before communicators are made, or set RDMAV_FORK_SAFE=1",
        status.raw());
}

}  // namespace noria::verbs
