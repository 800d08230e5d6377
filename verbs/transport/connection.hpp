// SendConnection and RecvConnection: the two ends of a one-way connection over all its rails and
// queue pairs.
//
// Messages are receiver-driven: the n-th message sent lands in the memory of the n-th receive
// posted; a receive posts a credit that says where, and for which tag. try_* return null for *not
// yet* (no credit, one for another tag, no free slot in the window, or the connection failed: then
// status() is not ok and says why). A message may be shorter than its receive, never longer (the
// sender's request fails with Code::bad_argument). Zero bytes are ordinary. Requests complete in
// any order between kinds; in order within sends and within receives.
//
// A **group** is one receive of several messages, each with a place and a tag of its own. Sends
// find their places by tag, in any order; among equal tags the first place goes first. All of a
// group are sent before the next receive is matched, and none of them is done before.
//
// A **line** is 64 bytes that are written into memory whose owner watches it, with no credit, no
// completion and no word there: the quickest way for the little that it holds.
//
// Waiting for a credit is never an error. A connection fails when the transport says so: completion
// status, closed control socket, asynchronous event. Then all its requests complete with that
// Status and describe() names the peer, the queue pair and the cause.
//
// Threads: the owner of the domain.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/check.hpp"
#include "base/status.hpp"
#include "verbs/transport/region.hpp"
#include "verbs/transport/request.hpp"

namespace noria::transport {

// Messages in flight on one connection: 32 groups of the largest size. The credit ring, the receive
// queues and the request pools are sized by it.
inline constexpr uint32_t kWindow = 256;
inline constexpr uint32_t kMaxGroup = 8;     // messages of one receive
inline constexpr uint32_t kReadWindow = 64;  // reads in flight

// A byte of memory of another device that received something.
struct FlushPoint {
  const Region* region = nullptr;
  uint64_t offset = 0;
};
inline constexpr uint32_t kMaxFlushPoints = 8;  // of one flush; none is not allowed
inline constexpr uint32_t kMaxFlushes = 32;     // under way on one connection

class SendState;
class RecvState;

class SendConnection {
 public:
  explicit SendConnection(std::unique_ptr<SendState> state);
  ~SendConnection();  // closes; requests in flight are forgotten, no byte of them is touched after
  SendConnection(const SendConnection&) = delete;
  SendConnection& operator=(const SendConnection&) = delete;

  // Sends `bytes` from region.base() + offset to the receiver's next receive, which must have this
  // tag.
  NORIA_HOT Request* try_send(const Region& region, uint64_t offset, uint64_t bytes,
                              uint32_t tag = 0);
  // A message of at most kInlineBytes whose bytes are taken before the call returns. To a receive
  // by itself and of tag 0.
  NORIA_HOT Request* try_send_inline(const void* data, uint32_t bytes);
  // Writes a line at `offset`, a multiple of its size, of memory that the peer exposed: made with
  // Watched::yes. Taken before the call returns. Each half of 32 bytes lands whole, and they may
  // land in either order. False: *not yet*, so many are on their way (poll), or the connection
  // failed. Only where ConnectOptions said sends_lines.
  NORIA_HOT bool try_write_line(const RemoteRegion& to, uint64_t offset, const void* line);
  NORIA_HOT void release(Request* request) { request->give_back(); }
  // What owner() of its requests says from now on, so that a request leads to who made it.
  void set_owner(void* owner);

  Status status() const;         // ok while usable
  std::string describe() const;  // for errors: peer, queue pairs, cause

  static constexpr uint32_t kInlineBytes = 64;
  static constexpr uint32_t kLineBytes = 64;
  static_assert(kLineBytes <= kInlineBytes);

 private:
  std::unique_ptr<SendState> state_;
};

// One message of a group, and where it goes. Borrows the region for the call.
struct RecvPart {
  const Region* region = nullptr;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint32_t tag = 0;
};

class RecvConnection {
 public:
  explicit RecvConnection(std::unique_ptr<RecvState> state);
  ~RecvConnection();
  RecvConnection(const RecvConnection&) = delete;
  RecvConnection& operator=(const RecvConnection&) = delete;

  // Receives the next message, of at most `bytes`, at region.base() + offset.
  NORIA_HOT Request* try_recv(const Region& region, uint64_t offset, uint64_t bytes,
                              uint32_t tag = 0);
  // Receives a group of 1 to kMaxGroup messages, by one request.
  NORIA_HOT Request* try_recv_group(std::span<const RecvPart> parts);
  NORIA_HOT uint64_t part_bytes(const Request* request, uint32_t part) const;  // as Request::bytes
  // Reads `bytes` at `remote_offset` of a region that the sender exposed, without its help.
  NORIA_HOT Request* try_read(const Region& local, uint64_t local_offset,
                              const RemoteRegion& remote, uint64_t remote_offset, uint64_t bytes);
  // Once done, what arrived in these memories is seen by their own device: flush.hpp. Null when as
  // many are under way as can be, or the connection failed. The first one enters the kernel, and
  // fails the connection if a device gives no queue pair for it.
  Request* try_flush(std::span<const FlushPoint> points);
  NORIA_HOT void release(Request* request) {
    request->messages() == 1 ? request->give_back() : release_group(request);
  }
  void set_owner(void* owner);  // as SendConnection::set_owner()

  Status status() const;
  std::string describe() const;

 private:
  void release_group(Request* request);

  std::unique_ptr<RecvState> state_;
};

}  // namespace noria::transport
