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

  // At least one byte, unless has_bytes(false) was said.
  NORIA_HOT void set_local(uint64_t address, uint32_t bytes, uint32_t lkey) {
    sge_ = {.addr = address, .length = bytes, .lkey = lkey};
  }
  // An entry of length 0 means 2^31 bytes to some devices.
  NORIA_HOT void has_bytes(bool has) { wr_.num_sge = has ? 1 : 0; }
  NORIA_HOT void set_remote(uint64_t address, uint32_t rkey) {
    wr_.wr.rdma.remote_addr = address;
    wr_.wr.rdma.rkey = rkey;
  }
  NORIA_HOT void set_addresses(uint64_t local, uint64_t remote) {
    sge_.addr = local;
    wr_.wr.rdma.remote_addr = remote;
  }
  NORIA_HOT uint64_t local_address() const { return sge_.addr; }
  NORIA_HOT uint64_t remote_address() const { return wr_.wr.rdma.remote_addr; }
  NORIA_HOT void set_piece(uint32_t bytes, uint32_t lkey, uint32_t rkey) {
    sge_.length = bytes;
    sge_.lkey = lkey;
    wr_.wr.rdma.rkey = rkey;
  }
  // Both addresses move behind the piece.
  NORIA_HOT void pass_piece() {
    wr_.wr.rdma.remote_addr += sge_.length;
    sge_.addr += sge_.length;
  }
  NORIA_HOT void set_remote_address(uint64_t address) { wr_.wr.rdma.remote_addr = address; }
  NORIA_HOT void set_imm(uint32_t imm) { wr_.imm_data = htonl(imm); }
  NORIA_HOT void set_flags(unsigned send_flags) { wr_.send_flags = send_flags; }
  NORIA_HOT void set_id(uint64_t wr_id) { wr_.wr_id = wr_id; }
  // From now on `next` is posted with it, behind it; it must live as long.
  void chain(RdmaWr& next) { wr_.next = &next.wr_; }

  // 0, or the errno value of the provider.
  NORIA_HOT int post(ibv_qp* qp) { return ibv_post_send(qp, &wr_, &bad_); }

 private:
  ibv_sge sge_{};
  ibv_send_wr wr_{};
  ibv_send_wr* bad_ = nullptr;  // where one is refused; it is this one
};

}  // namespace noria::verbs
