// Enhanced connection establishment: what two devices of one vendor agree on beyond the standard.
//
// What the options mean only the devices know. One side tells what it can (query in state init),
// the other takes that before it is ready to receive, tells what both can (query when it is up),
// and the first takes this in turn. A library, device or firmware that has none of it, or refuses
// what the peer told, goes on without: that is no failure, and not said.
//
// Threads: one at a time per queue pair.
#pragma once

#include <cstdint>

#include "verbs/api.hpp"

namespace noria::verbs {

struct Ece {
  uint32_t vendor = 0;  // IEEE OUI; 0: none
  uint32_t options = 0;

  explicit operator bool() const { return vendor != 0; }
};

Ece query_ece(const Api& api, ibv_qp* qp);
// In state init. False where the device takes none, or not this.
bool set_ece(const Api& api, ibv_qp* qp, const Ece& peer);

}  // namespace noria::verbs
