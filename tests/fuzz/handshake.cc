// Both sides of the handshake on the software HCA, each with a peer that says anything.
//
// The input is a right conversation with bytes changed: who plays the connector says hello and
// ready to an Acceptor, who plays the listener answers a Connector and says farewell. Addresses in
// handles are put right: nobody but this process is ever called.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>

#include "base/params.hpp"
#include "tests/fuzz/input.hpp"
#include "verbs/api.hpp"
#include "verbs/provider.hpp"
#include "verbs/transport/acceptor.hpp"
#include "verbs/transport/domain.hpp"
#include "verbs/transport/send.hpp"

extern char** environ;

namespace {

using namespace noria::transport;
using noria::fuzz::bytes_of;
using noria::fuzz::Input;
using noria::fuzz::is_one_line;

// One device for all inputs, as a process has one.
struct Device {
  Device() {
    auto params = noria::load_params(environ);
    NORIA_CHECK(params.is_ok(), "the test's environment is right");
    auto opened = noria::verbs::open_provider(*params, noria::verbs::Use::collective);
    NORIA_CHECK(opened.is_ok(), "the software HCA is there");
    provider = *opened;
    auto created = Domain::create(provider, *params);
    NORIA_CHECK(created.is_ok(), "it has a port");
    domain = std::move(*created);

    auto listened = listen_on(SocketAddress::parse("127.0.0.1", 0).value(), &address);
    NORIA_CHECK(listened.is_ok(), "there is a port on the loopback");
    listener = std::move(*listened);
    spare = RecvState::make(domain->state(), {}).value();
    ends = spare->link().ends();
    live_objects = provider->api().live_objects();
  }
  std::shared_ptr<const noria::verbs::Provider> provider;
  std::unique_ptr<Domain> domain;
  SocketAddress address;
  Socket listener;
  std::unique_ptr<RecvState> spare;  // nobody is connected to it
  wire::Ends ends;                   // its queue pairs: what a right peer would say
  int64_t live_objects = 0;
};

Device& device() {
  static Device instance;
  return instance;
}

void say(int fd, std::string_view bytes) {
  // What a peer that hung up does not take is lost, as in life.
  static_cast<void>(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
}

// The message with bytes changed as the input says.
template <class Message>
std::string changed(const Message& message, Input& input) {
  std::string bytes(bytes_of(message));
  for (int edits = input.take<uint8_t>() % 8; edits > 0; --edits) {
    const auto at = input.take<uint16_t>();
    bytes[at % bytes.size()] = input.take<char>();
  }
  return bytes;
}

// ---- a connector that says anything -------------------------------------------------------------

void check_answer(int peer, const Acceptor& acceptor) {
  std::array<std::byte, 2 * wire::kMaxControlBytes> bytes{};
  const ssize_t got = recv(peer, bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (!acceptor.is_authenticated()) {
    NORIA_CHECK(got <= 0, "a stranger gets no answer");
    return;
  }
  wire::Control header;
  NORIA_CHECK(got >= static_cast<ssize_t>(sizeof header), "who has the token is answered");
  std::memcpy(&header, bytes.data(), sizeof header);
  NORIA_CHECK(header.bytes == static_cast<size_t>(got), "the answer is one whole message");
  if (header.type != wire::Type::refuse) {
    NORIA_CHECK(header.type == wire::Type::accept && got == sizeof(wire::Accept), "or accepted");
    return;
  }
  wire::Refuse refusal;
  NORIA_CHECK(got == sizeof refusal, "a refusal is whole");
  std::memcpy(&refusal, bytes.data(), sizeof refusal);
  NORIA_CHECK(is_one_line(explain(refusal, false)), "it is explained in one line");
}

void run_acceptor(Input& input) {
  int fds[2];
  NORIA_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) == 0, "a pair of sockets");
  const Socket peer(fds[1]);
  const wire::Token token{std::byte{1}, std::byte{2}, std::byte{3}};
  const ConnectOptions options{.peer_name = "rank 1"};
  {
    Acceptor acceptor(Socket{fds[0]}, *device().domain, options, token);
    wire::Hello hello;
    hello.token = token;
    hello.provider_kind = static_cast<uint8_t>(device().provider->kind());
    hello.ends = device().ends;
    hello.name = {'h', ':', '1'};
    const std::string said = changed(hello, input);
    const bool shows_token =
        said.substr(offsetof(wire::Hello, token), token.size()) == bytes_of(token);
    say(peer.fd(), said);
    acceptor.advance_steps();
    NORIA_CHECK(!acceptor.is_authenticated() || shows_token, "nobody comes in without the token");
    if (acceptor.step != Step::awaiting_hello) check_answer(peer.fd(), acceptor);

    say(peer.fd(), changed(wire::Ready{}, input));
    say(peer.fd(), input.take_text(64));
    shutdown(peer.fd(), SHUT_WR);
    acceptor.advance_steps();
    NORIA_CHECK(acceptor.step == Step::done || acceptor.step == Step::failed,
                "a peer that hung up is waited for no longer");
    if (acceptor.step == Step::failed) {
      NORIA_CHECK(!acceptor.failure.is_ok(), "a failure has its code");
      NORIA_CHECK(is_one_line(acceptor.text), "and one line");
    } else {
      NORIA_CHECK(acceptor.is_authenticated(), "no connection without the token");
      NORIA_CHECK(acceptor.take_state() != nullptr, "what is done can be taken");
    }
  }
}

// ---- a listener that says anything --------------------------------------------------------------

wire::Handle own_handle() {
  const auto& ipv4 = reinterpret_cast<const sockaddr_in&>(device().address.storage);
  wire::Handle handle;
  handle.family = 4;
  handle.port = device().address.port();
  std::memcpy(handle.address.data(), &ipv4.sin_addr, sizeof ipv4.sin_addr);
  handle.rails = 1;
  return handle;
}

// Put right before it is used: where it leads to.
Handle handle_of(Input& input) {
  wire::Handle handle;
  std::memcpy(static_cast<void*>(&handle), changed(own_handle(), input).data(), sizeof handle);
  const wire::Handle own = own_handle();
  if (handle.family == 6) handle.family = 4;
  handle.address = own.address;
  handle.port = own.port;
  Handle opaque;
  std::memcpy(opaque.bytes.data(), &handle, sizeof handle);
  return opaque;
}

void check_connected(SendConnection& connection) {
  // The farewell, or the garbage in its place, is read here.
  for (int i = 0; i < 4 && connection.status().is_ok(); ++i) {
    NORIA_CHECK(device().domain->arm_and_wait(noria::now_ns(), -1).is_ok(), "it looks");
    device().domain->poll();
  }
  NORIA_CHECK(is_one_line(connection.describe()), "a connection is described in one line");
}

std::string answer_of(Input& input) {
  const auto choice = input.take<uint8_t>();
  wire::Refuse refusal;
  refusal.reason = static_cast<wire::Reason>(choice / 4 % 8);
  wire::Accept accept;
  accept.ends = device().ends;
  accept.name = {'h', ':', '2'};
  return choice % 4 == 0 ? changed(refusal, input) : changed(accept, input);
}

void run_connector(Input& input) {
  auto started = Connector::start(*device().domain, handle_of(input), {.peer_name = "rank 0"});
  if (!started) {
    const noria::Code code = started.failure().code();
    NORIA_CHECK(code == noria::Code::bad_argument || code == noria::Code::no_memory,
                "a handle of nobody, or of one that takes next to nothing in a work request");
    return;
  }
  Connector& connector = **started;
  Socket peer;
  for (int i = 0; i < 1000 && !peer.is_open(); ++i) peer = accept_from(device().listener).value();
  NORIA_CHECK(peer.is_open(), "who connects to the loopback is there at once");
  const linger at_once{.l_onoff = 1, .l_linger = 0};  // no port is kept in TIME_WAIT
  setsockopt(peer.fd(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);

  static_cast<void>(connector.try_finish());  // says hello
  const std::string answer = answer_of(input);
  say(peer.fd(), answer);
  wire::Close farewell;
  farewell.is_failure = 1;
  farewell.cause = {'w', 'h', 'y'};
  say(peer.fd(), changed(farewell, input));
  shutdown(peer.fd(), SHUT_WR);
  for (int i = 0; i < 100; ++i) {
    auto finished = connector.try_finish();
    NORIA_CHECK(is_one_line(connector.describe()), "an attempt is described in one line");
    if (!finished) {
      NORIA_CHECK(!finished.failure().is_ok(), "a failure has its code");
      return;
    }
    if (*finished == nullptr) continue;
    NORIA_CHECK(static_cast<uint8_t>(answer[offsetof(wire::Control, type)]) ==
                    static_cast<uint8_t>(wire::Type::accept),
                "who was accepted is connected");
    return check_connected(**finished);
  }
  NORIA_CHECK(false, "a peer that hung up is waited for no longer");
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  if (input.take<uint8_t>() % 2 == 0)
    run_acceptor(input);
  else
    run_connector(input);
  device().domain->poll();
  NORIA_CHECK(device().provider->api().live_objects() == device().live_objects,
              "everything was given back");
  return 0;
}
