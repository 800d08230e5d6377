#include <cstring>

#include "verbs/transport/domain_state.hpp"
#include "verbs/transport/handshake.hpp"
#include "verbs/transport/listener.hpp"
#include "verbs/transport/send.hpp"

namespace noria::transport {
namespace {

Result<SocketAddress> address_of(const wire::Handle& handle) {
  SocketAddress address;
  if (handle.family == 4) {
    auto& ipv4 = reinterpret_cast<sockaddr_in&>(address.storage);
    ipv4.sin_family = AF_INET;
    ipv4.sin_port = htons(handle.port);
    std::memcpy(&ipv4.sin_addr, handle.address.data(), 4);
    address.length = sizeof ipv4;
    return address;
  }
  if (handle.family == 6) {
    auto& ipv6 = reinterpret_cast<sockaddr_in6&>(address.storage);
    ipv6.sin6_family = AF_INET6;
    ipv6.sin6_port = htons(handle.port);
    std::memcpy(&ipv6.sin6_addr, handle.address.data(), 16);
    address.length = sizeof ipv6;
    return address;
  }
  return Status(Code::bad_argument);
}

}  // namespace

class Connector::State : public SessionCore {
 public:
  State(Domain& domain, const wire::Handle& handle, const ConnectOptions& options)
      : domain_(domain), handle_(handle), options_(options) {
    step = Step::connecting;
    if (options.waits_for_ever) deadline = kNever;
  }

  Status begin();
  Result<std::unique_ptr<SendConnection>> try_finish();
  std::string describe() const;

 private:
  Step on_connected();
  Step on_hello_sent();
  Step on_answer();
  Step on_ready_sent();

  static const std::array<Row<State>, 4> kTable;

  Domain& domain_;
  const wire::Handle handle_;
  const ConnectOptions options_;
  SocketAddress address_;
  std::unique_ptr<SendState> state_;
  std::string peer_name_;
};

constexpr std::array<Row<Connector::State>, 4> Connector::State::kTable{{
    {Step::connecting, Wait::connect, &State::on_connected, "connecting"},
    {Step::sending_hello, Wait::send, &State::on_hello_sent, "greeting it"},
    {Step::awaiting_answer, Wait::receive, &State::on_answer,
     "waiting for its answer: it died, or the handle is of another job"},
    {Step::sending_ready, Wait::send, &State::on_ready_sent, "telling it that we are ready"},
}};

Status Connector::State::begin() {
  if (handle_.magic != wire::kHandleMagic) return Status(Code::bad_argument);
  NORIA_TRY_ASSIGN(address_, address_of(handle_));
  SendState::Peer peer{.rails = handle_.rails};
  if (handle_.request_bytes != 0) peer.request_bytes = handle_.request_bytes;
  if (peer.request_bytes % kLineBytes != 0) return Status(Code::bad_argument);
  NORIA_TRY_ASSIGN(state_, SendState::make(domain_.state(), options_, peer));
  NORIA_TRY_ASSIGN(Socket socket, start_connect(address_));
  control = ControlSocket(std::move(socket));
  return {};
}

Step Connector::State::on_connected() {
  const Terms terms = terms_of(domain_, options_);
  wire::Hello hello;
  hello.token = handle_.token;
  hello.fingerprint = terms.fingerprint;
  hello.provider_kind = static_cast<uint8_t>(terms.provider_kind);
  hello.wants_records = state_->wants_records() ? 1 : 0;
  hello.credits = state_->credits();
  hello.ends = state_->link().ends();
  hello.name = own_name();
  control.send(hello);
  return Step::sending_hello;
}

Step Connector::State::on_hello_sent() { return Step::awaiting_answer; }

Step Connector::State::on_answer() {
  const wire::Control header = control.header();
  if (header.type == wire::Type::refuse) {
    const auto refuse = control.read<wire::Refuse>();
    return fail(refused_for(refuse.reason), explain(refuse, false));
  }
  if (header.type != wire::Type::accept || header.version != wire::kVersion)
    return fail(Status(Code::mismatch), "the peer answered with a message of another kind");
  const auto accept = control.read<wire::Accept>();
  peer_name_ = text_of(accept.name);
  if (state_->wants_records() && accept.records.address == 0)
    return fail(Status(Code::mismatch),
                "the peer told of no memory for the records of messages, which we asked for: "
                "do both sides run the same build?");
  if (const Status up = state_->link().bring_up(accept.ends); !up.is_ok())
    return fail(up, "our queue pairs could not be set up (errno " + std::to_string(up.raw()) +
                        "): see the log");
  state_->adopt(accept.records);
  control.send(wire::Ready{});
  return Step::sending_ready;
}

Step Connector::State::on_ready_sent() {
  state_->link().adopt(std::move(control), peer_name_);
  return Step::done;
}

Result<std::unique_ptr<SendConnection>> Connector::State::try_finish() {
  advance(*this, kTable);
  if (step == Step::failed) {
    state_.reset();  // nothing of ours can be reached any more
    return failure;
  }
  if (step != Step::done || state_ == nullptr) return std::unique_ptr<SendConnection>();
  state_->start();
  return std::make_unique<SendConnection>(std::move(state_));
}

std::string Connector::State::describe() const {
  const std::string peer = options_.peer_name.empty() ? "peer" : options_.peer_name;
  return "connecting to " + peer + " (" + address_.text() + "): " +
         (step == Step::failed ? text
          : step == Step::done ? "done"
                               : "under way");
}

Result<std::unique_ptr<Connector>> Connector::start(Domain& domain, const Handle& handle,
                                                    const ConnectOptions& options) {
  wire::Handle wire_handle;
  static_assert(sizeof wire_handle == sizeof handle.bytes);
  std::memcpy(static_cast<void*>(&wire_handle), handle.bytes.data(), sizeof wire_handle);
  auto state = std::make_unique<State>(domain, wire_handle, options);
  NORIA_TRY(state->begin());
  return std::unique_ptr<Connector>(new Connector(std::move(state)));
}

Connector::Connector(std::unique_ptr<State> state) : state_(std::move(state)) {}
Connector::~Connector() = default;
Result<std::unique_ptr<SendConnection>> Connector::try_finish() { return state_->try_finish(); }
std::string Connector::describe() const { return state_->describe(); }

}  // namespace noria::transport
