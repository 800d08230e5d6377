// How a rank finds rank 0, which may start later, be busy, or not be what listens there.
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "bucketing/control_state.hpp"
#include "bucketing/tcp.hpp"

namespace noria::bucketing {
namespace {

constexpr Nanoseconds kFirstPause = 10_ms;
constexpr Nanoseconds kLongestPause = 200_ms;
// Something listened and hung up, or speaks of other things: a listener that is about to make room
// for ours, or one that does not know our token, or rank 0 died. The first is over soon.
constexpr Nanoseconds kHangUpPatience = 5_s;

// True when `events` came before the deadline.
bool wait_ready(const Fd& socket, short events, Nanoseconds deadline) {
  while (true) {
    const Nanoseconds left = deadline - now_ns();
    if (left <= 0) return false;
    pollfd entry{socket.get(), events, 0};
    const int left_ms = static_cast<int>(std::min<Nanoseconds>(left / 1'000'000 + 1, 60'000));
    if (::poll(&entry, 1, left_ms) > 0) return true;
  }
}

struct Attempt {
  enum class End { accepted, refused, unreachable, hung_up, silent };
  End end = End::unreachable;
  std::string cause;
  Failure refusal;
  RootLink link;
};

// After hello: the first frame is `accepted`, or a failure that says why not.
void await_answer(Attempt* attempt, Nanoseconds deadline) {
  char bytes[4096];
  while (wait_ready(attempt->link.socket, POLLIN, deadline)) {
    const ssize_t got = ::recv(attempt->link.socket.get(), bytes, sizeof bytes, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got <= 0) {
      attempt->end = Attempt::End::hung_up;
      attempt->cause = got == 0 ? "it hung up" : std::strerror(errno);
      return;
    }
    attempt->link.parser.append({bytes, static_cast<size_t>(got)});
    const auto frame = attempt->link.parser.next();
    if (frame && frame->type == FrameType::accepted) {
      attempt->end = Attempt::End::accepted;
      return;
    }
    if (frame && frame->type == FrameType::failure) {
      PayloadReader payload(frame->payload);
      const int32_t code = payload.take_i32();
      attempt->refusal = {code, payload.take_text()};
      attempt->end = Attempt::End::refused;
      return;
    }
    if (frame || attempt->link.parser.is_malformed()) {
      attempt->end = Attempt::End::hung_up;
      attempt->cause = "it speaks another protocol";
      return;
    }
  }
  attempt->end = Attempt::End::silent;
  attempt->cause = "it does not answer";
}

Attempt try_once(const TcpAddress& address, const ControlPlane::Options& options) {
  Attempt attempt;
  auto socket = start_connect(address);
  if (!socket) {
    attempt.cause = socket.failure();
    return attempt;
  }
  attempt.link.socket = std::move(*socket);
  if (!wait_ready(attempt.link.socket, POLLOUT, options.deadline)) {
    attempt.cause = address.text() + " does not answer";
    return attempt;
  }
  if (const int error = connect_error(attempt.link.socket); error != 0) {
    attempt.cause = address.text() + ": " + std::strerror(error);
    return attempt;
  }
  tune(attempt.link.socket);
  const Hello hello{.token_low = options.token_low,
                    .token_high = options.token_high,
                    .rank = options.rank,
                    .size = options.size};
  // A new socket takes 40 bytes at once, or it is broken and the answer says so.
  static_cast<void>(::send(attempt.link.socket.get(), &hello, sizeof hello, MSG_NOSIGNAL));
  await_answer(&attempt, options.deadline);
  return attempt;
}

}  // namespace

Outcome<RootLink> connect_to_root(const ControlPlane::Options& options, Nanoseconds timeout) {
  const std::string where = options.root_host + ":" + std::to_string(options.root_port);
  Nanoseconds pause = kFirstPause;
  Nanoseconds first_hang_up = kNever;
  std::string cause = "no attempt was made";
  do {
    auto addresses = resolve(options.root_host, options.root_port, options.deadline);
    if (!addresses) return Failure{NORIA_E_NET, addresses.failure()};
    for (const TcpAddress& address : *addresses) {
      Attempt attempt = try_once(address, options);
      if (attempt.end == Attempt::End::accepted) return std::move(attempt.link);
      if (attempt.end == Attempt::End::refused) return attempt.refusal;
      cause = attempt.cause;
      if (attempt.end == Attempt::End::hung_up) first_hang_up = std::min(first_hang_up, now_ns());
    }
    if (first_hang_up != kNever && now_ns() - first_hang_up > kHangUpPatience)
      return Failure{NORIA_E_PEER, "rank 0 died, or it is not of this job: what listens at " +
                                       where + " let this rank in not once in " +
                                       seconds_text(kHangUpPatience) + ": " + cause};
    const Nanoseconds left = options.deadline - now_ns();
    if (left <= 0) break;
    // Nothing can wake it: whether somebody listens is found out only by trying again.
    ::poll(nullptr, 0, static_cast<int>(std::min(pause, left) / 1'000'000 + 1));
    pause = std::min(2 * pause, kLongestPause);
  } while (true);
  return Failure{NORIA_E_MISSING, "rank 0 did not join within " + seconds_text(timeout) + ": " +
                                      cause + "; look whether it was started and listens at " +
                                      where + ", or raise NORIA_START_TIMEOUT_MS"};
}

}  // namespace noria::bucketing
