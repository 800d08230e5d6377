#include "verbs/soft/tcp_target.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "verbs/soft/address.hpp"
#include "verbs/soft/bind_target.hpp"
#include "verbs/soft/notice.hpp"
#include "verbs/soft/own_pages.hpp"
#include "verbs/soft/own_receive.hpp"
#include "verbs/soft/shared_receives.hpp"

namespace noria::soft {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

tcp::Target read_words(const Engine& engine, uint32_t index) {
  const SharedQp& qp = engine.shared().qps[index];
  tcp::Target now;
  do {
    now.qpn = qpn_of(engine.slot(), index);
    now.state = qp.state.load(std::memory_order_acquire);  // pairs with modify_qp()
    now.remote_qpn = qp.remote_qpn.load(kRelaxed);
    now.pd = qp.pd.load(kRelaxed);
    now.max_reads = qp.max_reads.load(kRelaxed);
    now.rnr_timer = qp.rnr_timer.load(kRelaxed);
    now.rq_psn = qp.rq_psn.load(kRelaxed);
    now.path_mtu = qp.path_mtu.load(kRelaxed);
    now.has_shared_receives = qp.has_shared_receives.load(kRelaxed);
    now.rq_base = qp.rq_base.load(kRelaxed);
    now.rq_head = qp.rq_head.load(kRelaxed);
    now.supply_seen = qp.supply_seen.load(std::memory_order_acquire);  // with supply()
    now.rq_tail = qp.rq_tail.load(std::memory_order_acquire);
  } while (qp.state.load(std::memory_order_acquire) != now.state);  // it changed meanwhile
  const SharedAddress& address = engine.address(device_of(now.pd));
  std::copy_n(address.gid, now.gid.size(), now.gid.begin());
  now.lid = address.lid;
  now.max_message = address.max_message;
  return now;
}

HandWork hand_work(tcp::Work work) {
  switch (work) {
    case tcp::Work::read: return HandWork::read;
    case tcp::Work::fetch_add: return HandWork::fetch_add;
    case tcp::Work::compare_swap: return HandWork::compare_swap;
    default: return HandWork::write;
  }
}

bool is_answered(tcp::Work work) { return work != tcp::Work::write && work != tcp::Work::send; }

// Whether a part says nothing that no request can: what it brings is what its request lacks, and
// messages alone use up receives. Else its answer could hold what nobody asked for.
bool is_sound(const tcp::Request& request) {
  const bool takes_receive = (request.flags & tcp::kTakesReceive) != 0;
  const bool is_send = request.work == tcp::Work::send;
  return request.work >= tcp::Work::write && request.work <= tcp::Work::send &&
         request.bytes <= tcp::kMaxPayload && request.offset <= request.total &&
         request.bytes <= request.total - request.offset &&
         (is_send ? takes_receive : !takes_receive || !is_answered(request.work));
}

// What the receiver of a message that was refused is told.
ibv_wc_status status_at_receiver(ibv_wc_status at_sender) {
  return at_sender == IBV_WC_REM_INV_REQ_ERR ? IBV_WC_LOC_LEN_ERR : IBV_WC_LOC_PROT_ERR;
}

// Does one part; the status that the initiator gets.
ibv_wc_status do_part(Qp& qp, const tcp::Request& request, const uint8_t* payload, uint8_t* reply) {
  if (request.work == tcp::Work::send) {
    const OwnReceive receive = find_own_receive(qp, request.receive);
    if (request.total > receive.room) return IBV_WC_REM_INV_REQ_ERR;
    const bool is_placed = receive.is_good && place_in_receive(qp, request.receive, request.offset,
                                                               payload, request.bytes);
    return is_placed ? IBV_WC_SUCCESS : IBV_WC_REM_OP_ERR;
  }
  if (request.total == 0) return IBV_WC_SUCCESS;  // touches no memory: the key need not be good
  const HandWork work = hand_work(request.work);
  const uint32_t access = needed_access(work);
  // All of it or nothing, though it comes in parts.
  const auto range = find_range(qp.engine.shared(), request.key, qp.pd_number, access,
                                request.iova - request.offset, request.total);
  if (!range ||
      !has_pages(range->address + request.offset, request.bytes, request.work != tcp::Work::read))
    return IBV_WC_REM_ACCESS_ERR;
  const Order order{work,         access,        request.key,
                    request.iova, request.bytes, {request.compare_add, request.swap}};
  return carry_out(qp, order, payload, reply);
}

}  // namespace

TcpTarget::TcpTarget(Engine& engine_in, TcpConnection& connection_in, Peer& peer_in,
                     Segment& mirror_in)
    : engine(engine_in),
      connection(connection_in),
      peer(peer_in),
      mirror(mirror_in),
      sources(kMaxQps),
      reply_(std::make_unique_for_overwrite<uint8_t[]>(tcp::kMaxPayload)) {}

bool TcpTarget::handle(const TcpStream::Frame& frame) {
  if (tcp::Request request; frame.is(&request)) {
    const bool has_payload = !is_answered(request.work);
    if (!is_sound(request) || frame.header.payload_bytes != (has_payload ? request.bytes : 0))
      return false;
    serve(request, frame.payload);
    return true;
  }
  if (frame.header.payload_bytes != 0) return false;
  if (tcp::Watch asked; frame.is(&asked)) {
    watch(asked);
  } else if (tcp::Bind binding; frame.is(&binding)) {
    bind(binding);
  } else if (tcp::Want wanted; frame.is(&wanted)) {
    want(wanted);
  } else if (tcp::Fault broken; frame.is(&broken)) {
    fault(broken);
  } else {
    return false;
  }
  return true;
}

void TcpTarget::watch(const tcp::Watch& asked) {
  const uint32_t index = index_of(asked.qpn);
  if (index >= kMaxQps || slot_of(asked.qpn) != engine.slot()) return;
  const uint64_t bit = uint64_t{1} << index % 64;
  watched[index / 64] |= bit;
  note(index / 64, bit);  // what it is by now
}

void TcpTarget::tell() {
  if (!has_untold) return;
  for (uint32_t word = 0; word < untold.size(); ++word) {
    for (uint64_t& bits = untold[word]; bits != 0; bits &= bits - 1) {
      if (!connection.stream.can_send()) return;  // the next time
      const uint32_t index = 64 * word + static_cast<uint32_t>(std::countr_zero(bits));
      if (!connection.stream.send(read_words(engine, index))) return;
    }
  }
  has_untold = false;
}

bool TcpTarget::is_bound(const Qp& qp, const tcp::Life& target) const {
  return qp.source_peer == &peer && qp.generation == target.generation &&
         mirror->qps[qp.index].ring_to.load(kRelaxed) == qp.ring_name();
}

void TcpTarget::bind(const tcp::Bind& binding) {
  engine.with_qp(binding.target.qpn, [&](Qp& qp) {
    SpinGuard list(qp.receives_to().list);
    // acquire: pairs with modify_qp().
    const uint32_t state = qp.current.load(std::memory_order_acquire);
    if (!takes_requests(state) || qp.generation != binding.target.generation ||
        qp.attr.dest_qp_num != binding.source.qpn || qp.source != nullptr ||
        wire_address(qp.attr.ah_attr, engine.address(device_of(qp.pd_number))) !=
            connection.address)
      return;
    SharedQp& words = mirror->qps[qp.index];
    const uint64_t old = words.ring.load(kRelaxed);
    if (old != 0) mirror.release(ring_offset(old), ring_bytes(ring_depth(old)));
    words.ring.store(0, kRelaxed);
    const uint64_t depth = qp.receive_mask + 1;
    const uint64_t offset = mirror.carve(ring_bytes(depth));
    if (offset == Segment::kNoRoom) return;  // it retries in vain, and fails
    words.ring.store(make_ring_word(offset, static_cast<uint32_t>(depth)), kRelaxed);
    words.receives_wanted.store(qp.shared.rq_base.load(kRelaxed), kRelaxed);
    words.tail.store(qp.shared.rq_base.load(kRelaxed), kRelaxed);
    words.ring_to.store(qp.ring_name(), std::memory_order_release);  // with is_ours()
    sources[qp.index] = binding.source;
    TcpNetwork::use(&peer);
    qp.source_peer = &peer;
    qp.source = &words;
  });
}

void TcpTarget::want(const tcp::Want& wanted) {
  engine.with_qp(wanted.target.qpn, [&](Qp& qp) {
    SpinGuard list(qp.receives_to().list);
    if (!is_bound(qp, wanted.target)) return;
    mirror->qps[qp.index].receives_wanted.store(wanted.number, std::memory_order_release);
    supply(qp);
  });
}

void TcpTarget::fault(const tcp::Fault& broken) {
  engine.with_qp(broken.target.qpn, [&](Qp& qp) {
    SpinGuard list(qp.receives_to().list);
    if (!is_bound(qp, broken.target)) return;
    mirror->qps[qp.index].fault_to.store(qp.ring_name(), std::memory_order_release);
    take_fault(qp);
  });
}

namespace {

// The message that uses up the next receive is there, or was refused with `status`.
void leave_notice(Qp& qp, Segment& mirror, const tcp::Request& request, ibv_wc_status status) {
  SharedQp& words = mirror->qps[qp.index];
  const uint64_t ring = words.ring.load(kRelaxed);
  auto* const notices = reinterpret_cast<Notice*>(mirror->rings + ring_offset(ring));
  const uint64_t number = words.tail.load(kRelaxed);
  Notice& notice = notices[number & (ring_depth(ring) - 1)];
  notice.bytes = static_cast<uint32_t>(request.total);
  notice.imm = request.imm;
  notice.status = static_cast<uint16_t>(status);
  notice.flags = static_cast<uint16_t>(((request.flags & tcp::kHasImm) != 0 ? kHasImm : 0) |
                                       (request.work == tcp::Work::write ? kIsWrite : 0));
  notice.number.store(number + 1, std::memory_order_release);  // pairs with collect()
  words.tail.store(number + 1, std::memory_order_release);     // with may_flush()
}

}  // namespace

void TcpTarget::serve(const tcp::Request& request, const uint8_t* payload) {
  tcp::Answer answer{.source = request.source, .number = request.number, .code = tcp::kNotNow};
  const bool takes_receive = (request.flags & tcp::kTakesReceive) != 0;
  const bool is_last = (request.flags & tcp::kIsLast) != 0;
  uint32_t reply_bytes = 0;
  engine.with_qp(request.target.qpn, [&](Qp& qp) {
    SpinGuard list(qp.receives_to().list);
    SharedQp& words = mirror->qps[qp.index];
    // acquire: pairs with modify_qp() and enter_error(); who leaves these states takes our lock.
    const uint64_t state = qp.shared.state.load(std::memory_order_acquire);
    const uint64_t tail = words.tail.load(kRelaxed);
    if (!is_bound(qp, request.target) || sources[qp.index] != request.source ||
        (state & kPortDownBit) != 0 || !takes_requests(state_of(state)) ||
        !takes_requests(qp.current.load(std::memory_order_acquire)))
      return;
    if (takes_receive &&
        (request.receive != tail || tail >= qp.shared.rq_tail.load(std::memory_order_acquire)))
      return;
    const ibv_wc_status status = do_part(qp, request, payload, reply_.get());
    answer.code = status;
    const bool is_refused = status != IBV_WC_SUCCESS;
    if (!is_refused && is_answered(request.work)) reply_bytes = request.bytes;
    if (!is_refused && !is_last) return;
    if (!is_refused) qp.taken.count(is_answered(request.work), request.total);
    const bool is_told = takes_receive && (!is_refused || request.work == tcp::Work::send);
    if (is_told)
      leave_notice(qp, mirror, request, is_refused ? status_at_receiver(status) : status);
    if (is_refused) {
      words.fault_to.store(qp.ring_name(), std::memory_order_release);  // with has_fault()
      take_fault(qp);
    }
  });
  const iovec reply{reply_.get(), reply_bytes};
  connection.stream.send(answer, {&reply, reply_bytes > 0 ? 1u : 0u});
  const bool is_refused = answer.code != IBV_WC_SUCCESS;
  if (!takes_receive || answer.code == tcp::kNotNow || (!is_last && !is_refused)) return;
  // Behind the answer: a sender knows before the receiver is woken.
  const bool is_solicited = (request.flags & tcp::kIsSolicited) != 0;
  engine.with_qp(request.target.qpn,
                 [&](Qp& qp) { fire_local(qp.receives_to(), is_solicited || is_refused); });
}

}  // namespace noria::soft
