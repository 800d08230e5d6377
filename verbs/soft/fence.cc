#include "verbs/soft/fence.hpp"

#include <time.h>

#include <bit>

namespace noria::soft {
namespace {

enum class Marks { none, held, held_too_long };

// Calls `look(index)` for each queue pair that the process has.
template <class Look>
void for_each_in_use(const SharedSegment& of, Look look) {
  for (uint32_t word = 0; word < kMaxQps / 64; ++word) {
    // acquire: a queue pair that is gone copied before; pairs with remove_qp().
    uint64_t bits = of.header.qps_in_use[word].load(std::memory_order_acquire);
    for (; bits != 0; bits &= bits - 1)
      look(word * 64 + static_cast<uint32_t>(std::countr_zero(bits)));
  }
}

// Looks for a mark that `hit` is about, `waited` after the fence began.
template <class Hit>
Marks look(Engine& engine, Hit hit, Nanoseconds waited, Nanoseconds limit) {
  Marks found = Marks::none;
  engine.neighbours().for_each([&](const Peer& peer) {
    if (found != Marks::none || !peer.is_alive()) return;
    const SharedSegment& theirs = peer.shared();
    for_each_in_use(theirs, [&](uint32_t i) {
      // acquire: what a cleared mark's owner copied happened before; pairs with ~Mark().
      const uint64_t mark = theirs.qps[i].mark.load(std::memory_order_acquire);
      if (found != Marks::none || (mark & kMarkBit) == 0 || !hit(mark)) return;
      const bool is_too_long = waited > (peer.is_stalled() ? kStalledLimit : limit);
      if (is_too_long) peer.note_stalled(i);
      found = is_too_long ? Marks::held_too_long : Marks::held;
    });
  });
  return found;
}

template <class Hit>
bool wait_unmarked(Engine& engine, Nanoseconds limit, Hit hit) {
  std::atomic_thread_fence(std::memory_order_seq_cst);  // pairs with Mark(): revoked, then looked
  const Nanoseconds start = now_ns();
  while (true) {
    const Marks marks = look(engine, hit, now_ns() - start, limit);
    if (marks != Marks::held) return marks == Marks::none;
    const timespec pause{0, 20'000};
    ::nanosleep(&pause, nullptr);
  }
}

}  // namespace

bool fence_key(Engine& engine, uint32_t key, Nanoseconds limit) {
  // Our own requests that read or write it, and messages that we place ourselves.
  engine.for_each_qp([](Qp& qp) {
    doubt_receives(qp);
    SpinGuard under_way(qp.exec);
  });
  engine.for_each_cq([](Cq& cq) { SpinGuard guard(cq.list); });
  return wait_unmarked(engine, limit, [slot = engine.slot(), key](uint64_t mark) {
    return slot_of(mark_qpn(mark)) == slot && (mark_key(mark) == key || mark_key(mark) == kAnyKey);
  });
}

bool fence_qp(Engine& engine, uint32_t qpn, Nanoseconds limit) {
  return wait_unmarked(engine, limit, [qpn](uint64_t mark) { return mark_qpn(mark) == qpn; });
}

}  // namespace noria::soft
