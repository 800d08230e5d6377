// What the service thread's epoll watches, and how.
//
// Threads: any thread.
#pragma once

#include <sys/epoll.h>

#include <cstdint>

namespace noria::soft {

// What an epoll event of the service thread is about; in the upper half of its data, the
// descriptor in the lower.
enum class Watched : uint32_t { listener = 1, doorbell, timer, link, pidfd, port, tcp };
constexpr uint64_t watch_tag(Watched what, int fd) {
  return static_cast<uint64_t>(what) << 32 | static_cast<uint32_t>(fd);
}

inline void watch(int epoll, int fd, Watched what) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = watch_tag(what, fd);
  ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

inline void change_watch(int epoll, int fd, Watched what, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = watch_tag(what, fd);
  ::epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event);
}

}  // namespace noria::soft
