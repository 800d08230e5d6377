// What one process shows to its peers: the layout of the shared segment.
//
// A segment belongs to one process, which alone writes it; peers map it read-only. So every word
// has exactly one writer, there is no lock and no counter between processes, and a peer that is
// killed at any instruction leaves nothing half-owned. A pair of queue pairs A and B talks so:
//
//   A sends to B    A reads B's receive queue (rq_*, the WQEs), moves the bytes and writes notice n
//                   into its own ring, its number last. Notice n uses up receive n: one index
//                   serves both, so the ring can never overflow.
//                   What is small rides in it; of the receives A then reads one word, `rq_room`.
//   B receives      B looks at the notice that comes next: its number says whether it is there. So
//                   a small message changes cores as one cache line. B publishes `rq_head`.
//   A fences        before it touches B's memory A publishes `mark`; B's dereg, reset and destroy
//                   first revoke (key, state), then wait until no mark names what they revoked.
//   B's CQ sleeps   B publishes the CQ's `armed` word; A compares it after publishing a notice.
//
// All words are atomics; config words are relaxed and ordered by the word that publishes them.
//
// Threads: any thread of any process reads; the owner's locks serialise the one writer.
#pragma once

#include <atomic>
#include <cstdint>

namespace noria::soft {

// ---- names --------------------------------------------------------------------------------------
// QPN = slot of the process (10 bits) << 14 | index of the queue pair. Slot 0 is never used, so
// that no QPN looks like the special QP0 or QP1.
constexpr uint32_t kIndexBits = 14;
constexpr uint32_t kSlots = 1024;
constexpr uint32_t kMaxQps = 4096;
constexpr uint32_t kMaxCqs = 1024;
constexpr uint32_t kMaxMrs = 1u << 16;
constexpr uint32_t kMaxChannels = 256;
constexpr uint32_t kMaxAllocations = 1024;
constexpr uint32_t kMaxSge = 16;
constexpr uint32_t kMaxQueueDepth = 16384;
constexpr uint32_t kMaxDevices = 32;
constexpr uint32_t kMaxInline = 256;
constexpr uint32_t kInNotice = 44;  // SENDs up to this many bytes ride in their notice,
constexpr uint32_t kInPlace = 256;  // up to this many in the ring beside it

constexpr uint32_t qpn_of(uint32_t slot, uint32_t index) { return slot << kIndexBits | index; }
constexpr uint32_t slot_of(uint32_t qpn) { return qpn >> kIndexBits & (kSlots - 1); }
constexpr uint32_t index_of(uint32_t qpn) { return qpn & ((1u << kIndexBits) - 1); }

// The number of a protection domain says of which device of its process it is.
constexpr uint32_t pd_of(uint32_t serial, uint32_t device) { return serial * kMaxDevices + device; }
constexpr uint32_t device_of(uint32_t pd) { return pd % kMaxDevices; }

using Word32 = std::atomic<uint32_t>;
using Word64 = std::atomic<uint64_t>;
static_assert(Word64::is_always_lock_free && sizeof(Word64) == 8);

// ---- header -------------------------------------------------------------------------------------
constexpr uint64_t kSegmentMagic = 0x4e4f5249'41534547;  // "NORIASEG"
constexpr uint32_t kLayoutVersion = 11;

// A device's port: where it is on the fabric (address.hpp), and what it takes. Never changes.
struct SharedAddress {
  uint8_t gid[16];
  uint32_t lid;          // 0: on Ethernet, which has none
  char name[64];         // "host/name" of the device; empty where there is none
  uint32_t max_message;  // bytes of a request
};

// Payload that an initiator moved to and from somebody.
struct Moved {
  uint64_t written_bytes = 0, written_messages = 0, read_bytes = 0, read_messages = 0;

  Moved& operator+=(const Moved& more) {
    written_bytes += more.written_bytes;
    written_messages += more.written_messages;
    read_bytes += more.read_bytes;
    read_messages += more.read_messages;
    return *this;
  }
  Moved operator-(const Moved& before) const {
    return {written_bytes - before.written_bytes, written_messages - before.written_messages,
            read_bytes - before.read_bytes, read_messages - before.read_messages};
  }
};
struct Traffic {
  Word64 written_bytes, written_messages, read_bytes, read_messages;

  // One thread at a time. relaxed, here and below: counters order nothing.
  void count(bool is_read, uint64_t bytes) {
    constexpr auto kRelaxed = std::memory_order_relaxed;
    Word64& all = is_read ? read_bytes : written_bytes;
    Word64& messages = is_read ? read_messages : written_messages;
    all.store(all.load(kRelaxed) + bytes, kRelaxed);
    messages.store(messages.load(kRelaxed) + 1, kRelaxed);
  }
  Moved now() const {
    constexpr auto kRelaxed = std::memory_order_relaxed;
    return {written_bytes.load(kRelaxed), written_messages.load(kRelaxed),
            read_bytes.load(kRelaxed), read_messages.load(kRelaxed)};
  }
};

struct alignas(64) SharedHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t slot;
  uint64_t segment_bytes;
  uint64_t cookie[2];       // random; read back by cross-memory attach to prove whose memory it is
  uint64_t cookie_address;  // where the owner has `cookie`
  SharedAddress addresses[kMaxDevices];
  Word64 qps_in_use[kMaxQps / 64];  // a bit for each queue pair; set before its first mark
  // Of this process, by the target's slot and device; what rides in notices the target counts.
  Traffic traffic[kSlots][kMaxDevices];
};

// ---- queue pair ---------------------------------------------------------------------------------
constexpr uint64_t kMarkBit = 1ull << 63;
constexpr uint32_t kAnyKey = 0xffffffff;  // a mark that covers the buffers of a receive

constexpr uint64_t make_mark(uint32_t target_qpn, uint32_t rkey) {
  return kMarkBit | static_cast<uint64_t>(target_qpn) << 32 | rkey;
}
constexpr uint32_t mark_qpn(uint64_t mark) { return mark >> 32 & 0xffffff; }
constexpr uint32_t mark_key(uint64_t mark) { return static_cast<uint32_t>(mark); }

constexpr uint64_t make_state(uint32_t generation, uint32_t state) {
  return static_cast<uint64_t>(generation) << 8 | state;
}
// In the state word: the port is down, so that nothing reaches the queue pair.
constexpr uint64_t kPortDownBit = 0x80;
constexpr uint32_t state_of(uint64_t word) { return word & 0x7f; }
constexpr uint32_t generation_of(uint64_t word) { return static_cast<uint32_t>(word >> 8); }

struct alignas(64) SharedQp {
  // What the connection is: written at set-up, published by `state`.
  Word64 state;       // generation << 8 | port is down | ibv_qp_state; a reset starts a new one
  Word32 remote_qpn;  // the one queue pair that may act on this one
  Word32 pd;
  Word32 access;  // qp_access_flags
  Word32 max_reads;
  Word32 rnr_timer;
  Word32 rq_psn;
  Word32 recv_cq;
  Word32 rq_depth;  // power of two
  Word32 rq_stride;
  Word32 path_mtu;  // ibv_mtu
  Word64 rq_offset;
  Word64 rq_base;  // number of the first receive of this generation

  // As receiver.
  alignas(64) Word64 rq_tail;  // receives posted; publishes their WQEs
  Word64 rq_head;              // receives that turned into completions
  Word64 hand_done;            // questions answered (make_answered()); publishes the answers
  Word64 hand_replies;         // offset of the slots with the bytes of reads
  Word32 has_shared_receives;  // receives come as they are asked for (shared_receives.hpp)
  Word64 supply_seen;          // up to which number they were asked for when we looked last

  // As initiator, read by every poll of the target: nothing here changes with each message.
  alignas(64) Word64 ring_to;  // whom the ring is for: qpn << 32 | generation
  Word64 ring;                 // make_ring_word() (notice.hpp); published by ring_to
  Word64 fault_to;             // whose rules a request of ours broke, as ring_to
  Word64 hand_asked;           // questions asked (make_asked()); publishes them
  Word64 hand_questions;       // offset of their slots
  Word64 receives_wanted;      // up to which number, of a target with shared receives
  Word32 fired;    // the `armed` value of the target's CQ that was answered with an event
  Word32 rq_room;  // as receiver: any receive takes a message shorter than this

  // As initiator, written with each request; read by whoever revokes or flushes something.
  alignas(64) Word64 mark;
  Word64 tail;  // notices written
};
static_assert(sizeof(SharedQp) == 256);

// A posted receive, as its initiator reads it. `sge` has room for the queue's max_sge entries.
struct SharedSge {
  Word64 address;
  Word32 length;
  Word32 key;
};
struct SharedRecv {
  Word64 sge_count;
  SharedSge sge[1];
};

// ---- hands: what the target is asked to move itself (hands.hpp) ---------------------------------
constexpr uint32_t kHandSlots = 4;
constexpr uint64_t kHandBytes = (128 << 10) - 64;  // with its head a slot is a power of two

enum class HandWork : uint32_t { write, read, fetch_add, compare_swap };

struct alignas(64) HandSlot {
  Word64 iova;
  Word32 key;
  Word32 access;
  Word32 bytes;
  Word32 work;  // HandWork
  Word32 target_generation;
  Word64 compare_add, swap;  // of an atomic
  alignas(64) uint8_t data[kHandBytes];
};

static_assert(sizeof(HandSlot) == 128 << 10, "room for rings is given in powers of two");

// generation of the initiator << 40 | ibv_wc_status of the last answer << 32 | count
constexpr uint32_t kHandGenerationMask = 0xffffff;
constexpr uint64_t make_answered(uint32_t generation, uint32_t count, uint32_t status) {
  return static_cast<uint64_t>(generation & kHandGenerationMask) << 40 |
         static_cast<uint64_t>(status & 0xff) << 32 | count;
}
constexpr uint64_t make_asked(uint32_t generation, uint32_t count) {
  return make_answered(generation, count, 0);
}
constexpr uint32_t hand_generation(uint64_t word) { return static_cast<uint32_t>(word >> 40); }
constexpr uint32_t hand_status(uint64_t word) { return word >> 32 & 0xff; }
constexpr uint32_t hand_count(uint64_t word) { return static_cast<uint32_t>(word); }

// ---- memory region ------------------------------------------------------------------------------
struct alignas(64) SharedMr {
  Word64 key;      // the key while valid, else 0; publishes the rest
  Word64 address;  // where the memory is
  Word64 iova;     // how requests name it
  Word64 length;
  Word64 allocation_offset;
  Word32 allocation;  // number of the mapped allocation it lies in, 0 if none
  Word32 access;
  Word32 pd;
  Word32 is_posted;  // writes to it are kept back (posted_writes.hpp): only its owner makes them
};

// ---- completion queue ---------------------------------------------------------------------------
enum class Arm : uint32_t { off = 0, solicited = 1, any = 2 };

struct alignas(64) SharedCq {
  Word32 armed;    // how often it was armed << 2 | Arm
  Word32 channel;  // number of the completion channel + 1, 0 if none
};
constexpr Arm arm_of(uint32_t armed) { return static_cast<Arm>(armed & 3); }

// ---- the whole ----------------------------------------------------------------------------------
// The kernel gives pages as they are touched: a small job uses some tens of KiB of this.
constexpr uint64_t kRingArenaBytes = 192ull << 20;

struct SharedSegment {
  SharedHeader header;
  SharedCq cqs[kMaxCqs];
  SharedQp qps[kMaxQps];
  SharedMr mrs[kMaxMrs];
  alignas(4096) uint8_t rings[kRingArenaBytes];
};

}  // namespace noria::soft
