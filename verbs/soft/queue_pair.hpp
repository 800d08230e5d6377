// Qp: one reliable-connected queue pair of this process.
//
// Two queues, two roles. As initiator it executes its own send queue (execute.cc): whoever holds
// `exec` moves bytes; everybody else goes on. As receiver it owns the receive queue in shared
// memory, which the connected peer reads, and turns the peer's notices into completions
// (harvest.cc).
//
// Locks, in order: Cq::list, Qp::exec, Cq::push. `post` and `receive` are leaves.
//
// Threads: any thread.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <memory>
#include <vector>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "verbs/soft/copy_path.hpp"
#include "verbs/soft/device_copy.hpp"
#include "verbs/soft/hands.hpp"
#include "verbs/soft/held_answers.hpp"
#include "verbs/soft/notice.hpp"
#include "verbs/soft/pace.hpp"
#include "verbs/soft/peer.hpp"
#include "verbs/soft/receive_room.hpp"
#include "verbs/soft/shared_layout.hpp"
#include "verbs/soft/spin_lock.hpp"
#include "verbs/soft/tcp_ask.hpp"

namespace noria::soft {

class Engine;
struct Cq;
struct QpFaults;

constexpr bool is_atomic_opcode(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
}
constexpr uint64_t kAtomicBytes = 8;

// A queued send request. Followed by `sge_count` ibv_sge, or by `bytes` of inline data.
struct Wqe {
  uint64_t wr_id;
  uint64_t remote_address;
  uint64_t bytes;
  uint32_t rkey;
  uint32_t imm;
  ibv_wr_opcode opcode;
  uint32_t flags;  // ibv_send_flags
  uint32_t sge_count;
  uint32_t reserved;
  // On a shaped link: when it was posted, and when its poster may know that it is through.
  Nanoseconds posted;
  Nanoseconds known;

  // In `flags`: what it brings goes to Qp::held until it lands.
  static constexpr uint32_t kIsHeld = 1u << 31;

  ibv_sge* sges() { return reinterpret_cast<ibv_sge*>(this + 1); }
  uint8_t* inline_data() { return reinterpret_cast<uint8_t*>(this + 1); }
  // Of an atomic, behind its one piece.
  AtomicOperands& operands() { return *reinterpret_cast<AtomicOperands*>(sges() + 1); }
  bool is_atomic() const { return is_atomic_opcode(opcode); }
  // Brings bytes back, and holds one of the target's resources until they have come.
  bool is_answered() const { return opcode == IBV_WR_RDMA_READ || is_atomic(); }
  bool has_imm() const {
    return opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  }
  bool takes_receive() const { return opcode == IBV_WR_SEND || has_imm(); }
};

// Why the head of a send queue waits, and since when.
enum class Wait : uint32_t { none, target, receive };

struct Qp : ibv_qp {
  Qp(Engine& engine, SharedQp& shared, uint32_t index, ibv_pd* pd, const ibv_qp_init_attr& init);
  ~Qp();
  Qp(const Qp&) = delete;
  Qp& operator=(const Qp&) = delete;

  Engine& engine;
  SharedQp& shared;
  const uint32_t index;
  uint32_t pd_number = 0;
  bool signal_all = false;
  ibv_qp_cap cap{};

  // The state that decides; ibv_qp::state is the caller's copy of it.
  std::atomic<uint32_t> current{IBV_QPS_RESET};
  // As last modified. Both are written under the receive CQ's list lock and exec together, and read
  // under either.
  ibv_qp_attr attr{};
  uint32_t generation = 0;
  uint32_t peer_ece = 0;  // options that were set since INIT; 0: none
  // Its path leads to a process that shares no memory with us (tcp_network.hpp).
  std::atomic<bool> goes_over_tcp{false};

  // ---- send queue: posters write, the executor reads -----------------------------------------
  SpinLock post;
  std::unique_ptr<uint8_t[]> send_memory;
  uint32_t send_stride = 0;
  uint32_t send_mask = 0;
  std::atomic<uint64_t> send_tail{0};      // posted; publishes the WQEs to the executor
  std::atomic<uint64_t> send_released{0};  // room given back when completions were polled

  // ---- initiator: guarded by exec ------------------------------------------------------------
  SpinLock exec;
  std::atomic<uint64_t> send_head{0};  // completed; written under exec, read by has_work()
  uint64_t executed = 0;      // took effect; up to here from send_head, the poster may not know yet
  uint64_t moved = 0;         // bytes of the next request that are through
  uint64_t asked = 0;         // and that the target's hand was asked to move, moved or not
  Traffic moved_in_all{};     // of its whole life; read by port_stats()
  uint64_t max_message = 0;   // of a request, as its device says
  uint64_t target_takes = 0;  // likewise, of the target's; once bound
  uint64_t largest = 0;       // that this connection carries
  Wait wait = Wait::none;
  Nanoseconds wait_since = 0;
  std::atomic<Nanoseconds> patience{0};  // how long the service thread may leave a wait alone
  Nanoseconds asked_at = 0;              // for a link to the target's process
  bool is_linking = false;               // and there is one, which has not answered yet
  Nanoseconds called_at = 0;             // over TCP, for the first time in this life
  Peer* target_peer = nullptr;           // in use until unbind_target()
  const SharedQp* target = nullptr;
  PortSchedule* target_port = nullptr;  // of its device; null on a link that is not shaped
  uint64_t target_state = 0;            // the state word under which `target` was found good
  uint64_t receives_taken = 0;          // of the target's; the number of the next notice
  uint64_t receives_seen = 0;           // that it had posted when we looked last
  Arm wakes = Arm::off;                 // what the message just sent wakes; see wake_target()
  bool may_bind = false;  // fresh since our last reset: may adopt the target's numbering
  Notice* ring = nullptr;
  uint8_t* in_place = nullptr;
  uint32_t ring_mask = 0;
  HeldAnswers held;  // of a device that places late
  Pace pace;
  Asker asker;
  TcpAsk tcp_ask;
  std::unique_ptr<QpFaults> faults;  // null where no rule of NORIA_SOFT_FAULTS may concern it

  // ---- receive queue -------------------------------------------------------------------------
  SpinLock receive;
  std::unique_ptr<uint64_t[]> receive_ids;  // wr_id by slot
  uint64_t receive_carved = Segment::kNoRoom, receive_bytes = 0;
  uint32_t receive_mask = 0;
  uint64_t receive_tail = 0;              // posted; guarded by `receive`
  ReceiveRoom room{kInPlace + 1};         // of a queue of our own; guarded as well
  std::atomic<uint64_t> receive_head{0};  // completed; written under the receive CQ's list lock
  Peer* source_peer = nullptr;            // whose notices we read; under the same lock
  const SharedQp* source = nullptr;
  Traffic taken{};  // that rode in notices; written under the same lock, read by port_stats()
  std::atomic<bool> flush_waits{false};  // receives are to be flushed when the peer lets go of us
  Answerer answerer;
  bool has_told_last = false;  // IBV_EVENT_QP_LAST_WQE_REACHED; guarded as `source`

  Wqe& wqe(uint64_t number) {
    return *reinterpret_cast<Wqe*>(send_memory.get() + (number & send_mask) * send_stride);
  }
  SharedRecv& shared_recv(uint64_t number) const;
  Cq& sends_to() const;
  Cq& receives_to() const;

  // acquire in both: pairs with post_send() and the executor.
  bool has_work() const {
    return send_tail.load(std::memory_order_acquire) != send_head.load(std::memory_order_acquire);
  }
  uint64_t ring_name() const { return static_cast<uint64_t>(qp_num) << 32 | generation; }
};

// Appends requests to the send queue and executes what it can of them. 0, or an errno value with
// `*bad` at the first request that was refused.
int post_send(Qp& qp, ibv_send_wr* first, ibv_send_wr** bad);
int post_recv(Qp& qp, ibv_recv_wr* first, ibv_recv_wr** bad);
// Memory went that posted receives may name: who sends looks at them again.
void doubt_receives(Qp& qp);

// Executes queued requests, up to about `budget` bytes. Returns at once if another thread is at it.
constexpr uint64_t kExecuteBudget = 1 << 20;
enum class Progress {
  idle,
  waits,       // for the target
  paced,       // for a time that the shaped link sets: Pace::due
  wants_more,  // the budget was used up
};
Progress try_execute(Qp& qp, uint64_t budget);
// The same for callers from the application: what is left over is given to the service thread.
void advance(Qp& qp, uint64_t budget);
// When the service thread must look at a queue that `progress` left with work.
Nanoseconds next_look(const Qp& qp, Progress progress);

// Turns what arrived into at most `room` completions. Under the receive CQ's list lock.
int harvest(Qp& qp, ibv_wc* out, int room);
// How many have arrived. Under the same lock.
uint64_t unread(Qp& qp);
// Forgets whose notices we read. Under the same lock.
void unbind_source(Qp& qp);
// Whether flush_waits can end: the peer is not in the middle of something. Under the same lock.
bool may_flush(Qp& qp);
// Of a queue pair with shared receives that is in error: gives back what it holds, and says that it
// takes no more. Under the same lock.
void end_shared(Qp& qp);
// Whether the peer's ring is known and for this queue pair. Under the same lock.
bool is_source_bound(Qp& qp);
// Wakes who sleeps for a message of a peer that has ended: it may have been killed before it did.
// Under the same lock.
void wake_for_lost(Qp& qp);
// Goes to error if the peer says that it broke the connection's rules. Under the same lock.
void take_fault(Qp& qp);

// To the error state: everything queued completes with a flush error, peers are refused. False if
// it was there already.
bool enter_error(Qp& qp);

}  // namespace noria::soft
