#include "verbs/soft/bind_target.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "base/log.hpp"
#include "verbs/soft/address.hpp"
#include "verbs/soft/device_time.hpp"
#include "verbs/soft/engine.hpp"
#include "verbs/soft/tcp_initiator.hpp"

namespace noria::soft {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

uint64_t packet_bytes(ibv_mtu mtu) {
  return 128ull << std::clamp<uint32_t>(mtu, IBV_MTU_256, IBV_MTU_4096);
}

// For a target with so many receives, as it says.
bool make_ring(Qp& qp, uint32_t said) {
  const uint32_t depth = std::clamp(said, 1u, kMaxQueueDepth);
  if (!std::has_single_bit(depth)) return false;
  const uint64_t offset = qp.engine.ring_room(qp.index, ring_bytes(depth));
  if (offset == Segment::kNoRoom) {
    log(LogLevel::error,
        "qp 0x%x: no room left for its ring; close queue pairs, or post fewer "
        "receives",
        qp.qp_num);
    return false;
  }
  uint8_t* base = qp.engine.shared().rings + offset;
  qp.ring = reinterpret_cast<Notice*>(base);
  qp.in_place = base + depth * sizeof(Notice);
  qp.ring_mask = depth - 1;
  qp.shared.ring.store(make_ring_word(offset, depth), kRelaxed);
  return true;
}

// The process of our target if it has answered our call.
Peer* call_over_tcp(Qp& qp) {
  constexpr Nanoseconds kCallEvery = 5'000'000;  // where nobody is, every call is a packet
  const Nanoseconds now = device_now();
  if (qp.is_linking) qp.wait = Wait::none;
  if (now - qp.asked_at < kCallEvery) return nullptr;
  qp.asked_at = now;
  const SharedAddress& own = qp.engine.address(device_of(qp.pd_number));
  const TcpNetwork::Called called = qp.engine.tcp()->call(
      wire_address(own), wire_address(qp.attr.ah_attr, own), slot_of(qp.attr.dest_qp_num));
  if (qp.called_at == 0) qp.called_at = now;
  qp.is_linking = called.is_pending && now - qp.called_at < TcpNetwork::kGrace;
  return qp.target_peer = called.peer;
}

// The live process of our target, or null.
Peer* find_peer(Qp& qp) {
  if (qp.target_peer != nullptr && qp.target_peer->is_alive()) return qp.target_peer;
  // A connection ends with the process it was made with: who has its slot now is a stranger.
  if (qp.target != nullptr) return nullptr;
  if (qp.target_peer != nullptr) qp.engine.done_with(std::exchange(qp.target_peer, nullptr));
  if (qp.goes_over_tcp.load(kRelaxed)) return call_over_tcp(qp);
  Neighbours& neighbours = qp.engine.neighbours();
  const uint32_t slot = slot_of(qp.attr.dest_qp_num);
  if (neighbours.has_peer(slot)) return qp.target_peer = neighbours.use(slot);
  // Asking takes system calls, and this is called from every poll.
  constexpr Nanoseconds kAskEvery = 1'000'000;
  const Nanoseconds now = device_now();
  if (now - qp.asked_at >= kAskEvery) {
    qp.asked_at = now;
    qp.is_linking = neighbours.want(slot) == Neighbours::Reach::linking;
  }
  // Somebody is there and has not answered yet, being stopped or not scheduled: alive. Requests
  // wait for an answer only from where the question can be asked.
  if (qp.is_linking) qp.wait = Wait::none;
  return nullptr;
}

}  // namespace

bool is_drained(Engine& engine, const SharedQp& qp) {
  const uint64_t name = qp.ring_to.load(kRelaxed);
  if (name == 0) return true;
  const auto qpn = static_cast<uint32_t>(name >> 32);
  Peer* peer = engine.neighbours().use(slot_of(qpn));
  if (peer == nullptr) return true;
  const SharedQp& old = peer->shared().qps[index_of(qpn) % kMaxQps];
  const uint64_t state = old.state.load(std::memory_order_acquire);
  const bool knows_fault = qp.fault_to.load(kRelaxed) != name || !takes_requests(state_of(state));
  const bool is_done =
      generation_of(state) != static_cast<uint32_t>(name) ||
      (knows_fault && old.rq_head.load(std::memory_order_acquire) >= qp.tail.load(kRelaxed));
  engine.neighbours().done_with(peer);
  return is_done;
}

void unbind_target(Qp& qp) {
  if (qp.target_peer != nullptr) qp.engine.done_with(qp.target_peer);
  qp.target_peer = nullptr;
  qp.target = nullptr;
  qp.largest = qp.max_message;
  qp.target_port = nullptr;
  qp.is_linking = false;
  qp.asked_at = 0;
  qp.called_at = 0;
}

bool bind_target(Qp& qp) {
  Peer* peer = find_peer(qp);
  const uint32_t index = index_of(qp.attr.dest_qp_num);
  if (peer == nullptr || index >= kMaxQps) return false;
  const bool is_over_tcp = peer->connection() != nullptr;
  if (is_over_tcp) peer->connection()->watch(qp.attr.dest_qp_num);
  const SharedQp& target = peer->shared().qps[index];
  const uint64_t state = target.state.load(std::memory_order_acquire);  // with modify_qp()
  // It has been asked what it is, and has not said.
  if (is_over_tcp && state == 0 && device_now() - qp.called_at < TcpNetwork::kGrace)
    qp.wait = Wait::none;
  if ((state & kPortDownBit) != 0 || !takes_requests(state_of(state)) ||
      target.remote_qpn.load(kRelaxed) != qp.qp_num)
    return false;
  if (qp.target == &target && generation_of(qp.target_state) == generation_of(state)) {
    qp.target_state = state;  // RTR became RTS
    return true;
  }
  // What we took for its present life was over already, and all that it has seen of us is void.
  if (is_over_tcp && !qp.tcp_ask.was_served) qp.target = nullptr;
  const uint64_t name = static_cast<uint64_t>(qp.attr.dest_qp_num) << 32 | generation_of(state);
  const bool was_bound = qp.shared.ring_to.load(kRelaxed) == name;
  const bool is_fresh = target.rq_head.load(kRelaxed) == target.rq_base.load(kRelaxed);
  const uint32_t device = device_of(target.pd.load(kRelaxed));
  const SharedAddress& there = peer->shared().header.addresses[device];
  if (!leads_to(qp.attr.ah_attr, qp.engine.address(device_of(qp.pd_number)), there) ||
      peer->is_ambiguous(device))
    return false;
  PortSchedule* port = peer->port(device);
  if (qp.engine.is_shaped() && port == nullptr) return false;  // under way
  if (qp.target != nullptr || was_bound || !is_fresh ||
      target.rq_psn.load(kRelaxed) != qp.attr.sq_psn || !is_drained(qp.engine, qp.shared))
    return false;
  // Who is connected to us, and has ended unnoticed, would be all this queue pair ever talks to.
  if (peer->has_ended()) {
    peer->mark_dead();
    return false;
  }
  if (!is_over_tcp && !make_ring(qp, target.rq_depth.load(kRelaxed))) return false;

  qp.target = &target;
  qp.target_port = port;
  qp.target_state = state;
  qp.receives_taken = qp.receives_seen = target.rq_base.load(kRelaxed);
  const auto mtu = static_cast<ibv_mtu>(target.path_mtu.load(kRelaxed));
  qp.target_takes = there.max_message;
  qp.largest = mtu == qp.attr.path_mtu ? std::min(qp.max_message, qp.target_takes)
                                       : packet_bytes(std::min(mtu, qp.attr.path_mtu));
  qp.shared.receives_wanted.store(qp.receives_taken, kRelaxed);
  if (is_over_tcp) {
    bind_over_tcp(qp);
    return true;
  }
  qp.shared.fired.store(0, kRelaxed);
  // The words are whose name stands beside them: nobody's while they change. Release: publishes
  // them; pairs with is_ours().
  qp.shared.ring_to.store(0, kRelaxed);
  qp.shared.tail.store(qp.receives_taken, std::memory_order_release);
  qp.shared.ring_to.store(name, std::memory_order_release);
  return true;
}

Nanoseconds ack_limit(const Qp& qp) {
  if (qp.attr.timeout == 0) return kNever;
  return (Nanoseconds{4096} << qp.attr.timeout) * (qp.attr.retry_cnt + 1);
}

Nanoseconds rnr_limit(const Qp& qp) {
  if (qp.attr.rnr_retry == 7) return kNever;
  return rnr_timer_ns(qp.target->rnr_timer.load(kRelaxed)) * qp.attr.rnr_retry;
}

Nanoseconds rnr_timer_ns(uint32_t code) {
  // In units of 10 us, as the specification numbers them.
  constexpr std::array<uint32_t, 32> kTimers{65536, 1,    2,    3,     4,     6,     8,     12,
                                             16,    24,   32,   48,    64,    96,    128,   192,
                                             256,   384,  512,  768,   1024,  1536,  2048,  3072,
                                             4096,  6144, 8192, 12288, 16384, 24576, 32768, 49152};
  return Nanoseconds{kTimers[code & 31]} * 10'000;
}

}  // namespace noria::soft
