#include "verbs/soft/tcp_initiator.hpp"

#include <cstring>

#include "verbs/soft/bind_target.hpp"
#include "verbs/soft/device_time.hpp"
#include "verbs/soft/engine.hpp"
#include "verbs/soft/gather.hpp"

namespace noria::soft {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
using Stage = TcpAsk::Stage;

// How long the kernel is not asked whether the other host is silent: its own first guess of a round
// trip, below which it has not even sent anything again.
constexpr Nanoseconds kQuiet = 200'000'000;
// Between two tries at a target that takes nothing now.
constexpr Nanoseconds kTryEvery = Engine::kTick;

tcp::Life own_life(const Qp& qp) { return {qp.qp_num, qp.generation}; }
tcp::Life target_life(const Qp& qp) {
  return {qp.attr.dest_qp_num, generation_of(qp.target_state)};
}

tcp::Work work_of(const Wqe& wqe) {
  switch (wqe.opcode) {
    case IBV_WR_RDMA_READ: return tcp::Work::read;
    case IBV_WR_ATOMIC_FETCH_AND_ADD: return tcp::Work::fetch_add;
    case IBV_WR_ATOMIC_CMP_AND_SWP: return tcp::Work::compare_swap;
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM: return tcp::Work::send;
    default: return tcp::Work::write;
  }
}

tcp::Request request_for(Qp& qp, Wqe& wqe, const Cut& cut) {
  tcp::Request request{.source = own_life(qp),
                       .target = target_life(qp),
                       .number = ++qp.tcp_ask.number,
                       .receive = qp.receives_taken,
                       .iova = wqe.remote_address + cut.offset,
                       .offset = cut.offset,
                       .total = wqe.bytes,
                       .bytes = static_cast<uint32_t>(cut.bytes),
                       .key = wqe.rkey,
                       .work = work_of(wqe),
                       .imm = wqe.imm};
  if (wqe.is_atomic()) {
    request.compare_add = wqe.operands().compare_add;
    request.swap = wqe.operands().swap;
  }
  const auto set_if = [&request](bool is_set, tcp::RequestFlag flag) {
    if (is_set) request.flags |= flag;
  };
  set_if(qp.moved + cut.bytes == wqe.bytes, tcp::kIsLast);
  set_if(wqe.takes_receive(), tcp::kTakesReceive);
  set_if(wqe.has_imm(), tcp::kHasImm);
  set_if((wqe.flags & IBV_SEND_SOLICITED) != 0, tcp::kIsSolicited);
  return request;
}

void settle(TcpAsk& ask, ibv_wc_status status) {
  ask.stage = Stage::settled;
  ask.status = status;
  ask.refused_since = 0;
}

Outcome wait_for_room(Qp& qp) {
  qp.tcp_ask.stage = Stage::full;
  return {Step::waits};
}

// While we wait for an answer, or for room.
Outcome watch_host(Qp& qp, Wqe& wqe) {
  if (is_host_gone(qp)) return wait_for(qp, wqe, Wait::target);
  qp.wait = Wait::none;
  return {Step::waits};
}

}  // namespace

Outcome ask_over_tcp(Qp& qp, Wqe& wqe, const Cut& cut) {
  TcpStream& stream = qp.target_peer->connection()->stream;
  qp.patience.store(Engine::kTick, kRelaxed);  // what comes wakes the service thread
  qp.tcp_ask.since = device_now();
  if (!stream.can_send()) return wait_for_room(qp);
  Pieces local;
  // What comes back must have a place to go before the target has done it; and what cannot be read
  // to its end would end the connection, which is not ours alone.
  if (!gather(qp, wqe, cut, &local) || !is_mapped(local, wqe.is_answered()))
    return fail(IBV_WC_LOC_PROT_ERR);
  const tcp::Request request = request_for(qp, wqe, cut);
  // A stream that breaks is seen by the pump; the request waits as for any that is cut.
  switch (stream.offer(request, wqe.is_answered() ? std::span<const iovec>() : local.all())) {
    case TcpStream::Offer::not_yet: return wait_for_room(qp);
    case TcpStream::Offer::unreadable: return fail(IBV_WC_LOC_PROT_ERR);
    case TcpStream::Offer::taken: break;
  }
  qp.tcp_ask.stage = Stage::asked;  // the answer comes under our lock
  qp.tcp_ask.cut = cut;
  qp.asked = qp.moved + cut.bytes;
  return {Step::waits};
}

Outcome follow_over_tcp(Qp& qp, Wqe& wqe) {
  TcpAsk& ask = qp.tcp_ask;
  const Nanoseconds now = device_now();
  switch (ask.stage) {
    case Stage::settled:
      ask.stage = Stage::idle;
      if (ask.status != IBV_WC_SUCCESS) return fail(ask.status);
      qp.moved_in_all.count(wqe.is_answered(), wqe.bytes);
      if (wqe.takes_receive()) ++qp.receives_taken;
      return {Step::finished};
    case Stage::refused: {
      if (now - ask.since < kTryEvery) return {Step::waits};
      const Nanoseconds limit = ack_limit(qp);
      if (limit != kNever && now - ask.refused_since >= limit) return fail(IBV_WC_RETRY_EXC_ERR);
      ask.stage = Stage::idle;
      return {Step::moved};
    }
    case Stage::full:
      if (!qp.target_peer->connection()->stream.can_send()) return watch_host(qp, wqe);
      ask.stage = Stage::idle;
      return {Step::moved};
    case Stage::asked: return watch_host(qp, wqe);
    case Stage::idle: break;
  }
  return {Step::moved};
}

bool is_host_gone(Qp& qp) {
  if (!qp.target_peer->is_alive()) return true;
  const Nanoseconds now = device_now();
  if (now - qp.tcp_ask.since < kQuiet) return false;
  if (qp.target_peer->connection()->stream.is_silent()) return true;
  qp.tcp_ask.since = now;
  return false;
}

void bind_over_tcp(Qp& qp) {
  qp.target_peer->connection()->stream.send(
      tcp::Bind{.source = own_life(qp), .target = target_life(qp)});
}

void want_over_tcp(const Qp& qp, uint64_t number) {
  qp.target_peer->connection()->stream.send(tcp::Want{.target = target_life(qp), .number = number});
}

void fault_over_tcp(const Qp& qp) {
  qp.target_peer->connection()->stream.send(tcp::Fault{.target = target_life(qp)});
}

bool take_target(SharedSegment& mirror, const tcp::Target& told) {
  const uint32_t index = index_of(told.qpn);
  if (index >= kMaxQps) return false;
  // Written before the first state of one of its queue pairs, and never again.
  SharedAddress& address = mirror.header.addresses[device_of(told.pd)];
  if (address.lid != told.lid || address.max_message != told.max_message ||
      std::memcmp(address.gid, told.gid.data(), told.gid.size()) != 0) {
    std::memcpy(address.gid, told.gid.data(), told.gid.size());
    address.lid = told.lid;
    address.max_message = told.max_message;
  }
  SharedQp& qp = mirror.qps[index];
  qp.remote_qpn.store(told.remote_qpn, kRelaxed);
  qp.pd.store(told.pd, kRelaxed);
  qp.max_reads.store(told.max_reads, kRelaxed);
  qp.rnr_timer.store(told.rnr_timer, kRelaxed);
  qp.rq_psn.store(told.rq_psn, kRelaxed);
  qp.path_mtu.store(told.path_mtu, kRelaxed);
  qp.has_shared_receives.store(told.has_shared_receives, kRelaxed);
  qp.rq_base.store(told.rq_base, kRelaxed);
  qp.rq_head.store(told.rq_head, kRelaxed);
  qp.rq_tail.store(told.rq_tail, std::memory_order_release);          // with has_receive()
  qp.supply_seen.store(told.supply_seen, std::memory_order_release);  // with ask_for_receives()
  qp.state.store(told.state, std::memory_order_seq_cst);              // publishes the rest
  return true;
}

void on_answer(Qp& qp, const Peer& from, const tcp::Answer& answer, const TcpStream::Frame& frame) {
  SpinGuard exec(qp.exec);
  TcpAsk& ask = qp.tcp_ask;
  // acquire: what is in error lands nothing; pairs with enter_error().
  if (ask.stage != Stage::asked || answer.number != ask.number || answer.source != own_life(qp) ||
      qp.target_peer != &from || qp.current.load(std::memory_order_acquire) != IBV_QPS_RTS)
    return;
  qp.asked = 0;
  qp.wait = Wait::none;
  if (answer.code == tcp::kNotNow) {
    ask.stage = Stage::refused;
    ask.since = device_now();
    if (ask.refused_since == 0) ask.refused_since = ask.since;
    return;
  }
  ask.was_served = true;
  Wqe& wqe = qp.wqe(qp.executed);
  const uint64_t expected = answer.code == IBV_WC_SUCCESS && wqe.is_answered() ? ask.cut.bytes : 0;
  if (frame.header.payload_bytes != expected) return settle(ask, IBV_WC_BAD_RESP_ERR);
  if (answer.code != IBV_WC_SUCCESS) return settle(ask, static_cast<ibv_wc_status>(answer.code));
  Pieces local;
  if (expected > 0 && (!gather(qp, wqe, ask.cut, &local) || !is_mapped(local, true)))
    return settle(ask, IBV_WC_LOC_PROT_ERR);
  scatter(local, frame.payload);
  qp.moved += ask.cut.bytes;
  ask.refused_since = 0;
  ask.stage = Stage::idle;
  if (qp.moved == wqe.bytes) settle(ask, IBV_WC_SUCCESS);
}

}  // namespace noria::soft
