#include "verbs/transport/link.hpp"

#include <arpa/inet.h>
#include <sys/random.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/log.hpp"
#include "verbs/device.hpp"
#include "verbs/names.hpp"
#include "verbs/transport/handshake.hpp"
#include "verbs/transport/recv.hpp"
#include "verbs/transport/send.hpp"
#include "verbs/transport/stripe.hpp"

namespace noria::transport {
namespace {

uint32_t random_psn() {
  uint32_t psn = 0;
  // Without randomness a stale packet of an earlier connection could pass; the kernel refuses none
  // of four bytes once it is up.
  static_cast<void>(getrandom(&psn, sizeof psn, GRND_NONBLOCK));
  return psn & 0xffffff;
}

verbs::QpPeer peer_of(const wire::Ends& ends, unsigned rail, uint32_t qp) {
  const wire::RailAddress& address = ends.rail[rail];
  verbs::QpPeer peer{.qpn = ends.qp[qp].qpn,
                     .psn = ends.qp[qp].psn,
                     .lid = address.lid,
                     .mtu = address.mtu,
                     .read_depth = address.read_depth};
  std::memcpy(peer.gid.raw, address.gid.data(), sizeof peer.gid.raw);
  return peer;
}

verbs::QpService service_of(const Params& params, const ConnectOptions& options, Link::Role role) {
  const auto chosen = [](const std::optional<uint64_t>& value, uint8_t otherwise) {
    return static_cast<uint8_t>(value.value_or(otherwise));
  };
  verbs::QpService service{.ack_timeout = chosen(params.ack_timeout, options.ack_timeout),
                           .retries = chosen(params.retries, options.retries),
                           .traffic_class = chosen(params.traffic_class, options.traffic_class),
                           .service_level = chosen(params.service_level, 0)};
  if (role == Link::Role::receiver)
    service.traffic_class = chosen(params.control_traffic_class, service.traffic_class);
  return service;
}

// As many on each rail of the side that has more of them.
uint32_t wanted_qps(uint32_t on_a_rail, uint32_t rails, uint32_t peer_rails) {
  static_assert(kMaxRails <= wire::kMaxQps, "every rail carries at least one");
  const uint32_t most = std::max(rails, std::min<uint32_t>(peer_rails, kMaxRails));
  return std::min<uint32_t>(most * on_a_rail, wire::kMaxQps);
}

// What a rail carries in Mb/s: the port, or the bus behind it where that is slower.
uint32_t rate_of(const verbs::PortInfo& port) {
  const uint32_t link = port.speed_mbps != 0 ? port.speed_mbps : 10'000;  // as NCCL takes it
  return port.pcie_mbps != 0 ? std::min(link, port.pcie_mbps) : link;
}

constexpr const char* kPortDown =
    "the port is down: look at its cable, its switch and the kernel log";
constexpr const char* kDeviceLost =
    "the device is lost: look at the kernel log; it comes back with a reset of it or of the host";

constexpr const char* kQueuePairLost =
    "the device gave up the queue pair, as it reported: look at the kernel log";

// "gid fe80::1, lid 7"
std::string to_string(const wire::RailAddress& address) {
  char gid[INET6_ADDRSTRLEN] = "";
  inet_ntop(AF_INET6, address.gid.data(), gid, sizeof gid);
  return std::string("gid ") + gid +
         (address.is_ethernet == 0 ? ", lid " + std::to_string(address.lid) : "");
}

// ", ECE 0x3 of vendor 0x2c9"
std::string to_string(const verbs::Ece& ece) {
  if (!ece) return "";
  char text[64];
  std::snprintf(text, sizeof text, ", ECE 0x%x of vendor 0x%x", ece.options, ece.vendor);
  return text;
}

}  // namespace

Link::Link(DomainState& domain, const ConnectOptions& options, Role role, unsigned peer_rails)
    : domain_(domain),
      rails_(domain.rails()),
      service_(service_of(domain.params(), options, role)),
      wanted_qps_(wanted_qps(options.qps != 0
                                 ? options.qps
                                 : static_cast<uint32_t>(domain.params().qps_per_connection),
                             static_cast<uint32_t>(rails_->rails.size()), peer_rails)),
      peer_name_(options.peer_name.empty() ? "peer" : options.peer_name) {}

Link::~Link() {
  if (sender_ != nullptr || receiver_ != nullptr) {
    if (status_.is_ok()) tell_peer(false, "");
    domain_.leave(seat_);
  }
  for (End& end : qps_) {
    static_cast<void>(verbs::to_error(rails_->api(), end.qp.get()));
    const void* const gone = end.qp.get();
    end.qp.reset();
    rails_->rails[end.rail].shared->events().forget(gone);
  }
  qps_.clear();
  if (has_seat_) domain_.give_seat(seat_);
}

namespace {

// A device that refuses a transition refuses its own port or the path that the peer told, as after
// a wrong GID index. No caller gave it a bad argument.
Status of_transition(Status status) {
  if (status.code() != Code::bad_argument) return status;
  return Status(Code::connection_lost, status.origin(), status.raw());
}

}  // namespace

Status Link::open(const Depths& depths) {
  const auto rails = static_cast<uint32_t>(rails_->rails.size());
  const uint32_t completions = depths.send + depths.recv;
  // A peer with many more rails than we have is served by fewer queue pairs.
  wanted_qps_ =
      std::clamp(wanted_qps_, rails,
                 std::max(rails, domain_.room(completions, depths.other_completions) * rails));
  const uint32_t on_a_rail = (wanted_qps_ + rails - 1) / rails;
  NORIA_TRY_ASSIGN(seat_, domain_.take_seat(on_a_rail * completions + depths.other_completions));
  has_seat_ = true;
  id_base_ = WrId::base(seat_.index, seat_.generation);
  const verbs::Api& api = rails_->api();
  for (uint32_t i = 0; i < wanted_qps_; ++i) {
    const size_t rail_index = i % rails_->rails.size();
    const Rail& rail = rails_->rails[rail_index];
    NORIA_TRY_ASSIGN(verbs::Qp qp, verbs::create_qp(api, rail.port(),
                                                    {.cq = rail.cq.get(),
                                                     .send_depth = depths.send,
                                                     .recv_depth = depths.recv,
                                                     .inline_bytes = depths.inline_bytes}));
    rail.shared->events().forget(qp.get());
    NORIA_TRY(of_transition(verbs::to_init(api, qp.get(), rail.port())));
    const verbs::Ece ece = domain_.params().ece ? verbs::query_ece(api, qp.get()) : verbs::Ece{};
    qps_.push_back({.qp = std::move(qp),
                    .ece = ece,
                    .psn = random_psn(),
                    .rail = static_cast<uint8_t>(rail_index)});
  }
  return {};
}

wire::Ends Link::ends() const {
  wire::Ends ends;
  ends.rails = static_cast<uint8_t>(rails_->rails.size());
  ends.qps = static_cast<uint8_t>(qps_.size());
  for (size_t i = 0; i < rails_->rails.size(); ++i) {
    const verbs::OpenPort& port = rails_->rails[i].port();
    wire::RailAddress& address = ends.rail[i];
    std::memcpy(address.gid.data(), port.gid.raw, address.gid.size());
    address.lid = port.attr.lid;
    address.mtu = static_cast<uint8_t>(port.attr.active_mtu);
    address.read_depth = verbs::answered_reads(port);
    address.is_ethernet = port.info.is_ethernet ? 1 : 0;
    address.rate_100mbps =
        static_cast<uint16_t>(std::min<uint32_t>(rate_of(port.info) / 100, UINT16_MAX));
  }
  for (size_t i = 0; i < qps_.size(); ++i)
    ends.qp[i] = {.qpn = qps_[i].qp->qp_num,
                  .psn = qps_[i].psn,
                  .ece_vendor = qps_[i].ece.vendor,
                  .ece_options = qps_[i].ece.options};
  return ends;
}

Status Link::bring_up(const wire::Ends& peer) {
  if (peer.rails == 0 || peer.rails > kMaxRails || peer.qps == 0 || peer.qps > wire::kMaxQps)
    return Status(Code::mismatch);
  qps_.erase(qps_.begin() + std::min<ptrdiff_t>(peer.qps, static_cast<ptrdiff_t>(qps_.size())),
             qps_.end());
  for (unsigned i = 0; i < peer.rails; ++i)
    peer_rates_.push_back(uint32_t{peer.rail[i].rate_100mbps} * 100);
  for (uint32_t i = 0; i < qp_count(); ++i) {
    End& end = qps_[i];
    end.peer_rail = static_cast<uint8_t>(i % peer.rails);
    end.peer_qpn = peer.qp[i].qpn;
    end.peer = peer.rail[end.peer_rail];
    const verbs::OpenPort& port = rails_->rails[end.rail].port();
    if ((peer.rail[end.peer_rail].is_ethernet != 0) != port.info.is_ethernet)
      return Status(Code::mismatch);
    const Status up =
        bring_up(end, peer_of(peer, end.peer_rail, i),
                 {.vendor = peer.qp[i].ece_vendor, .options = peer.qp[i].ece_options});
    if (!up.is_ok()) {
      log(LogLevel::error,
          "%s finds no path to its peer%s: are both addresses of one family and one network? "
          "NORIA_GID_INDEX, NORIA_ADDR_FAMILY and NORIA_ADDR_RANGE choose ours",
          qp_name(i).c_str(), path_of(i).c_str());
      return up;
    }
  }
  return {};
}

Status Link::bring_up(End& end, const verbs::QpPeer& to, const verbs::Ece& peer_ece) {
  const verbs::Api& api = rails_->api();
  const verbs::OpenPort& port = rails_->rails[end.rail].port();
  const bool agrees = end.ece && peer_ece && verbs::set_ece(api, end.qp.get(), peer_ece);
  NORIA_TRY(of_transition(verbs::to_rtr(api, end.qp.get(), port, to, service_)));
  NORIA_TRY(of_transition(verbs::to_rts(api, end.qp.get(), port, to, end.psn, service_)));
  end.ece = agrees ? verbs::query_ece(api, end.qp.get()) : verbs::Ece{};
  return {};
}

void Link::adopt(ControlSocket control, const std::string& peer_name) {
  control_ = std::move(control);
  if (!peer_name.empty()) peer_name_ += " (" + peer_name + ")";
}

void Link::publish(SendState& owner) {
  sender_ = &owner;
  domain_.publish(seat_, *this);
}
void Link::publish(RecvState& owner) {
  receiver_ = &owner;
  domain_.publish(seat_, *this);
}

std::vector<uint32_t> Link::weights() const {
  std::vector<uint32_t> rates;
  for (const Rail& rail : rails_->rails) rates.push_back(rate_of(rail.port().info));
  return qp_weights(rates, peer_rates_, qp_count());
}

std::string Link::qp_name(uint32_t index) const {
  if (index >= qps_.size()) return "an unknown queue pair";
  char text[128];
  const verbs::PortInfo& port = rails_->rails[qps_[index].rail].port().info;
  std::snprintf(text, sizeof text, "qp 0x%x on %s port %u", qps_[index].qp->qp_num,
                port.device.c_str(), port.port);
  return text;
}

std::string Link::path_of(uint32_t index) const {
  if (index >= qps_.size()) return "";
  char text[320];
  std::snprintf(text, sizeof text, "; from %s, %s, to qp 0x%x, %s", own_name().data(),
                to_string(ends().rail[qps_[index].rail]).c_str(), qps_[index].peer_qpn,
                to_string(qps_[index].peer).c_str());
  return text;
}

Link::Blame Link::blame(uint32_t qp, const char* advice) const {
  if (qp >= qps_.size()) return {Code::connection_lost, advice};
  rails_->rails[qps_[qp].rail].shared->take_events();
  if (const char* const reported = reported_of(qps_[qp]); reported != nullptr)
    return {Code::device_lost, reported};
  // A device that is lost does not even stop a queue pair, and shows its ports down.
  const Status stopped = verbs::to_error(rails_->api(), qps_[qp].qp.get());
  if (stopped.code() == Code::device_lost) return {Code::device_lost, kDeviceLost};
  if (!verbs::is_port_active(rails_->api(), rails_->rails[qps_[qp].rail].port()))
    return {Code::port_down, kPortDown};
  return {Code::connection_lost, advice};
}

const char* Link::reported_of(const End& end) const {
  const PortEvents& events = rails_->rails[end.rail].shared->events();
  if (events.is_device_lost()) return kDeviceLost;
  return events.is_broken(end.qp.get()) ? kQueuePairLost : nullptr;
}

bool Link::fail_if_device_gave_up() {
  for (uint32_t i = 0; i < qp_count() && status_.is_ok(); ++i)
    if (const char* const reported = reported_of(qps_[i]); reported != nullptr) {
      fail(Status(Code::device_lost, Origin::async_event),
           qp_name(i) + ": " + reported + path_of(i));
      return true;
    }
  return false;
}

std::string Link::describe() const {
  const char* const direction = receiver_ != nullptr ? "connection from " : "connection to ";
  if (!status_.is_ok()) return direction + peer_name_ + ": " + cause_;
  return direction + peer_name_ + ": " + std::to_string(qps_.size()) + " queue pairs, first " +
         qp_name(0) + to_string(qps_.empty() ? verbs::Ece{} : qps_.front().ece);
}

void Link::fail(Status status, const std::string& cause) {
  if (!status_.is_ok()) return;
  status_ = status;
  cause_ = cause;
  for (End& end : qps_) static_cast<void>(verbs::to_error(rails_->api(), end.qp.get()));
  if (sender_ != nullptr) sender_->on_failed(status);
  if (receiver_ != nullptr) receiver_->on_failed(status);
  if (!is_control_closed_) tell_peer(true, cause);
}

void Link::fail_by_completion(verbs::Completion completion, uint32_t qp) {
  if (!status_.is_ok()) return;  // the queue empties itself after the first failure
  const ibv_wc_status status = completion.wc_status();
  // The last is what Soft-RoCE says of a packet that its interface did not take.
  const bool is_silence = status == IBV_WC_RETRY_EXC_ERR || status == IBV_WC_WR_FLUSH_ERR ||
                          status == IBV_WC_FATAL_ERR || status == IBV_WC_LOC_QP_OP_ERR;
  const char* const advice = verbs::advice(status);
  const Blame cause = is_silence ? blame(qp, advice) : Blame{Code::connection_lost, advice};
  char head[256];
  std::snprintf(head, sizeof head, "%s: %s (completion status %d, vendor 0x%x): %s",
                qp_name(qp).c_str(), verbs::to_string(status), static_cast<int>(status),
                completion.vendor_error(), cause.advice);
  const std::string text = head + path_of(qp);
  // The peer's own word, when it came, is nearer to the cause.
  if (is_peer_gone()) {
    farewell_ += "; " + text;
    return fail_by_control();
  }
  fail(Status::from_wc(cause.code, status), text);
}

void Link::fail_by_post(int error, uint32_t qp) {
  const Blame cause = blame(qp, "see the kernel log");
  char head[256];
  std::snprintf(head, sizeof head, "%s: posting was refused: %s (errno %d): %s",
                qp_name(qp).c_str(), std::strerror(error), error, cause.advice);
  fail(Status::from_errno(cause.code, error), head + path_of(qp));
}

bool Link::is_peer_gone() {
  if (!status_.is_ok()) return false;
  while (!is_control_closed_) {
    switch (control_.pump_receive()) {
      case Progress::pending: return false;
      case Progress::done: break;
      case Progress::closed:
        is_control_closed_ = true;
        if (farewell_.empty())
          farewell_ =
              "the control socket closed without a farewell: the peer's process died or "
              "the network cut it";
        continue;
      case Progress::garbage:
        is_control_closed_ = true;
        farewell_ = "the peer sent garbage on the control socket";
        continue;
    }
    const wire::Control header = control_.header();
    if (header.type == wire::Type::close) {
      const auto close = control_.read<wire::Close>();
      farewell_ = close.is_failure != 0 ? "the peer gave up: " + text_of(close.cause)
                                        : "the peer closed the connection";
      is_control_closed_ = true;
    } else {
      // The wire lets a receiver name a new epoch; this build cannot follow one yet, and going on
      // would mix old and new writes.
      is_control_closed_ = true;
      farewell_ = "the peer sent control message " +
                  std::to_string(static_cast<unsigned>(header.type)) +
                  ", which this build does not follow";
    }
  }
  return true;
}

void Link::fail_by_control() { fail(Status(Code::peer_lost), farewell_); }

int Link::control_fd() const {
  return status_.is_ok() && !is_control_closed_ ? control_.socket().fd() : -1;
}

void Link::tell_peer(bool is_failure, const std::string& cause) {
  wire::Close close;
  close.is_failure = is_failure ? 1 : 0;
  cause.copy(close.cause.data(), close.cause.size() - 1);
  control_.send(close);
  // One try: a peer that reads nothing will learn from the end of the stream.
  static_cast<void>(control_.pump_send());
}

}  // namespace noria::transport
