// TcpAsk: the part of a request that is under way over TCP (tcp_initiator.hpp).
//
// Threads: under Qp::exec.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

#include "base/clock.hpp"
#include "verbs/soft/placement.hpp"

namespace noria::soft {

struct TcpAsk {
  enum class Stage : uint8_t {
    idle,
    full,  // the connection takes no part yet: others have left so much unsent
    asked,
    refused,  // the target takes nothing now: again a little later
    settled   // all parts of the request were answered, or one with an error
  };
  Stage stage = Stage::idle;
  bool was_served = false;                // in this life
  ibv_wc_status status = IBV_WC_SUCCESS;  // once settled
  Cut cut;
  uint64_t number = 0;            // of the part; goes on through all lives of the queue pair
  Nanoseconds since = 0;          // asked, found alive, or refused
  Nanoseconds refused_since = 0;  // the first time since a part was answered; 0: it was not

  // Begins anew: answers to what was asked before are void.
  void forget() { *this = {.number = number}; }
};

}  // namespace noria::soft
