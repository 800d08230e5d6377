#include "verbs/soft/batch.hpp"

#include <algorithm>

#include "verbs/soft/bind_target.hpp"
#include "verbs/soft/engine.hpp"
#include "verbs/soft/landing.hpp"
#include "verbs/soft/mark.hpp"
#include "verbs/soft/step.hpp"

namespace noria::soft {
namespace {

constexpr size_t kMostRequests = 32;
constexpr size_t kMostPieces = 64;

struct Batch {
  Direction direction = Direction::to_peer;
  uint32_t key = 0;  // of all, or kAnyKey
  uint64_t count = 0, bytes = 0;
  size_t local_count = 0, remote_count = 0;
  iovec local[kMostPieces];
  iovec remote[kMostRequests];
};

bool is_plain(const Qp& qp) {
  return !qp.engine.is_shaped() && !qp.engine.places_late() && qp.faults == nullptr &&
         qp.moved == 0 && qp.asked == 0;
}

// Whether attach is the way to the memory of a key: what is mapped costs no call.
bool is_attached(const Peer& peer, uint32_t key) {
  // relaxed: a hint; what the region is now is looked at under the mark.
  return !peer.is_self() && peer.can_attach() &&
         peer.shared().mrs[key >> 16].allocation.load(std::memory_order_relaxed) == 0;
}

bool is_write(const Wqe& wqe) {
  return wqe.opcode == IBV_WR_RDMA_WRITE || wqe.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

bool is_read(const Qp& qp, const Wqe& wqe) {
  // As many under way as the target answers at least: check_depth() has nothing to find.
  // relaxed: published by the target's state.
  return wqe.opcode == IBV_WR_RDMA_READ && qp.attr.max_rd_atomic != 0 &&
         qp.attr.max_rd_atomic <= qp.target->max_reads.load(std::memory_order_relaxed);
}

// How many requests may go together, for what they are, and the key that names them for the mark.
NORIA_HOT void choose(Qp& qp, uint64_t end, Batch* batch) {
  end = std::min(end, qp.executed + kMostRequests);
  const bool reads = qp.wqe(qp.executed).opcode == IBV_WR_RDMA_READ;
  batch->direction = reads ? Direction::from_peer : Direction::to_peer;
  batch->key = qp.wqe(qp.executed).rkey;
  // acquire: pairs with post_recv().
  const uint64_t receives = qp.target->rq_tail.load(std::memory_order_acquire);
  uint64_t bytes = 0, taken = qp.receives_taken;
  for (uint64_t number = qp.executed; number != end; ++number, ++batch->count) {
    const Wqe& wqe = qp.wqe(number);
    if (!(reads ? is_read(qp, wqe) : is_write(wqe)) || wqe.bytes > qp.largest) return;
    if (wqe.takes_receive() && taken++ >= receives) return;
    bytes += wqe.bytes;
    if (bytes > kStepBytes) return;
    if (wqe.rkey != batch->key) batch->key = kAnyKey;
  }
}

// Adds the pieces of the next request. False if there is no room for them, or something is wrong
// with them.
NORIA_HOT bool add(Qp& qp, Wqe& wqe, Batch* batch) {
  if (wqe.bytes == 0) return true;
  Pieces local;
  if (!gather(qp, wqe, {0, wqe.bytes}, &local) || batch->local_count + local.count > kMostPieces)
    return false;
  const Landing landing = find_remote_range(qp, wqe);
  if (!landing.is_valid || landing.is_direct || landing.is_posted || local.posted != 0)
    return false;
  for (const iovec& piece : local.all()) batch->local[batch->local_count++] = piece;
  batch->remote[batch->remote_count++] = {reinterpret_cast<void*>(landing.at[0].address),
                                          wqe.bytes};
  batch->bytes += wqe.bytes;
  return true;
}

}  // namespace

NORIA_HOT uint64_t move_batch(Qp& qp, uint64_t end) {
  if (end - qp.executed < 2 || !is_plain(qp) || !reach_target(qp) ||
      !is_attached(*qp.target_peer, qp.wqe(qp.executed).rkey))
    return 0;
  Batch batch;
  choose(qp, end, &batch);
  if (batch.count < 2) return 0;

  const Mark mark(qp, batch.key);
  if (qp.target->state.load(std::memory_order_seq_cst) != qp.target_state)  // after the mark
    return 0;
  uint64_t count = 0;
  while (count < batch.count && add(qp, qp.wqe(qp.executed + count), &batch)) ++count;
  if (count < 2) return 0;
  uint64_t through = copy_many(*qp.target_peer, batch.direction, {batch.local, batch.local_count},
                               {batch.remote, batch.remote_count}, batch.bytes);
  for (uint64_t i = 0; i < count; ++i) {
    const Wqe& wqe = qp.wqe(qp.executed + i);
    if (wqe.bytes > through) return i;
    through -= wqe.bytes;
    end_move(qp, wqe);
  }
  return count;
}

}  // namespace noria::soft
