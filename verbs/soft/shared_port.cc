#include "verbs/soft/shared_port.hpp"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstring>

#include "base/clock.hpp"
#include "verbs/soft/accept_failure.hpp"

namespace noria::soft {
namespace {

using Joined = Result<SharedPort, std::string>;

constexpr Nanoseconds kPatience = 2_s;
constexpr int kBacklog = 128;

struct Name {
  sockaddr_un address{};
  socklen_t bytes = 0;
};

// Abstract, so no file; by user, so that users do not collide.
Name name_of(const std::string& key) {
  Name name;
  name.address.sun_family = AF_UNIX;
  const int n = std::snprintf(name.address.sun_path + 1, sizeof name.address.sun_path - 1,
                              "noria-port-%u-%s", static_cast<unsigned>(::getuid()), key.c_str());
  name.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(n));
  return name;
}

Fd make_socket() { return Fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)); }

bool is_of_our_user(int socket) {
  ucred credentials{};
  socklen_t bytes = sizeof credentials;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) == 0 &&
         credentials.uid == ::geteuid();
}

Joined map_port(Fd memory, Fd listener) {
  void* schedule =
      memory.is_open() ? map_shared(memory.get(), sizeof(PortSchedule), true) : nullptr;
  if (schedule == nullptr)
    return Joined(std::string("the port's schedule cannot be mapped: ") + std::strerror(errno));
  SharedPort port;
  port.memory = std::move(memory);
  port.listener = std::move(listener);
  port.schedule =
      Mapping<PortSchedule>(static_cast<PortSchedule*>(schedule), Unmapper{sizeof(PortSchedule)});
  return port;
}

// A message of one byte with room for two descriptors.
struct TwoDescriptors {
  char word = 0;
  iovec data{&word, sizeof word};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 2)] = {};
  msghdr header{};

  TwoDescriptors() {
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
  }
  TwoDescriptors(const TwoDescriptors&) = delete;
  TwoDescriptors& operator=(const TwoDescriptors&) = delete;
};

// The two descriptors that hand_over() sends; false if they do not come in time.
bool receive_port(int socket, Nanoseconds deadline, Fd* memory, Fd* listener) {
  pollfd ready{socket, POLLIN, 0};
  const Nanoseconds left = deadline - now_ns();
  if (left <= 0 || ::poll(&ready, 1, static_cast<int>(left / 1_ms) + 1) != 1) return false;
  TwoDescriptors message;
  if (::recvmsg(socket, &message.header, MSG_CMSG_CLOEXEC) != sizeof message.word) return false;
  const cmsghdr* rights = CMSG_FIRSTHDR(&message.header);
  if (rights == nullptr || rights->cmsg_level != SOL_SOCKET || rights->cmsg_type != SCM_RIGHTS ||
      rights->cmsg_len != CMSG_LEN(sizeof(int) * 2))
    return false;
  int fds[2] = {-1, -1};
  std::memcpy(fds, CMSG_DATA(rights), sizeof fds);
  *memory = Fd(fds[0]);
  *listener = Fd(fds[1]);
  return true;
}

}  // namespace

Joined join_port(const std::string& key) {
  if (key.empty()) return map_port(make_memory_file("noria-port", sizeof(PortSchedule)), Fd());
  const Name name = name_of(key);
  const auto* address = reinterpret_cast<const sockaddr*>(&name.address);
  // Between a refused connect and our bind others may come or go, hence the loop.
  const auto refuse = [&key] { return Joined("port " + key + ": " + std::strerror(errno)); };
  for (const Nanoseconds deadline = now_ns() + kPatience; now_ns() < deadline;) {
    Fd socket = make_socket();
    if (!socket.is_open()) return refuse();
    if (::bind(socket.get(), address, name.bytes) == 0) {
      if (::listen(socket.get(), kBacklog) != 0) return refuse();
      return map_port(make_memory_file("noria-port", sizeof(PortSchedule)), std::move(socket));
    }
    if (errno != EADDRINUSE) return refuse();
    if (::connect(socket.get(), address, name.bytes) != 0) {
      // Bound and not yet listening, gone by now, or more who ask than the backlog takes.
      if (errno != ECONNREFUSED && errno != EAGAIN) return refuse();
      ::poll(nullptr, 0, 1);
      continue;
    }
    if (!is_of_our_user(socket.get()))
      return Joined("port " + key + ": another user holds its name");
    Fd memory, listener;
    if (receive_port(socket.get(), deadline, &memory, &listener))
      return map_port(std::move(memory), std::move(listener));
  }
  return Joined("port " + key +
                ": the processes that have it open do not answer; are they stopped?");
}

bool hand_over(const SharedPort& port) {
  const Fd asker(::accept4(port.listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!asker.is_open()) return !leaves_caller_waiting(errno);
  if (!is_of_our_user(asker.get())) return true;
  TwoDescriptors message;
  cmsghdr* rights = CMSG_FIRSTHDR(&message.header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int) * 2);
  const int fds[2] = {port.memory.get(), port.listener.get()};
  std::memcpy(CMSG_DATA(rights), fds, sizeof fds);
  // Nothing to do where it fails: who asks sees the end of the connection and asks again.
  (void)::sendmsg(asker.get(), &message.header, MSG_NOSIGNAL);
  return true;
}

}  // namespace noria::soft
