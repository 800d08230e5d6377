// Work requests prepared once and posted many times.
//
// Each holds its scatter entry beside it and is neither copied nor moved, because the request
// points at its own entry. What does not change per message is filled at construction.
//
// Threads: one at a time per object.
#pragma once

#include <arpa/inet.h>
#include <infiniband/verbs.h>

#include "base/check.hpp"

namespace noria::verbs {

// An RDMA operation between one local range and one remote range.
class RdmaWr {
 public:
  RdmaWr(ibv_wr_opcode opcode, unsigned send_flags) {
    wr_.sg_list = &sge_;
    wr_.num_sge = 1;
    wr_.opcode = opcode;
    wr_.send_flags = send_flags;
  }
  RdmaWr(const RdmaWr&) = delete;
  RdmaWr& operator=(const RdmaWr&) = delete;

  NORIA_HOT void set_local(uint64_t address, uint32_t bytes, uint32_t lkey) {
    sge_ = {.addr = address, .length = bytes, .lkey = lkey};
    wr_.num_sge = bytes != 0 ? 1 : 0;  // an entry of length 0 means 2^31 bytes to some devices
  }
  NORIA_HOT void set_remote(uint64_t address, uint32_t rkey) {
    wr_.wr.rdma.remote_addr = address;
    wr_.wr.rdma.rkey = rkey;
  }
  NORIA_HOT void set_remote_address(uint64_t address) { wr_.wr.rdma.remote_addr = address; }
  NORIA_HOT void set_imm(uint32_t imm) { wr_.imm_data = htonl(imm); }
  NORIA_HOT void set_flags(unsigned send_flags) { wr_.send_flags = send_flags; }
  NORIA_HOT void set_id(uint64_t wr_id) { wr_.wr_id = wr_id; }
  // From now on `next` is posted with it, behind it; it must live as long.
  void chain(RdmaWr& next) { wr_.next = &next.wr_; }

  // 0, or the errno value of the provider.
  NORIA_HOT int post(ibv_qp* qp) {
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(qp, &wr_, &bad);
  }

 private:
  ibv_sge sge_{};
  ibv_send_wr wr_{};
};

}  // namespace noria::verbs
