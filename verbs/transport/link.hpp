// Link: what both ends of a connection share: queue pairs, control socket, and how it failed.
//
//   Link -> open() -> ends() to the peer -> bring_up(the peer's ends) -> publish()
//
// A link fails once: by a failed completion, a refused post, or a control socket that closed. Then
// its queue pairs are in the error state, the owner's requests are done with that Status, the peer
// was told the cause, and describe() tells it to people: the owner of the connection logs it, the
// link does not. After the destructor no work request of this link touches memory.
//
// Threads: set-up one at a time; after publish() the owner of the domain.
#pragma once

#include <string>
#include <vector>

#include "verbs/completion.hpp"
#include "verbs/ece.hpp"
#include "verbs/qp.hpp"
#include "verbs/transport/control.hpp"
#include "verbs/transport/domain_state.hpp"
#include "verbs/transport/listener.hpp"
#include "verbs/transport/wire.hpp"

namespace noria::transport {

class Link {
 public:
  struct Depths {
    uint32_t send = 1;
    uint32_t recv = 1;
    uint32_t inline_bytes = 0;
    uint32_t other_completions = 0;  // of the connection that its queue pairs do not make
  };

  // Data goes from the sender to the receiver, and credits the other way.
  enum class Role : uint8_t { sender, receiver };

  Link(DomainState& domain, const ConnectOptions& options, Role role, unsigned peer_rails);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Takes a seat and makes the queue pairs, in state init.
  Status open(const Depths& depths);
  wire::Ends ends() const;
  // Ready to send and receive, with the queue pairs that both sides have. The peer's ends must come
  // from an authenticated peer; numbers that make no sense are refused.
  Status bring_up(const wire::Ends& peer);
  void adopt(ControlSocket control, const std::string& peer_name);
  void publish(SendState& owner);
  void publish(RecvState& owner);

  const Status& status() const { return status_; }
  std::string describe() const;
  uint64_t id_base() const { return id_base_; }
  bool is_seat_of(const WrId& id) const { return id.base() == id_base_; }
  SendState* sender() const { return sender_; }
  RecvState* receiver() const { return receiver_; }

  uint32_t qp_count() const { return static_cast<uint32_t>(qps_.size()); }
  ibv_qp* qp(uint32_t index) const { return qps_[index].qp.get(); }
  unsigned rail_of(uint32_t index) const { return qps_[index].rail; }
  unsigned peer_rail_of(uint32_t index) const { return qps_[index].peer_rail; }
  unsigned peer_rails() const { return static_cast<unsigned>(peer_rates_.size()); }
  std::vector<uint32_t> weights() const;  // one per queue pair, from the rates of their rails
  const RailSet& rails() const { return *rails_; }

  // The first failure wins; later ones are its consequences.
  NORIA_COLD void fail(Status status, const std::string& cause);
  NORIA_COLD void fail_by_completion(verbs::Completion completion, uint32_t qp);
  NORIA_COLD void fail_by_post(int error, uint32_t qp);

  // Where its device reported that it failed, or a queue pair of ours; true if it did now.
  NORIA_COLD bool fail_if_device_gave_up();

  // Reads what the peer says. True when it is gone; fail_by_control() then gives up.
  NORIA_COLD bool is_peer_gone();
  NORIA_COLD void fail_by_control();
  int control_fd() const;  // -1 when there is nothing to wait for on it

 private:
  struct End {
    verbs::Qp qp;
    verbs::Ece ece;  // the device's own; once it is up, what both ends can
    uint32_t psn = 0;
    uint8_t rail = 0;
    uint8_t peer_rail = 0;
    uint32_t peer_qpn = 0;     // once it is up, as the rest
    wire::RailAddress peer{};  // the port at the other end
  };

  Status bring_up(End& end, const verbs::QpPeer& to, const verbs::Ece& peer_ece);
  std::string qp_name(uint32_t index) const;
  // Both ends of a queue pair, by the addresses that the fabric knows them by.
  std::string path_of(uint32_t index) const;
  // What ends this queue pair, of the events that were taken; null if nothing.
  const char* reported_of(const End& end) const;
  struct Blame {
    Code code;
    const char* advice;
  };
  // What is lost when a queue pair falls silent: the connection, the port or the device. Asks the
  // kernel.
  Blame blame(uint32_t qp, const char* advice) const;
  void tell_peer(bool is_failure, const std::string& cause);

  DomainState& domain_;
  std::shared_ptr<RailSet> rails_;
  verbs::QpService service_;
  uint32_t wanted_qps_;
  std::vector<uint32_t> peer_rates_;  // of its rails, once the link is up
  ControlSocket control_;
  Seat seat_;
  std::vector<End> qps_;

  Status status_;
  uint64_t id_base_ = 0;
  SendState* sender_ = nullptr;  // exactly one of the two, once published
  RecvState* receiver_ = nullptr;
  bool has_seat_ = false;
  bool is_control_closed_ = false;
  std::string peer_name_, cause_, farewell_;
};

}  // namespace noria::transport
