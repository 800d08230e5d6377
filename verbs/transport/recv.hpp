// RecvState: the receiving end, and the reads that it makes.
//
// A receive writes a credit into the sender's ring; the message then lands by itself and each of
// its pieces consumes one posted receive. Receives for the whole window are posted on every queue
// pair from the start and replaced in batches, so that a sender with a credit never finds none. A
// group is messages with consecutive numbers; its request is that of the last.
//
// A sender that routes adaptively writes how many bytes a message has into the ring of records,
// with the immediate, and the bytes before it. Where there is a Staging, small messages land there
// and are copied from it. Pieces of both are told from the usual ones by the comparison that finds
// a piece of no message, so that those pay nothing for them.
//
// Reads are cut into chunks, and a bounded number of chunks is on each queue pair at a time; the
// rest follows as chunks complete.
//
// Threads: the owner of the domain.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "base/units.hpp"
#include "verbs/transport/flush.hpp"
#include "verbs/transport/kept_storage.hpp"
#include "verbs/transport/link.hpp"
#include "verbs/transport/region_state.hpp"
#include "verbs/transport/request_access.hpp"
#include "verbs/transport/staging.hpp"
#include "verbs/wr.hpp"

namespace noria::transport {

class RecvState : public InKeptStorage {
 public:
  static Result<std::unique_ptr<RecvState>> make(DomainState& domain, const ConnectOptions& options,
                                                 unsigned peer_rails = 1);

  Link& link() { return link_; }
  // The link is up, `credits` is the sender's ring. Fails when receives cannot be posted.
  Status prepare(const RemoteRegion& credits);
  // The sender wants to write records. Before it is told that we are ready.
  Status make_records();
  wire::Records records() const;  // to be told to the sender; none of none
  void start();

  NORIA_HOT Request* try_recv(const Region& region, uint64_t offset, uint64_t bytes, uint32_t tag);
  NORIA_HOT Request* try_recv_group(std::span<const RecvPart> parts);
  NORIA_HOT Request& part(const Request* request, uint32_t index);
  void release_group(Request* request);
  void set_owner(void* owner);
  NORIA_HOT Request* try_read(const RegionState* local, uint64_t local_offset,
                              const RemoteRegion& remote, uint64_t remote_offset, uint64_t bytes);
  Request* try_flush(std::span<const FlushPoint> points);
  // Handles completions from `wc` on, the first of which is of this connection, up to the first of
  // another; returns that, or `end`.
  NORIA_HOT const ibv_wc* on_completions(const ibv_wc* wc, const ibv_wc* end);
  NORIA_COLD void on_failed(Status status);

 private:
  // Receives are posted in chains of this many: one call instead of sixteen.
  static constexpr uint32_t kBatch = 16;
  static constexpr uint32_t kPostedReceives = kWindow + kBatch;
  // One credit in kBatch is signalled; without any the send queue would never empty.
  static constexpr uint32_t kCreditDepth = 4 * kBatch;
  static constexpr uint32_t kReadDepth = 16;  // chunks on a queue pair
  // Small enough that credits behind a chunk do not wait long, large enough to cost nothing.
  static constexpr uint64_t kChunkBytes = 1_MiB;
  static_assert(kPostedReceives % kBatch == 0 && 2 * kBatch <= kCreditDepth);

  // What is kept per queue pair.
  struct Lane {
    std::array<ibv_recv_wr, kBatch> wrs{};
    uint32_t reads_posted = 0;
  };
  struct ReadJob {
    const RegionState* local = nullptr;
    uint64_t local_offset = 0;
    uint64_t remote_address = 0;
    std::array<uint32_t, kMaxReadRails> rkeys{};
    uint64_t posted = 0;
  };

  RecvState(DomainState& domain, const ConnectOptions& options, unsigned peer_rails);
  Status post_receives(uint32_t qp);
  // Out of line: receives of a few bytes, where such are staged.
  [[gnu::noinline]] NORIA_HOT Request* try_small_recv(const Region& region, uint64_t offset,
                                                      uint64_t bytes, uint32_t tag);
  NORIA_HOT Request* try_recv_alone(const Region& region, uint64_t offset, uint64_t bytes,
                                    uint32_t tag, bool is_small);
  // The credit of message `sequence`. Returns how its pieces are named; kNoMessage when that is no
  // range of the region.
  NORIA_HOT uint32_t make_credit(uint64_t sequence, uint64_t match, const Region& region,
                                 uint64_t offset, uint64_t bytes, bool is_small);
  NORIA_HOT static void await(Request& request, uint32_t message, uint64_t bytes);
  NORIA_HOT void send_credit(uint64_t sequence);
  NORIA_HOT void post_credit();
  // Out of line: fifteen credits of sixteen do without.
  [[gnu::noinline]] NORIA_HOT void post_signalled_credit();
  NORIA_HOT void on_completion(WrId id, verbs::Completion completion);
  NORIA_HOT void on_piece(uint32_t qp, verbs::Completion::Success piece);
  // Out of line: senders that route adaptively; of another piece it is for on_staged_piece().
  [[gnu::noinline]] NORIA_HOT void on_recorded_piece(uint32_t qp, uint32_t imm,
                                                     uint32_t piece_bytes);
  NORIA_HOT uint64_t recorded_bytes(uint32_t slot) const;
  // Also where a piece is of no message.
  [[gnu::noinline]] NORIA_HOT void on_staged_piece(uint32_t qp, uint32_t imm, uint32_t piece_bytes);
  NORIA_COLD void on_memory_gone();
  NORIA_HOT void count_piece(Request& request, uint32_t slot, uint32_t imm, uint32_t qp);
  NORIA_HOT void count_receive(uint32_t qp);
  // Out of line: fifteen pieces of sixteen do without.
  [[gnu::noinline]] NORIA_HOT void replace_receives(uint32_t qp);
  NORIA_HOT void on_whole(Request& request, uint32_t slot);
  [[gnu::noinline]] NORIA_HOT void finish_in_order();
  NORIA_HOT void on_read(WrId id);
  NORIA_HOT void post_reads();
  NORIA_COLD void on_flush_failed(verbs::Completion completion, uint32_t rail);
  NORIA_COLD void on_protocol_broken(const char* what, uint32_t imm);

  // These outlive the queue pairs that the peer writes by.
  std::unique_ptr<RegionState> record_memory_;
  std::unique_ptr<Staging> staging_;  // if there is any use in it

  wire::Record* records_ = nullptr;  // kWindow of them, if they were wanted
  uint64_t staged_below_ = 0;        // receives of fewer bytes; 0: none
  Link link_;
  CounterCells& counters_;  // of the domain
  RemoteRegion credits_;
  uint64_t next_ = wire::kFirstSequence;
  // The first message whose credit has no room in the send queue; 0 once the link has failed.
  uint64_t first_without_room_ = wire::kFirstSequence + kCreditDepth;
  uint64_t first_undone_ = wire::kFirstSequence;
  uint32_t arrived_ = 0;  // messages of which all pieces are there, and an older one's are not
  std::array<Request, kWindow> receives_;
  wire::Credit credit_;          // its bytes are taken as it is posted
  ibv_qp* credit_qp_ = nullptr;  // the first
  verbs::RdmaWr credit_write_{IBV_WR_RDMA_WRITE, IBV_SEND_INLINE};
  std::array<uint32_t, wire::kMaxQps> consumed_{};  // receives of a queue pair, of a batch
  std::vector<Lane> lanes_;                         // one per queue pair

  uint64_t next_read_ = 0;
  uint64_t first_unposted_read_ = 0;
  uint32_t read_qp_ = 0;
  uint32_t read_qps_ = 1;  // the first so many reach a rail whose key is told
  std::array<Request, kReadWindow> reads_;
  std::array<ReadJob, kReadWindow> jobs_;
  verbs::RdmaWr read_{IBV_WR_RDMA_READ, IBV_SEND_SIGNALED};

  void* owner_ = nullptr;         // of all requests
  std::unique_ptr<Flush> flush_;  // once one was asked for
};

}  // namespace noria::transport
