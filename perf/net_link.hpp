// Connections through a net plugin between two sides, and messages over them, driven as NCCL's
// threads do: connect and accept are asked until they are done, a null request is *later*, the
// oldest request is tested, and when nothing moved for a while the processor is offered to others.
//
// A direction of messages ends by empty ones, which no measured message is: the sender sends as
// many as the receiver keeps posted, so that nothing is left over on either side and only the
// sender needs to know when the time is up.
//
// Threads: one.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/check.hpp"
#include "perf/machine.hpp"
#include "perf/net_control.hpp"
#include "perf/net_plugin.hpp"

namespace noria::perf {

// Bounds a wait: call it whenever nothing moved. Throws ToolError (peer) after kNetPatience without
// a moved() in between, and when the other side failed or is gone.
class NetPatience {
 public:
  explicit NetPatience(NetControl& control) : control_(control) {}
  void moved() { idle_ = 0; }
  void nothing_moved();

 private:
  NetControl& control_;
  uint32_t idle_ = 0;
  Nanoseconds since_ = 0;
};

// What both ends have: a comm, and memory for `buffers` messages of up to `bytes`, registered.
class NetEnd {
 public:
  NetEnd(const NetPlugin& plugin, void* comm, uint64_t bytes, uint32_t buffers);

  abi::Caller& net() const { return net_; }
  void* comm() const { return comm_; }
  void* registered() const { return registered_; }
  void* buffer(uint64_t message) const {
    return static_cast<std::byte*>(memory_.get()) + message % buffers_ * stride_;
  }

 protected:
  ~NetEnd() = default;
  void deregister();

 private:
  abi::Caller& net_;
  void* comm_;
  uint64_t stride_;
  uint32_t buffers_;
  Buffer memory_;
  void* registered_ = nullptr;
};

// Requests under way, the oldest first.
class NetRequests {
 public:
  explicit NetRequests(uint32_t depth) : requests_(depth) {}
  bool has_room() const { return begun_ - ended_ < requests_.size(); }
  bool has_any() const { return begun_ != ended_; }
  void** next() { return &requests_[begun_ % requests_.size()]; }
  void add() { ++begun_; }
  // Whether the oldest is done, which ends it; its length then.
  bool test_oldest(abi::Caller& net, int* bytes);
  uint64_t begun() const { return begun_; }
  uint64_t ended() const { return ended_; }

 private:
  std::vector<void*> requests_;
  uint64_t begun_ = 0, ended_ = 0;
};

class NetSender : public NetEnd {
 public:
  NetSender(const NetPlugin& plugin, void* comm, uint64_t bytes, uint32_t buffers, uint32_t depth)
      : NetEnd(plugin, comm, bytes, buffers), depth_(depth), requests_(depth) {}
  ~NetSender();
  NetSender(const NetSender&) = delete;
  NetSender& operator=(const NetSender&) = delete;

  // Messages of `bytes` from now on, counted anew.
  void start(uint64_t bytes);
  // Begins one more while there is room and fewer than `goal` have begun, and tests the oldest;
  // whether anything moved. Beyond `goal` nothing is sent until finish().
  bool advance(uint64_t goal);
  // The same for the empty messages at the end.
  bool advance_end() { return is_over() ? false : send_or_test(total_ + depth_, 0); }
  void finish() { total_ = begun(); }  // no further messages; advance_end() until is_over()
  bool is_over() const { return ended() == total_ + depth_; }

  uint64_t begun() const { return requests_.begun() - base_; }
  uint64_t ended() const { return requests_.ended() - base_; }

 private:
  bool send_or_test(uint64_t goal, uint64_t bytes);

  const uint32_t depth_;
  NetRequests requests_;
  uint64_t bytes_ = 0, base_ = 0;
  uint64_t total_ = UINT64_MAX / 2;  // until finish() says
};

class NetReceiver : public NetEnd {
 public:
  NetReceiver(const NetPlugin& plugin, void* comm, uint64_t bytes, uint32_t buffers, uint32_t depth)
      : NetEnd(plugin, comm, bytes, buffers), depth_(depth), requests_(depth) {}
  ~NetReceiver();
  NetReceiver(const NetReceiver&) = delete;
  NetReceiver& operator=(const NetReceiver&) = delete;

  void start(uint64_t bytes);
  // Posts one more receive while there is room, and tests the oldest; whether anything moved.
  // Throws ToolError (wrong_result) where a message has another length than was agreed.
  bool advance();
  bool post();  // without a look at the oldest
  bool is_ending() const { return empties_ != 0; }
  bool is_over() const { return empties_ == depth_; }
  uint64_t received() const { return received_; }

 private:
  bool test();

  const uint32_t depth_;
  NetRequests requests_;
  uint64_t bytes_ = 0, base_ = 0, received_ = 0;
  uint32_t empties_ = 0;
};

struct NetShape {
  uint64_t most_bytes = 0;
  uint32_t buffers = 1;
  uint32_t depth = 8;
};

// The directions of a measurement, as this side has them; null where there is none.
struct NetLink {
  std::unique_ptr<NetSender> sender;
  std::unique_ptr<NetReceiver> receiver;
};

// Both sides call it, with the same shape. The directions that this side does not have the other
// one has: a sender here is a receiver there.
NetLink connect_net(const NetPlugin& plugin, NetControl& control, const NetShape& shape, bool sends,
                    bool receives);

}  // namespace noria::perf
