// The control link between two processes of a host: an abstract unix socket that carries
// descriptors. It proves who the other is (same user by SO_PEERCRED, layout version, cookie), hands
// over the segment and the means to wake and to watch its owner, and announces what comes later:
// completion channels and memory to map.
//
// Abstract names vanish with the process, also on SIGKILL: nothing is left behind.
//
// Threads: one at a time (the owner's lock).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <optional>

#include "base/result.hpp"
#include "verbs/soft/segment.hpp"

namespace noria::soft {

constexpr uint64_t kLinkMagic = 0x4e4f5249'414c4e4b;  // "NORIALNK"
constexpr uint32_t kLinkVersion = 3;

enum class LinkKind : uint32_t {
  hello = 1,        // three descriptors: segment, doorbell, pidfd (if there is one)
  channel = 2,      // one: the eventfd of completion channel `id`
  memory = 3,       // one: allocation `id` of `bytes`
  memory_gone = 4,  // none
  ready = 5,        // none: who connected has mapped who accepted
  port = 6,         // one: the schedule of the port of device `id`
  channel_gone = 7  // none
};

struct LinkMessage {
  uint64_t magic = kLinkMagic;
  uint32_t version = kLinkVersion;
  LinkKind kind = LinkKind::hello;
  uint32_t id = 0;  // hello: the sender's slot
  uint32_t reserved = 0;
  uint64_t bytes = 0;
  uint64_t cookie[2] = {};
};

constexpr size_t kLinkFds = 3;

struct Received {
  LinkMessage message;
  Fd fds[kLinkFds];
  size_t fd_count = 0;
};

// Binds and listens on the name of a free slot, trying `first` first. The slot is ours for as long
// as the descriptor is open.
struct ClaimedSlot {
  uint32_t slot = 0;
  Fd listener;
};
Result<ClaimedSlot> claim_slot(uint32_t first);

class Link {
 public:
  // Not open where nobody listens in the slot, or the listener is of another user; or, is_busy(),
  // while the listener has more callers waiting than it accepts, as a stopped process has.
  static Link connect(uint32_t slot);
  static Link accept(int listener);

  bool is_open() const { return fd_.is_open(); }
  bool is_busy() const { return is_busy_; }
  int fd() const { return fd_.get(); }
  pid_t pid() const { return pid_; }  // of the process at the other end, in our pid namespace

  // Sends, or keeps it for flush() when the socket is full. False: the link is dead.
  bool send(const LinkMessage& message, const int* fds, size_t fd_count);
  bool flush();
  bool has_unsent() const { return !unsent_.empty(); }

  // `no_room`: there is no descriptor for what may come with the next message, which stays unread:
  // a message whose descriptors are lost is lost itself.
  enum class Event { message, nothing, closed, no_room };
  Event receive(Received* out);

 private:
  struct Unsent {
    LinkMessage message;
    Fd fds[kLinkFds];
    size_t fd_count = 0;
  };
  bool identify();

  Fd fd_;
  bool is_busy_ = false;
  pid_t pid_ = 0;
  std::deque<Unsent> unsent_;
};

}  // namespace noria::soft
