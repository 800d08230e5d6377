// transport_bw: how many messages a second the transport carries between two processes, as
// ib_write_bw counts writes: one hot buffer on each side, a window of messages under way, timed by
// the sender from the first post to the last completion; over as many ports as are asked for.
//
// Both on this machine: the parent forks one child, which receives. Or one on each of two hosts: a
// receiver that waits with --serve, and a sender that names its host. Each has a domain of its own.
// The receiver spins for
// a while and then sleeps, as the ring's driver does: the target of ib_write_bw sleeps all the
// time.

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>

#include "base/units.hpp"
#include "perf/command_line.hpp"
#include "perf/machine.hpp"
#include "perf/net_control.hpp"
#include "verbs/transport/domain.hpp"
#include "verbs/transport/interfaces.hpp"
#include "verbs/transport/listener.hpp"

namespace noria::perf {
namespace {

using transport::Request;

constexpr const char* kName = "transport_bw";
constexpr Nanoseconds kPatience = 30_s;  // without any progress
// Of a receiver, before it sleeps: more than a message of 1 MiB takes, because to wake the halted
// processor of a guest costs the sender 20 us.
constexpr Nanoseconds kSpin = 200_us;
constexpr Nanoseconds kNap = 1_ms;  // at most
constexpr uint64_t kDepth = 64;     // messages under way
constexpr uint64_t kWarmups = 4 * kDepth;
static_assert(kDepth <= transport::kWindow);

[[noreturn]] void give_up(const std::string& why) { throw ToolError(Exit::environment, why); }

// A domain, and a registered buffer whose pages are there.
struct Endpoint {
  Endpoint(uint64_t bytes, unsigned rails, bool is_sleeper) : sleeps(is_sleeper), buffer(bytes) {
    const Params params = params_of_environment();
    auto provider = verbs::open_provider(params, verbs::Use::collective);
    if (!provider) give_up(provider.failure());
    auto created = transport::Domain::create(*provider, params, rails);
    if (!created) give_up("no domain: " + std::string(to_string(created.failure().code())));
    domain = std::move(*created);
    std::memset(buffer.get(), 1, bytes);
    auto registered = domain->register_region(buffer.get(), bytes);
    if (!registered) give_up("no memory: " + std::string(to_string(registered.failure().code())));
    region = std::move(*registered);
  }

  // `step` answers how far it came; it is called until that is `goal`.
  template <class Step>
  void poll_to(uint64_t goal, Step step) const {
    Nanoseconds last = now_ns();  // when something came
    uint64_t reached = 0;
    for (uint64_t now = step(); now < goal; now = step()) {
      const bool is_idle = domain->poll() == 0 && now == reached;
      reached = now;
      const Nanoseconds time = now_ns();
      if (!is_idle) last = time;
      if (time - last > kPatience) throw ToolError(Exit::peer, "the peer stands still");
      if (sleeps && time - last > kSpin && !domain->arm_and_wait(time + kNap, -1).is_ok())
        give_up("cannot sleep for a completion");
    }
  }

  const bool sleeps;
  Buffer buffer;
  std::unique_ptr<transport::Domain> domain;
  transport::Region region;
};

// Messages that were begun and ended, over a window of requests.
template <class Connection>
class Window {
 public:
  explicit Window(Connection& connection) : connection_(connection) {}

  // Begins with `begin` while there is room, releases what is done; how many are done in all.
  template <class Begin>
  uint64_t advance(uint64_t goal, Begin begin) {
    for (; begun_ != goal && begun_ != ended_ + requests_.size(); ++begun_) {
      Request* const request = begin();
      if (request == nullptr) break;
      requests_[begun_ % requests_.size()] = request;
    }
    for (; ended_ != begun_ && requests_[ended_ % requests_.size()]->is_done(); ++ended_)
      connection_.release(requests_[ended_ % requests_.size()]);
    if (!connection_.status().is_ok()) throw ToolError(Exit::peer, connection_.describe());
    return ended_;
  }

 private:
  Connection& connection_;
  std::array<Request*, kDepth> requests_{};
  uint64_t begun_ = 0, ended_ = 0;
};

struct Options {
  uint64_t bytes = 0, messages = 0;
  unsigned rails = 1;
  std::string host;  // of the receiver; empty: here
  bool serves = false;
  uint16_t port = 18516;

  bool is_local() const { return host.empty() && !serves; }
};

// An address of this host that the sender reaches.
std::string own_address(const Options& options) {
  if (options.is_local()) return "127.0.0.1";
  const auto interface =
      transport::choose_interface(transport::list_interfaces(), params_of_environment());
  if (!interface) give_up(interface.failure());
  return interface->host;
}

// What both sides must have been given alike. Who says anything else first is a stranger.
std::string terms_of(const Options& options) {
  return "--bytes " + std::to_string(options.bytes) + " --messages " +
         std::to_string(options.messages) + " --rails " + std::to_string(options.rails);
}

void expect_own_terms(const NetControl& client, const std::string& asked, const Options& options) {
  if (asked == terms_of(options)) return;
  throw ToolError(Exit::peer, client.peer() + " asks for '" + printable(asked) +
                                  "', where the receiver has '" + terms_of(options) + "'");
}

void receive(NetControl& peer, const Options& options) {
  const Endpoint end(options.bytes, options.rails, true);
  const std::string address = own_address(options);
  auto listener = transport::Listener::open(*end.domain, address, {.peer_name = "the sender"});
  if (!listener) give_up("cannot listen on " + address);
  const transport::Handle handle = (*listener)->handle();
  peer.send({reinterpret_cast<const char*>(handle.bytes.data()), handle.bytes.size()});
  std::unique_ptr<transport::RecvConnection> connection;
  end.poll_to(1, [&] {
    auto accepted = (*listener)->try_accept();
    if (!accepted) give_up((*listener)->describe());
    connection = std::move(*accepted);
    return uint64_t{connection != nullptr};
  });
  Window window(*connection);
  const uint64_t goal = kWarmups + options.messages;
  use_links(peer, options.serves ? kName : nullptr, [&] {
    end.poll_to(goal, [&] {
      return window.advance(goal,
                            [&] { return connection->try_recv(end.region, 0, options.bytes); });
    });
    peer.send("");   // the sender may close
    peer.receive();  // it has the last completions, which our end would take from it
  });
}

// Messages a second.
double send(NetControl& peer, const Options& options) {
  const Endpoint end(options.bytes, options.rails, false);
  const std::string told = peer.receive();
  transport::Handle handle;
  if (told.size() != handle.bytes.size())
    throw ToolError(Exit::peer, peer.peer() + " is no transport_bw of this version");
  std::memcpy(handle.bytes.data(), told.data(), told.size());
  auto connector = transport::Connector::start(*end.domain, handle, {.peer_name = "the receiver"});
  if (!connector) give_up("cannot connect to the receiver");
  std::unique_ptr<transport::SendConnection> connection;
  end.poll_to(1, [&] {
    auto finished = (*connector)->try_finish();
    if (!finished) give_up((*connector)->describe());
    connection = std::move(*finished);
    return uint64_t{connection != nullptr};
  });
  Window window(*connection);
  const auto send_to = [&](uint64_t goal) {
    end.poll_to(goal, [&] {
      return window.advance(goal,
                            [&] { return connection->try_send(end.region, 0, options.bytes); });
    });
  };
  return use_links(peer, kName, [&] {
    send_to(kWarmups);
    const Nanoseconds start = now_ns();
    send_to(kWarmups + options.messages);
    const Nanoseconds time = now_ns() - start;
    peer.send("");
    peer.receive();
    return static_cast<double>(options.messages) * 1e9 / static_cast<double>(time);
  });
}

double send_to_child(const Options& options) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    give_up(std::string("no socket pair: ") + std::strerror(errno));
  Fd mine(ends[0]), theirs(ends[1]);
  const pid_t child = ::fork();
  if (child < 0) give_up(std::string("no second process: ") + std::strerror(errno));
  if (child == 0) {
    mine.reset();
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    NetControl control(std::move(theirs), "the sender");
    with_news(control, [&] { receive(control, options); });
    ::_exit(0);
  }
  theirs.reset();
  NetControl control(std::move(mine), "the receiver");
  const double rate = send(control, options);
  ::waitpid(child, nullptr, 0);
  return rate;
}

int body(int argc, char** argv) {
  CLI::App app(
      "Prints one number: messages a second that the transport carries between two processes,\n"
      "64 under way, from one hot buffer into another.\n"
      "  transport_bw             both on this machine\n"
      "  transport_bw --serve     the receiver: waits for a sender with the same flags, once\n"
      "  transport_bw HOST        the sender\n"
      "Exit: 0, 2 usage, 3 no device, 4 the other process was lost.",
      kName);
  std::string bytes = "65536";
  Options options{.messages = 10000};
  app.add_option("HOST", options.host, "where the receiver runs");
  app.add_flag("--serve", options.serves, "receive from a sender on another host");
  app.add_option("-p,--port", options.port, "of the receiver (18516)")
      ->check(whole_number(1, 65535));
  app.add_option("--bytes", bytes, "of a message (64K)")->transform(byte_size(1, 1_GiB));
  app.add_option("--messages", options.messages, "how many (10000)")
      ->check(whole_number(1, uint64_t{1} << 40));
  app.add_option("--rails", options.rails, "the first so many ports (1)")
      ->check(whole_number(1, transport::kMaxRails));
  if (parse_command_line(app, argc, argv)) return 0;
  if (options.serves && !options.host.empty())
    throw usage_error("--serve and HOST exclude each other");
  params_of_environment();
  options.bytes = std::stoull(bytes);

  if (options.serves) {
    const Fd listener = listen_for_client(options.port);
    std::printf("# %s waits for a sender on port %u\n", kName, unsigned{options.port});
    std::fflush(stdout);
    NetControl control =
        wait_for_client(listener, kName, [&](const NetControl& client, const std::string& asked) {
          expect_own_terms(client, asked, options);
        });
    with_news(control, [&] { receive(control, options); });
    return 0;
  }
  double rate = 0;
  if (options.is_local()) {
    rate = send_to_child(options);
  } else {
    NetControl control =
        connect_to_server(options.host, options.port, "is transport_bw --serve running there?");
    with_news(control, [&] {
      control.send(terms_of(options));
      rate = send(control, options);
    });
  }
  std::printf("%.6g\n", rate);
  return 0;
}

}  // namespace
}  // namespace noria::perf

int main(int argc, char** argv) {
  return noria::perf::run_tool(noria::perf::kName, &noria::perf::body, argc, argv);
}
