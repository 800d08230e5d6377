// SendState: the sending end.
//
// Messages are numbered from wire::kFirstSequence and use slot n % kWindow of the credit ring and
// of the request pool. A message is posted when its credit is there, cut into at most one piece per
// queue pair, each a signalled RDMA WRITE with immediate. Requests are reported done in order.
//
// Threads: the owner of the domain.
#pragma once

#include <memory>

#include "verbs/transport/credit.hpp"
#include "verbs/transport/link.hpp"
#include "verbs/transport/region_state.hpp"
#include "verbs/transport/request_access.hpp"
#include "verbs/transport/stripe.hpp"
#include "verbs/wr.hpp"

namespace noria::transport {

class SendState {
 public:
  static Result<std::unique_ptr<SendState>> make(DomainState& domain,
                                                 const ConnectOptions& options);

  Link& link() { return link_; }
  RemoteRegion credits() const;  // to be told to the receiver
  void start();                  // the link is up

  NORIA_HOT Request* try_send(const RegionState* region, uint64_t offset, uint64_t bytes);
  NORIA_HOT Request* try_send_inline(const void* data, uint32_t bytes);
  NORIA_HOT void on_completion(WrId id, verbs::Completion completion);
  NORIA_COLD void on_failed(Status status);

 private:
  SendState(DomainState& domain, const ConnectOptions& options);

  NORIA_HOT Request* on_credit_missing();
  NORIA_HOT void count_message(uint64_t bytes);
  NORIA_HOT uint32_t next_qp();
  NORIA_HOT void post(const Piece& piece, uint64_t local_address, uint32_t lkey, uint32_t imm,
                      const CreditView& credit);
  NORIA_HOT void post_striped(const RegionState& region, uint64_t offset, uint64_t bytes,
                              Request& request, const CreditView& credit);
  NORIA_HOT void finish_in_order();

  std::unique_ptr<RegionState> ring_memory_;  // outlives the queue pairs that the peer writes by
  wire::Credit* ring_ = nullptr;
  Link link_;
  CounterCells& counters_;  // of the domain

  uint64_t next_ = wire::kFirstSequence;          // of the next message
  uint64_t first_undone_ = wire::kFirstSequence;  // oldest that is not done
  uint64_t stripe_min_;
  uint64_t max_message_bytes_;
  uint32_t next_qp_ = 0;
  Shares shares_;
  verbs::RdmaWr write_{IBV_WR_RDMA_WRITE_WITH_IMM, IBV_SEND_SIGNALED};
  RequestPool requests_;
};

}  // namespace noria::transport
