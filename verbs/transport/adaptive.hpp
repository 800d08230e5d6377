// From how many bytes on a message is sent so that a fabric may route its packets one by one.
//
// A device keeps the packets of a write with immediate in order, because its completion tells of
// memory that must be written by then; those of a plain write may take any way (adaptive routing).
// So a message above the threshold goes as plain writes, each followed on its queue pair by a write
// with immediate of a few bytes, which alone is kept in order. It costs a second work request.
//
// It is the sender's choice. `auto` decides as NCCL does: fabrics of InfiniBand route adaptively,
// networks of Ethernet mostly do not. Pure.
//
// Threads: any thread.
#pragma once

#include <cstdint>

#include "base/params.hpp"

namespace noria::transport {

// UINT64_MAX: none at all.
inline uint64_t adaptive_from(const Params& params, bool is_infiniband) {
  const bool is_on =
      params.adaptive_routing == "auto" ? is_infiniband : params.adaptive_routing == "on";
  return is_on ? params.adaptive_threshold_bytes + 1 : UINT64_MAX;
}

}  // namespace noria::transport
