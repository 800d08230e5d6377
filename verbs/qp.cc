#include "verbs/qp.hpp"

#include <algorithm>
#include <cstring>

namespace noria::verbs {
namespace {

constexpr uint8_t kMinRnrTimer = 12;  // 0.64 ms; receives are always posted, so it should not run
constexpr uint8_t kHopLimit = 64;     // routed RoCE and InfiniBand fabrics

Status modify(const Api& api, ibv_qp* qp, ibv_qp_attr attr, int mask) {
  return api.call<&Symbols::modify_qp>(qp->context, qp, &attr, mask);
}

Gid gid_of(const ibv_gid& gid) {
  Gid plain{};
  std::memcpy(plain.data(), gid.raw, plain.size());
  return plain;
}

ibv_ah_attr path_to(const OpenPort& port, const QpPeer& peer, const QpService& service) {
  ibv_ah_attr path{.sl = service.service_level, .port_num = port.info.port};
  const Gid to = gid_of(peer.gid);
  const bool is_routed = !port.info.is_ethernet && !is_same_subnet(gid_of(port.gid), to);
  if (!port.info.is_ethernet) path.dlid = peer.lid;
  // A router between subnets is reached by the floating LID in the peer's GID, where it has one.
  if (is_routed && flid_of(to) != 0) path.dlid = flid_of(to);
  if (port.info.is_ethernet || is_routed || (port.attr.flags & IBV_QPF_GRH_REQUIRED) != 0) {
    path.is_global = 1;
    path.grh = {.dgid = peer.gid,
                .sgid_index = port.gid_index,
                .hop_limit = kHopLimit,
                .traffic_class = service.traffic_class};
  }
  return path;
}

// The kernel's Soft-RoCE takes 7 retries for endless ones (rxe_comp.c; the specification has that
// of rnr_retry alone): a path that is cut would never be an error.
constexpr uint32_t kSoftRoceVendor = 0xffffff;
uint8_t finite_retries(const ibv_device_attr& device, uint8_t wanted) {
  return device.vendor_id == kSoftRoceVendor ? std::min<uint8_t>(wanted, 6) : wanted;
}

uint8_t clamp_depth(int depth) { return static_cast<uint8_t>(std::clamp(depth, 0, 255)); }

}  // namespace

uint8_t answered_reads(const OpenPort& port) { return clamp_depth(port.limits.max_qp_rd_atom); }

Result<Qp> create_qp(const Api& api, const OpenPort& port, const QpSpec& spec) {
  ibv_qp_init_attr attr{.send_cq = spec.cq,
                        .recv_cq = spec.cq,
                        .cap = {.max_send_wr = spec.send_depth,
                                .max_recv_wr = spec.recv_depth,
                                .max_send_sge = 1,
                                .max_recv_sge = 1,
                                .max_inline_data = spec.inline_bytes},
                        .qp_type = IBV_QPT_RC,
                        .sq_sig_all = 0};
  return create<Qp, &Symbols::create_qp>(api, port.context.get(), port.pd.get(), &attr);
}

Status to_init(const Api& api, ibv_qp* qp, const OpenPort& port) {
  const ibv_qp_attr attr{
      .qp_state = IBV_QPS_INIT,
      .qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
      .pkey_index = port.pkey_index,
      .port_num = port.info.port};
  return modify(api, qp, attr,
                IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

Status to_rtr(const Api& api, ibv_qp* qp, const OpenPort& port, const QpPeer& peer,
              const QpService& service) {
  ibv_qp_attr attr{.qp_state = IBV_QPS_RTR,
                   .path_mtu = static_cast<ibv_mtu>(
                       std::min(peer.mtu, static_cast<uint8_t>(port.attr.active_mtu))),
                   .rq_psn = peer.psn,
                   .dest_qp_num = peer.qpn,
                   .max_dest_rd_atomic = answered_reads(port),
                   .min_rnr_timer = kMinRnrTimer};
  attr.ah_attr = path_to(port, peer, service);
  return modify(api, qp, attr,
                IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

Status to_rts(const Api& api, ibv_qp* qp, const OpenPort& port, const QpPeer& peer,
              uint32_t first_psn, const QpService& service) {
  const ibv_qp_attr attr{
      .qp_state = IBV_QPS_RTS,
      .sq_psn = first_psn,
      .max_rd_atomic = std::min(clamp_depth(port.limits.max_qp_init_rd_atom), peer.read_depth),
      .timeout = service.ack_timeout,
      .retry_cnt = finite_retries(port.limits, service.retries),
      .rnr_retry = 7};  // 7 means for ever: a slow peer is no error
  return modify(api, qp, attr,
                IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

Status to_error(const Api& api, ibv_qp* qp) {
  // In silence: who stops a queue pair says why, and a device that is lost refuses each of them.
  ibv_qp_attr attr{.qp_state = IBV_QPS_ERR};
  return api.probe<&Symbols::modify_qp>(qp->context, qp, &attr, static_cast<int>(IBV_QP_STATE));
}

}  // namespace noria::verbs
