// RC queue pairs: creation and the transitions, each a named function.
//
//   create_qp -> reset --to_init--> init --to_rtr--> ready to receive --to_rts--> ready to send
//   to_error from anywhere: everything queued is flushed, nothing moves any more
//
// A queue pair that carries reads is limited by both sides: QpPeer::read_depth is what the peer
// answers at once, the own limit comes from the device.
//
// A path has a global route header over Ethernet, and on InfiniBand between subnets or where the
// port asks for one; within a subnet the LID alone.
//
// Threads: one at a time per queue pair.
#pragma once

#include "verbs/device.hpp"
#include "verbs/handle.hpp"

namespace noria::verbs {

struct QpSpec {
  ibv_cq* cq = nullptr;     // of both directions; borrowed for the life of the queue pair
  uint32_t send_depth = 1;  // work requests
  uint32_t recv_depth = 1;
  uint32_t inline_bytes = 0;
};

// How a peer is reached.
struct QpPeer {
  uint32_t qpn = 0;
  uint32_t psn = 0;
  uint16_t lid = 0;
  uint8_t mtu = IBV_MTU_1024;  // ibv_mtu; the smaller of the two sides is used
  uint8_t read_depth = 0;      // reads it answers at once
  ibv_gid gid{};
};

// How the fabric is to serve a queue pair.
struct QpService {
  uint8_t ack_timeout = 17;   // 4.096 us * 2^n
  uint8_t retries = 7;        // never endless ones: at most 6 where a device takes 7 for that
  uint8_t traffic_class = 0;  // where the path has a global route header
  uint8_t service_level = 0;
};

Result<Qp> create_qp(const Api& api, const OpenPort& port, const QpSpec& spec);

// Remote access is granted for reads and writes.
Status to_init(const Api& api, ibv_qp* qp, const OpenPort& port);
Status to_rtr(const Api& api, ibv_qp* qp, const OpenPort& port, const QpPeer& peer,
              const QpService& service);
Status to_rts(const Api& api, ibv_qp* qp, const OpenPort& port, const QpPeer& peer,
              uint32_t first_psn, const QpService& service);
Status to_error(const Api& api, ibv_qp* qp);

// Reads that this port answers at once, as told to a peer.
uint8_t answered_reads(const OpenPort& port);

}  // namespace noria::verbs
