// Completion: a work completion that shows its status first.
//
// Of a failed completion only wr_id, status, qp_num and vendor_err are defined; the rest is
// rubbish. success() is therefore the only way to opcode, bytes and immediate, and is false for a
// failure.
//
// Threads: a value; borrows the entry that was polled.
#pragma once

#include <arpa/inet.h>
#include <infiniband/verbs.h>

#include "base/status.hpp"

namespace noria::verbs {

class Completion {
 public:
  // The fields that mean something only after success.
  class Success {
   public:
    explicit operator bool() const { return wc_ != nullptr; }
    ibv_wc_opcode opcode() const { return wc_->opcode; }
    uint32_t bytes() const { return wc_->byte_len; }
    // As the sender gave it, in this host's byte order; valid where the opcode carries one.
    uint32_t imm() const { return ntohl(wc_->imm_data); }

   private:
    friend class Completion;
    explicit Success(const ibv_wc* wc) : wc_(wc) {}
    const ibv_wc* wc_;
  };

  explicit Completion(const ibv_wc& wc) : wc_(wc) {}

  Success success() const { return Success(wc_.status == IBV_WC_SUCCESS ? &wc_ : nullptr); }
  uint64_t wr_id() const { return wc_.wr_id; }
  uint32_t qp_num() const { return wc_.qp_num; }
  ibv_wc_status wc_status() const { return wc_.status; }
  uint32_t vendor_error() const { return wc_.vendor_err; }

 private:
  const ibv_wc& wc_;
};

}  // namespace noria::verbs
