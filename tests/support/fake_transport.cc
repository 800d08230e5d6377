#include "tests/support/fake_transport.hpp"

#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace noria::transport {

// The Request's inside, as the transport's own access has it.
class RequestAccess {
 public:
  static void arm(Request& request) {
    request.status_ = Status();
    request.bytes_ = 0;
    request.state_ = Request::State::under_way;
  }
  static void finish(Request& request, Status status, uint64_t bytes) {
    request.state_ = Request::State::done;
    request.status_ = status;
    request.bytes_ = bytes;
  }
  static bool is_under_way(const Request& request) {
    return request.state_ == Request::State::under_way;
  }
};

class RegionState {
 public:
  RegionState(std::byte* where, uint64_t size) : base(where), bytes(size), key(++last_key()) {
    alive()[key] = this;
  }
  ~RegionState() { alive().erase(key); }

  static std::map<uint32_t, RegionState*>& alive() {
    static std::map<uint32_t, RegionState*> regions;
    return regions;
  }
  static uint32_t& last_key() {
    static uint32_t key = 0;
    return key;
  }

  std::vector<std::byte> own;  // of allocate()
  std::byte* base;
  uint64_t bytes;
  uint32_t key;
};

Region::Region() = default;
Region::~Region() = default;
Region::Region(Region&&) noexcept = default;
Region& Region::operator=(Region&&) noexcept = default;
Region::Region(std::unique_ptr<RegionState> state) : state_(std::move(state)) {}
std::byte* Region::base() const { return state_->base; }
uint64_t Region::bytes() const { return state_->bytes; }
RemoteRegion Region::remote() const {
  RemoteRegion remote{.address = reinterpret_cast<uint64_t>(state_->base), .bytes = state_->bytes};
  remote.rkeys[0] = state_->key;
  return remote;
}

namespace {

struct Chances {
  std::mt19937_64 random{1};
  unsigned moves = 50, not_yet = 10;

  bool hit(unsigned percent) { return random() % 100 < percent; }
};
Chances& chances() {
  static Chances instance;
  return instance;
}

// Memory by key, looked up when bytes move, so that what was given back is found out.
struct Span {
  uint32_t key = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;

  std::byte* resolve() const {
    const auto region = RegionState::alive().find(key);
    if (region == RegionState::alive().end()) return nullptr;
    if (offset > region->second->bytes || bytes > region->second->bytes - offset) return nullptr;
    return region->second->base + offset;
  }
};

struct Item {
  Request request;
  Span from, to;
  std::vector<std::byte> inlined;
  uint64_t moved = 0;  // bytes of a read that are here
  bool has_landed = false;
};

using Items = std::deque<std::unique_ptr<Item>>;

}  // namespace

// Both ends of a connection; each end holds it.
class FakePipe {
 public:
  void move() {
    if (!status.is_ok()) return;
    move_messages();
    move_reads();
    while (status.is_ok() && !lines.empty() && chances().hit(chances().moves)) land_half();
  }

  void fail(Status why) {
    if (!status.is_ok()) return;
    status = why;
    for (Items* items : {&sends, &receives, &reads})
      for (auto& item : *items)
        if (RequestAccess::is_under_way(item->request))
          RequestAccess::finish(item->request, why, 0);
  }

  // One end closes. What it sent before, and what it took, still counts.
  // Lines land though nobody waits for them: a communicator leaves its queue pairs standing until
  // they have.
  void hang_up() {
    while (status.is_ok() && !lines.empty()) land_half();
    for (Items* items : {&sends, &receives})
      for (auto& item : *items)
        if (item->has_landed && RequestAccess::is_under_way(item->request))
          RequestAccess::finish(item->request, Status(),
                                items == &sends ? item->from.bytes : item->to.bytes);
    fail(Status(Code::peer_lost));
  }

  // Items whose request was released leave; the n-th send still meets the n-th receive.
  Item* add(Items& items, uint32_t limit) {
    while (!items.empty() && items.front()->request.is_free()) items.pop_front();
    if (!status.is_ok() || items.size() >= limit || chances().hit(chances().not_yet))
      return nullptr;
    items.push_back(std::make_unique<Item>());
    RequestAccess::arm(items.back()->request);
    return items.back().get();
  }

  // A line on its way: a half of it lands, then the other.
  struct Line {
    Span to;
    std::array<std::byte, SendConnection::kLineBytes> bytes;
    int halves_left = 2;
    bool first_is_next = false;
  };
  std::deque<Line> lines;
  Items sends, receives, reads;
  uint64_t credits_used = 0, credits_given = 0;
  Status status;

 private:
  static Item* first_undone(Items& items) {
    for (auto& item : items)
      if (RequestAccess::is_under_way(item->request)) return item.get();
    return nullptr;
  }

  void move_messages() {
    for (;;) {
      Item* send = first_undone(sends);
      Item* receive = first_undone(receives);
      // The bytes land, then the receiver learns of it, then the sender: each when it pleases.
      if (send == nullptr || !chances().hit(chances().moves)) return;
      if (!send->has_landed) {
        if (receive == nullptr || receive->has_landed) return;
        land(*send, *receive);
        if (!status.is_ok()) return;
        continue;
      }
      if (receive != nullptr && receive->has_landed) {
        RequestAccess::finish(receive->request, Status(), send->from.bytes);
        continue;
      }
      RequestAccess::finish(send->request, Status(), send->from.bytes);
    }
  }

  void land(Item& send, Item& receive) {
    const std::byte* from = send.inlined.empty() ? send.from.resolve() : send.inlined.data();
    if (send.from.bytes > receive.to.bytes) return fail(Status(Code::bad_argument));
    receive.to.bytes = send.from.bytes;
    std::byte* to = receive.to.resolve();
    if (from == nullptr || to == nullptr) return fail(Status(Code::connection_lost));
    std::memcpy(to, from, send.from.bytes);
    send.has_landed = receive.has_landed = true;
  }

  void land_half() {
    Line& line = lines.front();
    std::byte* to = line.to.resolve();
    if (to == nullptr) return fail(Status(Code::connection_lost));
    const size_t half = line.bytes.size() / 2, at = line.first_is_next ? 0 : half;
    std::memcpy(to + at, line.bytes.data() + at, half);
    line.first_is_next = !line.first_is_next;
    if (--line.halves_left == 0) lines.pop_front();
  }

  void move_reads() {
    for (auto& item : reads) {
      if (!RequestAccess::is_under_way(item->request) || !chances().hit(chances().moves)) continue;
      const std::byte* from = item->from.resolve();
      std::byte* to = item->to.resolve();
      if (from == nullptr || to == nullptr) return fail(Status(Code::connection_lost));
      const uint64_t step = item->moved == 0 ? (item->from.bytes + 1) / 2 : item->from.bytes;
      std::memcpy(to + item->moved, from + item->moved, step - item->moved);
      item->moved = step;
      if (step == item->from.bytes) RequestAccess::finish(item->request, Status(), step);
    }
  }
};

class DomainState {
 public:
  std::vector<std::weak_ptr<FakePipe>> pipes;
};

Domain::Domain(std::unique_ptr<DomainState> state) : state_(std::move(state)) {}
Domain::~Domain() = default;
Result<std::unique_ptr<Domain>> Domain::create(const std::shared_ptr<const verbs::Provider>&,
                                               const Params&, unsigned) {
  return std::unique_ptr<Domain>(new Domain(std::make_unique<DomainState>()));
}
Result<Region> Domain::register_region(void* base, uint64_t bytes) {
  return Region(std::make_unique<RegionState>(static_cast<std::byte*>(base), bytes));
}
Result<Region> Domain::allocate(uint64_t bytes, Watched) {
  std::vector<std::byte> own(bytes);
  auto state = std::make_unique<RegionState>(own.data(), bytes);
  state->own = std::move(own);  // moving keeps the data where it is
  return Region(std::move(state));
}
unsigned Domain::poll() {
  for (auto& weak : state_->pipes)
    if (const auto pipe = weak.lock()) pipe->move();
  return 0;
}
bool Domain::reads_are_cheap() const { return true; }
std::string Domain::describe() const { return "fake device"; }

class SendState {
 public:
  std::shared_ptr<FakePipe> pipe;
};
class RecvState {
 public:
  std::shared_ptr<FakePipe> pipe;
};

SendConnection::SendConnection(std::unique_ptr<SendState> state) : state_(std::move(state)) {}
SendConnection::~SendConnection() { state_->pipe->hang_up(); }
RecvConnection::RecvConnection(std::unique_ptr<RecvState> state) : state_(std::move(state)) {}
RecvConnection::~RecvConnection() { state_->pipe->hang_up(); }

Request* SendConnection::try_send(const Region& region, uint64_t offset, uint64_t bytes, uint32_t) {
  FakePipe& pipe = *state_->pipe;
  if (pipe.credits_used == pipe.credits_given) return nullptr;
  Item* item = pipe.add(pipe.sends, kWindow);
  if (item == nullptr) return nullptr;
  ++pipe.credits_used;
  item->from = {.key = region.state()->key, .offset = offset, .bytes = bytes};
  return &item->request;
}

Request* SendConnection::try_send_inline(const void* data, uint32_t bytes) {
  FakePipe& pipe = *state_->pipe;
  if (pipe.credits_used == pipe.credits_given) return nullptr;
  Item* item = pipe.add(pipe.sends, kWindow);
  if (item == nullptr) return nullptr;
  ++pipe.credits_used;
  const auto* from = static_cast<const std::byte*>(data);
  item->inlined.assign(from, from + bytes);
  item->from.bytes = bytes;
  return &item->request;
}

bool SendConnection::try_write_line(const RemoteRegion& to, uint64_t offset, const void* line) {
  FakePipe& pipe = *state_->pipe;
  if (!pipe.status.is_ok() || chances().hit(chances().not_yet)) return false;
  FakePipe::Line& sent = pipe.lines.emplace_back();
  sent.to = {.key = to.rkeys[0], .offset = offset, .bytes = kLineBytes};
  std::memcpy(sent.bytes.data(), line, kLineBytes);
  sent.first_is_next = chances().hit(50);
  return true;
}

Request* RecvConnection::try_recv(const Region& region, uint64_t offset, uint64_t bytes, uint32_t) {
  FakePipe& pipe = *state_->pipe;
  Item* item = pipe.add(pipe.receives, kWindow);
  if (item == nullptr) return nullptr;
  ++pipe.credits_given;
  item->to = {.key = region.state()->key, .offset = offset, .bytes = bytes};
  return &item->request;
}

Request* RecvConnection::try_read(const Region& local, uint64_t local_offset,
                                  const RemoteRegion& remote, uint64_t remote_offset,
                                  uint64_t bytes) {
  FakePipe& pipe = *state_->pipe;
  Item* item = pipe.add(pipe.reads, kReadWindow);
  if (item == nullptr) return nullptr;
  item->to = {.key = local.state()->key, .offset = local_offset, .bytes = bytes};
  item->from = {.key = remote.rkeys[0], .offset = remote_offset, .bytes = bytes};
  return &item->request;
}

void RecvConnection::release_group(Request*) {}  // the ring makes none
Status SendConnection::status() const { return state_->pipe->status; }
Status RecvConnection::status() const { return state_->pipe->status; }
std::string SendConnection::describe() const {
  return "fake connection: " + std::string(to_string(status().code()));
}
std::string RecvConnection::describe() const {
  return "fake connection: " + std::string(to_string(status().code()));
}

}  // namespace noria::transport

namespace noria::test {

void seed_fake_transport(uint64_t seed) { transport::chances().random.seed(seed); }
void set_fake_chances(unsigned moves, unsigned not_yet) {
  transport::chances().moves = moves;
  transport::chances().not_yet = not_yet;
}

std::unique_ptr<transport::Domain> make_fake_domain() {
  return transport::Domain::create(nullptr, Params(), 1).value();
}

FakeLink connect_fake(transport::Domain& from, transport::Domain& to) {
  auto pipe = std::make_shared<transport::FakePipe>();
  from.state().pipes.push_back(pipe);
  to.state().pipes.push_back(pipe);
  auto send = std::make_unique<transport::SendState>();
  auto recv = std::make_unique<transport::RecvState>();
  send->pipe = recv->pipe = pipe;
  FakeLink link{std::make_unique<transport::SendConnection>(std::move(send)),
                std::make_unique<transport::RecvConnection>(std::move(recv))};
  return link;
}

unsigned fake_regions_alive() {
  return static_cast<unsigned>(transport::RegionState::alive().size());
}

}  // namespace noria::test
