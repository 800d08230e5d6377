#include "verbs/transport/acceptor.hpp"

#include "verbs/transport/domain_state.hpp"

namespace noria::transport {

constexpr std::array<Row<Acceptor>, 4> Acceptor::kTable{{
    {Step::awaiting_hello, Wait::receive, &Acceptor::on_hello, "waiting for its greeting"},
    {Step::sending_accept, Wait::send, &Acceptor::on_accept_sent, "accepting it"},
    {Step::awaiting_ready, Wait::receive, &Acceptor::on_ready, "waiting for it to be ready"},
    {Step::sending_refusal, Wait::send, &Acceptor::on_refusal_sent, "refusing it"},
}};

Acceptor::Acceptor(Socket socket, Domain& domain, const ConnectOptions& options,
                   const wire::Token& token)
    : domain_(domain), options_(options), token_(token) {
  control = ControlSocket(std::move(socket));
  step = Step::awaiting_hello;
}

void Acceptor::advance_steps() { advance(*this, kTable); }

Step Acceptor::on_hello() {
  const auto hello = control.read<wire::Hello>();
  if (hello.control.type != wire::Type::hello || !is_same_token(hello.token, token_))
    return fail(Status(Code::stranger), "a stranger without our token");
  is_authenticated_ = true;

  Terms theirs{.version = hello.control.version,
               .provider_kind = hello.provider_kind,
               .fingerprint = hello.fingerprint};
  if (const auto difference = first_difference(terms_of(domain_, options_), theirs)) {
    if (difference->reason != wire::Reason::version) peer_name_ = text_of(hello.name);
    return refuse(*difference, refused_for(difference->reason));
  }
  peer_name_ = text_of(hello.name);
  if (const Status ready = set_up(hello); !ready.is_ok()) {
    state_.reset();
    wire::Refuse refusal;
    refusal.reason = wire::Reason::no_resources;
    refusal.listener_value = static_cast<uint64_t>(ready.raw());
    return refuse(refusal, ready);
  }
  wire::Accept accept;
  accept.ends = state_->link().ends();
  accept.name = own_name();
  accept.records = state_->records();
  control.send(accept);
  return Step::sending_accept;
}

Status Acceptor::set_up(const wire::Hello& hello) {
  NORIA_TRY_ASSIGN(state_, RecvState::make(domain_.state(), options_, hello.ends.rails));
  NORIA_TRY(state_->link().bring_up(hello.ends));
  if (hello.wants_records != 0) NORIA_TRY(state_->make_records());
  return state_->prepare(hello.credits);
}

Step Acceptor::refuse(const wire::Refuse& refusal, Status status) {
  refused_with_ = status;
  text = "refused " + (options_.peer_name.empty() ? "a peer" : options_.peer_name) +
         (peer_name_.empty() ? "" : " (" + peer_name_ + ")") + ": " + explain(refusal, true);
  control.send(refusal);
  return Step::sending_refusal;
}

Step Acceptor::on_refusal_sent() { return fail(refused_with_, std::string(text)); }

Step Acceptor::on_accept_sent() { return Step::awaiting_ready; }

Step Acceptor::on_ready() {
  if (control.header().type != wire::Type::ready)
    return fail(Status(Code::mismatch), "the peer answered with a message of another kind");
  state_->link().adopt(std::move(control), peer_name_);
  return Step::done;
}

}  // namespace noria::transport
