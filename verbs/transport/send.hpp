// SendState: the sending end.
//
// Messages are numbered from wire::kFirstSequence and use slot n % kWindow of the credit ring and
// of the request pool. A message is posted when its credit is there, cut into at most one piece per
// queue pair, each a signalled RDMA WRITE with immediate. Requests are reported done in order. From
// adaptive_from() bytes on a piece is a plain write, and the write behind it that announces it
// carries the message's record (adaptive.hpp, wire.hpp). So is one that is longer than a work
// request of the device may be (8 MiB on Soft-RoCE): as many plain writes as it takes, then the one
// that announces it. One such message is under way at a time, for which the send queue has room.
//
// The messages of a group have consecutive numbers, and a send takes the first of its tag that no
// other took. The numbers behind the group begin when all are taken.
//
// Threads: the owner of the domain.
#pragma once

#include <array>
#include <memory>

#include "verbs/transport/credit.hpp"
#include "verbs/transport/kept_storage.hpp"
#include "verbs/transport/link.hpp"
#include "verbs/transport/region_state.hpp"
#include "verbs/transport/request_access.hpp"
#include "verbs/transport/stripe.hpp"
#include "verbs/wr.hpp"

namespace noria::transport {

class SendState : public InKeptStorage {
 public:
  // Of the receiver: its rails, and what they take in one work request.
  struct Peer {
    unsigned rails = 1;
    uint64_t request_bytes = kMaxMessageBytes;  // whole lines
  };
  static Result<std::unique_ptr<SendState>> make(DomainState& domain, const ConnectOptions& options,
                                                 const Peer& peer);

  Link& link() { return link_; }
  RemoteRegion credits() const;  // to be told to the receiver
  bool wants_records() const { return recorded_from_ <= kMaxMessageBytes; }  // as well
  void adopt(const wire::Records& records) { records_ = records; }           // the receiver's
  void start();                                                              // the link is up
  void set_owner(void* owner) { RequestAccess::set_owner(requests_, owner); }

  NORIA_HOT Request* try_send(const RegionState* region, uint64_t offset, uint64_t bytes,
                              uint32_t tag);
  NORIA_HOT Request* try_send_inline(const void* data, uint32_t bytes);
  NORIA_HOT bool try_write_line(const RemoteRegion& to, uint64_t offset, const void* line);
  NORIA_HOT const ibv_wc* on_completions(const ibv_wc* wc, const ibv_wc* end);  // as RecvState's
  NORIA_COLD void on_failed(Status status);

 private:
  // Lines on their way at most; one in kLineBatch is signalled, or the queue would never empty.
  static constexpr uint32_t kLineDepth = 64;
  static constexpr uint32_t kLineBatch = 16;
  static_assert(2 * kLineBatch <= kLineDepth);
  // Behind those of messages, so that a completion need not be asked whose it is.
  static constexpr uint32_t kLineSlot = kWindow;

  NORIA_HOT void on_completion(WrId id, verbs::Completion completion);
  SendState(DomainState& domain, const ConnectOptions& options, const Peer& peer);

  NORIA_HOT Request* on_credit_missing();
  // Out of line: a receive by itself, the common case, does without.
  [[gnu::noinline]] NORIA_HOT Request* try_send_in_group(CreditView first,
                                                         const RegionState* region, uint64_t offset,
                                                         uint64_t bytes, uint32_t tag);
  NORIA_COLD Request* on_group_of_none(uint32_t members);
  // What try_send() does with one that does not fit. Apart, so that no other keeps anything for it.
  NORIA_COLD Request* try_send_long(const RegionState* region, uint64_t offset, uint64_t bytes);
  // In the memory of both sides, and not above `most`.
  NORIA_HOT bool fits(CreditView credit, const RegionState* region, uint64_t offset, uint64_t bytes,
                      uint64_t most) const;
  // Of what is no single work request: whether it goes as the one long message. Not while another
  // does; and where it cannot go at all its request is done, refused.
  NORIA_COLD bool goes_in_parts(Request& request, CreditView credit, const RegionState* region,
                                uint64_t offset, uint64_t bytes);
  // Message `sequence`, for which there are a credit and a free request.
  NORIA_HOT void send_message(uint64_t sequence, CreditView credit, Request* request,
                              const RegionState* region, uint64_t offset, uint64_t bytes);
  // What work requests of a queue pair have in common.
  struct alignas(32) Path {
    ibv_qp* qp = nullptr;
    uint64_t id = 0;
    uint32_t rail = 0;  // ours
    uint32_t peer_rail = 0;
    uint32_t key = 0;  // of the peer's rail: its word in a credit
  };
  NORIA_HOT void send_whole(const Path& path, uint64_t sequence, CreditView credit,
                            Request* request, const RegionState* region, uint64_t bytes);
  // A message that is cut, whose packets may be routed one by one, or for which there is a choice.
  [[gnu::noinline]] NORIA_HOT void send_on_many(uint64_t sequence, CreditView credit,
                                                Request* request, const RegionState* region,
                                                uint64_t bytes);
  NORIA_HOT void post_recorded(const Cut& cut, uint64_t sequence, CreditView credit,
                               const RegionState& region, uint64_t bytes);
  [[gnu::noinline]] bool post_front(const Path& path, uint32_t bytes, uint32_t lkey, uint32_t rkey);
  NORIA_HOT void post(const Path& path, uint32_t bytes, uint32_t lkey, CreditView credit,
                      uint32_t slot);
  NORIA_HOT void post_line();
  // Out of line: fifteen lines of sixteen do without.
  [[gnu::noinline]] NORIA_HOT void post_signalled_line();
  NORIA_HOT void count_message(uint64_t bytes);
  NORIA_HOT void finish_in_order();

  std::unique_ptr<RegionState> ring_memory_;  // outlives the queue pairs that the peer writes by
  wire::Credit* ring_ = nullptr;
  Link link_;
  CounterCells& counters_;  // of the domain

  uint64_t next_ = wire::kFirstSequence;          // of the next message, or of a group's first
  uint64_t first_undone_ = wire::kFirstSequence;  // oldest that is not done
  uint32_t group_sent_ = 0;                       // a bit for each of the group's that was sent
  const uint64_t adaptive_from_;
  uint64_t stripe_min_;
  uint64_t long_from_ = UINT64_MAX;  // the smaller of both
  uint64_t alone_below_ = 0;         // such go whole over the only queue pair; 0 if there are more
  const uint64_t request_bytes_;     // that a work request carries at most, by either side
  const uint64_t recorded_from_;     // the bytes of a message whose length goes by a record
  Request* long_ = nullptr;          // the last message of several work requests a piece
  Stripe stripe_;
  std::array<Path, wire::kMaxQps> paths_;
  verbs::RdmaWr write_{IBV_WR_RDMA_WRITE_WITH_IMM, IBV_SEND_SIGNALED};
  verbs::RdmaWr data_{IBV_WR_RDMA_WRITE, 0};
  verbs::RdmaWr part_{IBV_WR_RDMA_WRITE, 0};
  verbs::RdmaWr notice_{IBV_WR_RDMA_WRITE_WITH_IMM, IBV_SEND_SIGNALED | IBV_SEND_INLINE};
  verbs::RdmaWr line_{IBV_WR_RDMA_WRITE, IBV_SEND_INLINE};
  uint32_t lines_posted_ = 0;
  uint32_t line_depth_ = 0;  // kLineDepth, or none where lines are not sent
  wire::Record record_ = 0;  // its bytes are taken as it is posted
  wire::Records records_;
  // By slot; the pieces of the last are the signalled lines on their way.
  std::array<Request, kWindow + 1> requests_;
};

}  // namespace noria::transport
