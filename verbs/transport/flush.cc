#include "verbs/transport/flush.hpp"

#include <cstddef>

namespace noria::transport {
namespace {

// Nobody is at the other end who could be slow.
constexpr verbs::QpService kService{.ack_timeout = 14, .retries = 7};  // 67 ms a try

Result<verbs::Qp> make_loop(const Rail& rail) {
  const verbs::Api& api = rail.shared->api();
  const verbs::OpenPort& port = rail.port();
  NORIA_TRY_ASSIGN(verbs::Qp qp, verbs::create_qp(api, port,
                                                  {.cq = rail.cq.get(),
                                                   .send_depth = Flush::kWindow * kMaxFlushPoints,
                                                   .recv_depth = 1}));
  const verbs::QpPeer itself{.qpn = qp->qp_num,
                             .lid = port.attr.lid,
                             .mtu = static_cast<uint8_t>(port.attr.active_mtu),
                             .read_depth = verbs::answered_reads(port),
                             .gid = port.gid};
  NORIA_TRY(verbs::to_init(api, qp.get(), port));
  NORIA_TRY(verbs::to_rtr(api, qp.get(), port, itself, kService));
  NORIA_TRY(verbs::to_rts(api, qp.get(), port, itself, itself.psn, kService));
  return qp;
}

}  // namespace

Result<std::unique_ptr<Flush>> Flush::make(const RailSet& rails, uint64_t id_base) {
  std::unique_ptr<Flush> made(new Flush(id_base));
  NORIA_TRY_ASSIGN(
      made->landing_,
      RegionState::over(rails, made->bytes_.data(), made->bytes_.size(), verbs::Ordering::relaxed));
  for (const Rail& rail : rails.rails) {
    NORIA_TRY_ASSIGN(verbs::Qp loop, make_loop(rail));
    made->loops_.push_back(std::move(loop));
  }
  return made;
}

Result<Request*> Flush::try_flush(std::span<const FlushPoint> points) {
  const auto slot = static_cast<uint32_t>(next_ % kWindow);
  Request& request = requests_[slot];
  if (!request.is_free()) return static_cast<Request*>(nullptr);
  RequestAccess::take(request, 0, static_cast<uint32_t>(loops_.size()));
  ++next_;
  for (uint32_t rail = 0; rail < loops_.size(); ++rail) {
    read_.set_local(landing_->address() + rail, 1, landing_->lkey(rail));
    read_.set_id(WrId::make(id_base_, WrKind::flush, rail, slot));
    for (const FlushPoint& point : points) {
      // A queue pair's reads complete in order: the last one tells of all.
      read_.set_flags(&point == &points.back() ? unsigned{IBV_SEND_SIGNALED} : 0);
      const RegionState& memory = *point.region->state();
      read_.set_remote(memory.address() + point.offset, memory.rkeys()[rail]);
      if (const int error = read_.post(loops_[rail].get()); error != 0)
        return Status::from_errno(Code::connection_lost, error);
    }
  }
  return &request;
}

void Flush::on_read(WrId id) {
  Request& request = requests_[id.slot()];
  if (--RequestAccess::pieces(request) == 0) RequestAccess::finish(request);
}

void Flush::on_failed(Status status) { RequestAccess::fail_all(requests_, status); }

}  // namespace noria::transport
