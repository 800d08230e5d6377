#include "verbs/soft/fence.hpp"

#include <time.h>

#include <algorithm>

namespace noria::soft {
namespace {

template <class Hit>
bool is_marked(Engine& engine, Hit hit) {
  bool found = false;
  engine.neighbours().for_each([&](const Peer& peer) {
    if (found || !peer.is_alive()) return;
    const SharedSegment& theirs = peer.shared();
    const uint32_t high = std::min(theirs.header.qp_high.load(std::memory_order_acquire), kMaxQps);
    for (uint32_t i = 0; i < high && !found; ++i) {
      // acquire: what a cleared mark's owner copied happened before; pairs with ~Mark().
      const uint64_t mark = theirs.qps[i].mark.load(std::memory_order_acquire);
      found = (mark & kMarkBit) != 0 && hit(mark);
    }
  });
  return found;
}

template <class Hit>
bool wait_unmarked(Engine& engine, Hit hit) {
  std::atomic_thread_fence(std::memory_order_seq_cst);  // pairs with Mark(): revoked, then looked
  const Nanoseconds limit = now_ns() + kFenceLimit;
  while (is_marked(engine, hit)) {
    if (now_ns() > limit) return false;
    const timespec pause{0, 20'000};
    ::nanosleep(&pause, nullptr);
  }
  return true;
}

}  // namespace

bool fence_key(Engine& engine, uint32_t key) {
  // Our own requests that read or write it, and messages that we place ourselves.
  engine.for_each_qp([](Qp& qp) { SpinGuard guard(qp.exec); });
  engine.for_each_cq([](Cq& cq) { SpinGuard guard(cq.list); });
  return wait_unmarked(engine, [slot = engine.slot(), key](uint64_t mark) {
    return slot_of(mark_qpn(mark)) == slot && (mark_key(mark) == key || mark_key(mark) == kAnyKey);
  });
}

bool fence_qp(Engine& engine, uint32_t qpn) {
  return wait_unmarked(engine, [qpn](uint64_t mark) { return mark_qpn(mark) == qpn; });
}

}  // namespace noria::soft
