#include "perf/net_link.hpp"

#include <sched.h>

#include <array>
#include <cstring>

#include "base/relax.hpp"

namespace noria::perf {
namespace {

constexpr uint64_t kPage = 4096;
constexpr int kTag = 0;  // with one receive a request the order alone matches

uint64_t whole_pages(uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

using NetHandle = std::array<char, abi::kHandleBytes>;

// Closes what was not handed on.
struct Listening {
  abi::Caller& net;
  void* comm = nullptr;
  ~Listening() {
    if (comm != nullptr) static_cast<void>(net.close_listen(comm));
  }
};

NetHandle handle_in(const std::string& text) {
  NetHandle handle{};
  if (text.size() != handle.size())
    throw ToolError(Exit::peer, "the other side sent no handle; is it of the same version?");
  std::memcpy(handle.data(), text.data(), handle.size());
  return handle;
}

}  // namespace

void NetPatience::nothing_moved() {
  // NCCL yields whenever nothing moved. Where each side has a core of its own a yield finds nobody,
  // and costs a system call: 0.1 us of a message of 8 bytes, 5 % of the bandwidth at 256 KiB.
  constexpr uint32_t kSpins = 1024;
  // Between two looks at clock and socket. On a busy machine each is a time slice of others.
  constexpr uint32_t kYields = 64;
  if (++idle_ <= kSpins) return relax();
  ::sched_yield();
  if (idle_ % kYields != 0) return;
  control_.look_for_failure();
  const Nanoseconds now = now_ns();
  if (idle_ == kSpins + kYields) since_ = now;
  if (now - since_ > kNetPatience)
    throw ToolError(Exit::peer,
                    "nothing came or went for 30 s; does " + control_.peer() + " still run?");
}

NetEnd::NetEnd(const NetPlugin& plugin, void* comm, uint64_t bytes, uint32_t buffers)
    : net_(plugin.net()),
      comm_(comm),
      stride_(whole_pages(bytes)),
      buffers_(buffers),
      memory_(stride_ * buffers) {
  std::memset(memory_.get(), 1, stride_ * buffers);  // pages are there before anything is timed
  require_net(net_.reg_mr(comm_, memory_.get(), stride_ * buffers, abi::kPointerHost, &registered_),
              "regMr");
}

void NetEnd::deregister() {
  if (registered_ != nullptr) static_cast<void>(net_.dereg_mr(comm_, registered_));
}

bool NetRequests::test_oldest(abi::Caller& net, int* bytes) {
  int is_done = 0;
  require_net(net.test(requests_[ended_ % requests_.size()], &is_done, bytes), "test");
  if (is_done == 0) return false;
  ++ended_;
  return true;
}

NetSender::~NetSender() {
  deregister();
  static_cast<void>(net().close_send(comm()));
}

void NetSender::start(uint64_t bytes) {
  bytes_ = bytes;
  base_ = requests_.begun();
  total_ = UINT64_MAX / 2;
}

bool NetSender::advance(uint64_t goal) { return send_or_test(goal, bytes_); }

bool NetSender::send_or_test(uint64_t goal, uint64_t bytes) {
  bool has_moved = false;
  if (begun() < goal && requests_.has_room()) {
    void** const request = requests_.next();
    require_net(net().isend(comm(), buffer(requests_.begun()), bytes, kTag, registered(), request),
                "isend");
    has_moved = *request != nullptr;
    if (has_moved) requests_.add();
  }
  int unused = 0;  // of a send NCCL does not look at it
  if (requests_.has_any() && requests_.test_oldest(net(), &unused)) has_moved = true;
  return has_moved;
}

NetReceiver::~NetReceiver() {
  deregister();
  static_cast<void>(net().close_recv(comm()));
}

void NetReceiver::start(uint64_t bytes) {
  bytes_ = bytes;
  base_ = requests_.begun();
  received_ = 0;
  empties_ = 0;
}

bool NetReceiver::post() {
  // After the first empty message its sender's total is known: received_ + depth_.
  const bool is_enough = empties_ != 0 && requests_.begun() - base_ == received_ + depth_;
  if (is_enough || !requests_.has_room()) return false;
  void** const request = requests_.next();
  void* data = buffer(requests_.begun());
  size_t bytes = bytes_;
  int tag = kTag;
  void* memory = registered();
  *request = nullptr;  // as NCCL does before irecv
  require_net(net().irecv(comm(), 1, &data, &bytes, &tag, &memory, request), "irecv");
  if (*request == nullptr) return false;
  requests_.add();
  return true;
}

bool NetReceiver::test() {
  int bytes = 0;
  if (!requests_.has_any() || !requests_.test_oldest(net(), &bytes)) return false;
  if (bytes == 0) {
    ++empties_;
  } else if (static_cast<uint64_t>(bytes) == bytes_ && empties_ == 0) {
    ++received_;
  } else {
    throw ToolError(Exit::wrong_result, "test: a message of " + std::to_string(bytes) +
                                            " bytes came where " + std::to_string(bytes_) +
                                            " were sent");
  }
  return true;
}

bool NetReceiver::advance() {
  const bool has_posted = post();
  return test() || has_posted;
}

NetLink connect_net(const NetPlugin& plugin, NetControl& control, const NetShape& shape, bool sends,
                    bool receives) {
  abi::Caller& net = plugin.net();
  Listening listening{net};
  NetHandle mine{};
  if (receives) {
    require_net(net.listen(plugin.context(), plugin.device(), mine.data(), &listening.comm),
                "listen");
    if (listening.comm == nullptr)
      throw ToolError(Exit::environment, "listen: the plugin gave no listener and no error");
  }
  control.send({mine.data(), receives ? mine.size() : 0});
  const std::string theirs = control.receive();
  NetHandle called = sends ? handle_in(theirs) : NetHandle{};

  NetLink link;
  NetPatience patience(control);
  while ((sends && link.sender == nullptr) || (receives && link.receiver == nullptr)) {
    void* comm = nullptr;
    if (sends && link.sender == nullptr) {
      require_net(net.connect(plugin.context(), plugin.device(), called.data(), &comm), "connect");
      if (comm != nullptr)
        link.sender =
            std::make_unique<NetSender>(plugin, comm, shape.most_bytes, shape.buffers, shape.depth);
    }
    comm = nullptr;
    if (receives && link.receiver == nullptr) {
      require_net(net.accept(listening.comm, &comm), "accept");
      if (comm != nullptr)
        link.receiver = std::make_unique<NetReceiver>(plugin, comm, shape.most_bytes, shape.buffers,
                                                      shape.depth);
    }
    patience.nothing_moved();
  }
  control.meet();
  return link;
}

}  // namespace noria::perf
