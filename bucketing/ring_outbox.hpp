// RingOutbox: what goes to the right neighbour on the reduce stream, in order: headers, and notices
// or chunks.
//
// Threads: the engine's driver, one at a time.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#include "bucketing/ring_core.hpp"
#include "bucketing/ring_run.hpp"
#include "bucketing/ring_wire.hpp"

namespace noria::bucketing {

class RingOutbox {
 public:
  // `memory` holds one RingHeader.
  explicit RingOutbox(transport::Region memory) : memory_(std::move(memory)) {}

  // Each is false for *not yet*, or if the ring failed.
  NORIA_HOT bool send_header(RingCore& core, const RingHeader& header) {
    if ((header.flags & kHasRemote) == 0) return send_small(core, &header, kShortHeaderBytes);
    if (!is_drained()) return false;  // the last header may still be on its way from here
    std::memcpy(memory_.base(), &header, sizeof header);
    return push(core, core.links.reduce_out->try_send(memory_, 0, sizeof header));
  }
  NORIA_HOT bool send_small(RingCore& core, const void* data, uint32_t bytes) {
    return push(core, core.links.reduce_out->try_send_inline(data, bytes));
  }
  NORIA_HOT bool send_chunk(RingCore& core, const Place& from, uint64_t bytes) {
    return push(core, core.links.reduce_out->try_send(*from.region, from.offset(), bytes));
  }

  // Takes note of what is through. True when something was.
  NORIA_HOT bool collect(RingCore& core) {
    bool moved = false;
    while (core.take_done(sent_, *core.links.reduce_out)) {
      ++through_;
      moved = true;
    }
    return moved;
  }
  bool is_drained() const { return sent_.is_empty(); }

  // Messages that were handed over, and how many of them are through; in order.
  uint64_t taken() const { return through_ + sent_.size(); }
  uint64_t through() const { return through_; }

 private:
  NORIA_HOT bool push(RingCore& core, transport::Request* request) {
    if (request == nullptr) {
      core.check(*core.links.reduce_out);
      return false;
    }
    sent_.push(request);
    return true;
  }

  transport::Region memory_;
  RequestFifo sent_;
  uint64_t through_ = 0;
};

}  // namespace noria::bucketing
