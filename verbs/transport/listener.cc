#include "verbs/transport/listener.hpp"

#include <sys/random.h>

#include <cstring>
#include <vector>

#include "base/log.hpp"
#include "verbs/transport/acceptor.hpp"
#include "verbs/transport/domain_state.hpp"
#include "verbs/transport/limits.hpp"

namespace noria::transport {
namespace {

// Handshakes under way at once. When all are taken, the oldest stranger makes room.
constexpr size_t kMaxSessions = 128;

Result<wire::Token> random_token() {
  wire::Token token;
  if (getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size()))
    return Status(Code::internal);
  return token;
}

wire::Handle make_handle(Domain& domain, const ConnectOptions& options, const wire::Token& token,
                         const SocketAddress& bound) {
  const Terms terms = terms_of(domain, options);
  wire::Handle handle;
  handle.provider_kind = static_cast<uint8_t>(terms.provider_kind);
  handle.token = token;
  handle.fingerprint = terms.fingerprint;
  handle.rails = static_cast<uint8_t>(domain.rails());
  handle.request_bytes = static_cast<uint32_t>(domain.state().rails()->request_bytes);
  handle.port = bound.port();
  if (bound.storage.ss_family == AF_INET6) {
    handle.family = 6;
    std::memcpy(handle.address.data(),
                &reinterpret_cast<const sockaddr_in6&>(bound.storage).sin6_addr, 16);
  } else {
    handle.family = 4;
    std::memcpy(handle.address.data(),
                &reinterpret_cast<const sockaddr_in&>(bound.storage).sin_addr, 4);
  }
  return handle;
}

}  // namespace

class Listener::State {
 public:
  State(Domain& domain, const ConnectOptions& options, Socket socket, const wire::Token& token,
        const SocketAddress& bound)
      : domain_(domain), options_(options), socket_(std::move(socket)), token_(token) {
    const wire::Handle wire_handle = make_handle(domain, options, token, bound);
    std::memcpy(handle_.bytes.data(), &wire_handle, sizeof wire_handle);
  }

  Result<std::unique_ptr<RecvConnection>> try_accept();
  const Handle& handle() const { return handle_; }
  const std::string& last_failure() const { return last_failure_; }

 private:
  Status take_callers();
  void make_room();

  Domain& domain_;
  const ConnectOptions options_;
  Socket socket_;
  const wire::Token token_;
  Handle handle_;
  std::vector<std::unique_ptr<Acceptor>> sessions_;  // oldest first
  std::string last_failure_;
};

void Listener::State::make_room() {
  if (sessions_.size() < kMaxSessions) return;
  for (auto it = sessions_.begin(); it != sessions_.end(); ++it) {
    // Heard before it goes: its greeting may have come after we looked last.
    if (!(*it)->is_authenticated()) (*it)->advance_steps();
    if ((*it)->is_authenticated()) continue;
    sessions_.erase(it);
    return;
  }
}

Status Listener::State::take_callers() {
  while (true) {
    make_room();
    if (sessions_.size() == kMaxSessions) return {};  // all known; the backlog keeps the rest
    NORIA_TRY_ASSIGN(Socket caller, accept_from(socket_));
    if (!caller.is_open()) return {};
    sessions_.push_back(std::make_unique<Acceptor>(std::move(caller), domain_, options_, token_));
  }
}

Result<std::unique_ptr<RecvConnection>> Listener::State::try_accept() {
  if (const Status taken = take_callers(); !taken.is_ok()) {
    last_failure_ = std::string("a caller cannot be let in: ") + std::strerror(taken.raw());
    if (const std::string advice = advice_on(taken, Limits::of_this_process()); !advice.empty())
      last_failure_ += "; " + advice;
    return taken;
  }
  for (auto it = sessions_.begin(); it != sessions_.end();) {
    Acceptor& session = **it;
    session.advance_steps();
    if (session.step == Step::done) {
      std::unique_ptr<RecvState> state = session.take_state();
      sessions_.erase(it);
      state->start();
      return std::make_unique<RecvConnection>(std::move(state));
    }
    if (session.step != Step::failed) {
      ++it;
      continue;
    }
    const bool is_known = session.is_authenticated();
    const Status failure = session.failure;
    std::string text = std::move(session.text);
    it = sessions_.erase(it);
    if (is_known) {
      last_failure_ = std::move(text);
      return failure;
    }
    log(LogLevel::info, "dropped a caller: %s", text.c_str());
  }
  return std::unique_ptr<RecvConnection>();
}

Result<std::unique_ptr<Listener>> Listener::open(Domain& domain, const std::string& host,
                                                 const ConnectOptions& options) {
  NORIA_TRY_ASSIGN(const SocketAddress address, SocketAddress::parse(host, 0));
  NORIA_TRY_ASSIGN(const wire::Token token, random_token());
  SocketAddress bound;
  NORIA_TRY_ASSIGN(Socket socket, listen_on(address, &bound));
  return std::unique_ptr<Listener>(
      new Listener(std::make_unique<State>(domain, options, std::move(socket), token, bound)));
}

Listener::Listener(std::unique_ptr<State> state) : state_(std::move(state)) {}
Listener::~Listener() = default;
const Handle& Listener::handle() const { return state_->handle(); }
Result<std::unique_ptr<RecvConnection>> Listener::try_accept() { return state_->try_accept(); }
std::string Listener::describe() const { return state_->last_failure(); }

}  // namespace noria::transport
