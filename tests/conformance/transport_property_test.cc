// Random traffic over the transport: whatever sizes, alignments, connections, queue pairs, rails,
// stripe thresholds, depths, groups and tags, each message arrives whole, in its place, with its
// true length, and nothing beside it is touched.
//
//   build/tests/transport_property [--seed N] [--seeds COUNT] [--messages COUNT]
//
// A seed is a scenario, which both processes work out by themselves; a failure names it, with the
// command that runs it again.

#include <algorithm>
#include <array>
#include <cstdlib>
#include <deque>
#include <functional>
#include <string_view>

#include "base/units.hpp"
#include "tests/support/transport_end.hpp"
#include "verbs/transport/stripe.hpp"

namespace noria::transport {
namespace {

using test::first_wrong;
using test::paint;
using test::Post;
using test::TransportEnd;

struct CommandLine {
  uint64_t first_seed = 1, seeds = 40;
  uint64_t messages = (uint64_t{1} << 20) + 4321;
  std::string replay;  // the command, but for the seed
} command_line;

class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed) {}
  uint64_t next() { return test::detail::word_of(state_, count_++); }
  // Of [low, high].
  uint64_t between(uint64_t low, uint64_t high) { return low + next() % (high - low + 1); }
  bool one_in(uint64_t n) { return next() % n == 0; }
  // Of [1, most], each power of two as likely as another.
  uint64_t magnitude(uint64_t most) {
    const uint64_t top = uint64_t{2}
                         << between(0, 63 - static_cast<unsigned>(__builtin_clzll(most)));
    return std::min(between(top / 2, top - 1), most);
  }

 private:
  uint64_t state_, count_ = 0;
};

// ---- scenarios ---------------------------------------------------------------------------------

constexpr uint64_t kLargest = 64_MiB;
constexpr uint64_t kSpread = 4096;  // how far into its region a message may start
constexpr uint64_t kGuard = 64;     // bytes around each receive that stay as they were
constexpr std::byte kUntouched{0xee};
constexpr uint32_t kTagOfNobody = 0xdead;

struct Message {
  uint64_t bytes = 0;
  uint64_t offered = 0;  // by the receive; not less
  uint64_t from = 0;     // where it starts in the sender's region
  uint64_t shift = 0;    // of the receive in its slot
  uint32_t tag = 0;
  uint32_t members = 1;  // of its group
  uint32_t member = 0;   // which of them it is
};

// One connection: messages from one side to the other, and reads the other way round.
struct Flow {
  int sender = 0;
  std::array<uint32_t, 2> qps{};       // as each side wishes; 0: as the environment says
  std::array<bool, 2> is_allocated{};  // memory of the domain's, or registered
  bool is_reused = false;              // memory of a message, as soon as it was sent
  bool is_staged = false;              // what is small, where it can be
  uint64_t largest = 0, seed = 0;
  uint32_t send_depth = 1, recv_depth = 1, read_depth = 1;
  std::vector<Message> messages, reads;
  std::vector<size_t> send_order;  // of messages: any within a group, but for equal tags
};

struct Scenario {
  std::array<unsigned, 2> rails{1, 1};  // of each side
  uint64_t stripe_min = 0;
  std::array<bool, 2> sleeps{};  // a side that has nothing to do
  std::vector<Flow> flows;
};

uint64_t size_of(Dice& dice, const Flow& flow, uint64_t stripe_min) {
  uint64_t bytes = dice.magnitude(flow.largest);
  if (dice.one_in(3)) {
    const uint64_t lines = dice.magnitude(std::max<uint64_t>(1, flow.largest / kLineBytes));
    const std::array<uint64_t, 4> edges{0, kLineBytes, lines * kLineBytes, stripe_min};
    bytes = edges[dice.between(0, edges.size() - 1)] + dice.between(0, 2);
    bytes -= bytes != 0 ? 1 : 0;
  }
  return std::min(bytes, flow.largest);
}

std::vector<Message> messages_of(Dice& dice, const Flow& flow, uint64_t stripe_min, uint64_t count,
                                 uint64_t bytes_in_all) {
  std::vector<Message> messages;
  for (uint64_t sum = 0; messages.size() < count && sum <= bytes_in_all;) {
    Message message{.bytes = size_of(dice, flow, stripe_min)};
    message.offered = message.bytes;
    if (dice.one_in(2)) message.offered = dice.between(message.bytes, flow.largest);
    message.from = dice.between(0, kSpread);
    message.shift = dice.between(0, kGuard);
    sum += message.bytes;
    messages.push_back(message);
  }
  return messages;
}

// Puts messages into groups of at most `most`.
void group(Dice& dice, uint32_t most, Flow* flow) {
  const size_t count = flow->messages.size();
  for (size_t first = 0; first < count;) {
    const auto members =
        static_cast<uint32_t>(std::min<uint64_t>(dice.between(1, most), count - first));
    std::vector<std::pair<uint64_t, size_t>> order;  // a place for each tag
    for (uint32_t i = 0; i < members; ++i) {
      Message& message = flow->messages[first + i];
      message.tag = static_cast<uint32_t>(most == 1 ? 0 : dice.between(0, 3));
      message.members = members;
      message.member = i;
      order.emplace_back(test::detail::word_of(flow->seed + first, message.tag), first + i);
    }
    std::sort(order.begin(), order.end());
    for (const auto& [place, index] : order) flow->send_order.push_back(index);
    first += members;
  }
}

Scenario scenario_of(uint64_t seed) {
  Dice dice(seed);
  Scenario scenario;
  for (unsigned& rails : scenario.rails) rails = static_cast<unsigned>(dice.between(1, kMaxRails));
  scenario.stripe_min = dice.between(4_KiB, dice.one_in(2) ? 8_KiB : 1_MiB);
  for (bool& sleeps : scenario.sleeps) sleeps = dice.one_in(4);
  scenario.flows.resize(dice.between(1, 3));
  for (Flow& flow : scenario.flows) {
    flow.sender = static_cast<int>(dice.between(0, 1));
    for (uint32_t& qps : flow.qps) qps = static_cast<uint32_t>(dice.between(0, wire::kMaxQps));
    for (bool& is_allocated : flow.is_allocated) is_allocated = dice.one_in(2);
    flow.seed = dice.next();
    flow.largest = dice.magnitude(kLargest);
    // At most so many bytes of slots on a side.
    const uint64_t most = std::clamp<uint64_t>(kLargest / flow.largest, 1, kWindow);
    flow.is_reused = dice.one_in(2);
    flow.is_staged = dice.one_in(2);
    flow.send_depth = static_cast<uint32_t>(dice.between(1, flow.is_reused ? most : kWindow));
    flow.recv_depth = static_cast<uint32_t>(dice.between(1, most));
    flow.read_depth = static_cast<uint32_t>(dice.between(1, std::min<uint64_t>(most, kReadWindow)));
    const uint64_t count = dice.magnitude(2000);
    flow.messages = messages_of(dice, flow, scenario.stripe_min, count, kLargest / 2);
    const uint32_t depth = std::min({flow.send_depth, flow.recv_depth, kMaxGroup});
    group(dice, dice.one_in(2) ? depth : 1, &flow);
    if (dice.one_in(2))
      flow.reads = messages_of(dice, flow, scenario.stripe_min, count / 4, kLargest / 4);
  }
  return scenario;
}

// ---- one side ----------------------------------------------------------------------------------

Region region_of(Domain& domain, bool is_allocated, std::vector<std::byte>& memory,
                 uint64_t bytes) {
  if (!is_allocated) memory.resize(bytes);
  auto region =
      is_allocated ? domain.allocate(bytes) : domain.register_region(memory.data(), bytes);
  EXPECT_TRUE(region.is_ok());
  return region.is_ok() ? std::move(*region) : Region();
}

// Requests of one kind, oldest first, none of which may be done before an older one is.
class InOrder {
 public:
  size_t size() const { return requests_.size(); }
  void add(Request* request) { requests_.push_back(request); }
  // The oldest, once it is done; null for not yet.
  Request* take() {
    if (requests_.empty()) return nullptr;
    Request* const oldest = requests_.front();
    if (!oldest->is_done()) {
      EXPECT_FALSE(requests_.size() > 1 && requests_[1]->is_done()) << "done out of order";
      return nullptr;
    }
    requests_.pop_front();
    return oldest;
  }

 private:
  std::deque<Request*> requests_;
};

// A slot for each message under way, with a guard on both sides.
class Slots {
 public:
  Slots(Domain& domain, bool is_allocated, uint64_t largest, uint32_t depth)
      : stride_(largest + 3 * kGuard),
        depth_(depth),
        region_(region_of(domain, is_allocated, memory_, stride_ * depth)) {}

  const Region& region() const { return region_; }
  uint64_t offset_of(size_t index, const Message& message) const {
    return index % depth_ * stride_ + kGuard + message.shift;
  }
  std::byte* at(size_t index, const Message& message) const {
    return region_.base() + offset_of(index, message);
  }
  void prepare(size_t index, const Message& message) {
    std::byte* const place = at(index, message);
    std::fill_n(place - kGuard, kGuard, kUntouched);
    std::fill_n(place + message.bytes, kGuard, kUntouched);
  }
  void check(size_t index, const Message& message, uint64_t seed, const char* what) const {
    const std::byte* const place = at(index, message);
    EXPECT_EQ(first_wrong(place, message.bytes, seed, message.from), message.bytes)
        << what << " " << index << " of " << message.bytes << " bytes";
    for (const std::byte* guard : {place - kGuard, place + message.bytes})
      EXPECT_TRUE(std::all_of(guard, guard + kGuard, [](std::byte b) { return b == kUntouched; }))
          << (guard < place ? "before " : "behind ") << what << " " << index << " of "
          << message.bytes << " bytes";
  }

 private:
  uint64_t stride_;
  uint32_t depth_;
  std::vector<std::byte> memory_;
  Region region_;
};

class Sender {
 public:
  Sender(TransportEnd& end, Post& post, const Flow& flow)
      : flow_(flow),
        region_(region_of(*end.domain, flow.is_allocated[static_cast<size_t>(post.side)], memory_,
                          flow.largest + kSpread)),
        slots_(*end.domain, flow.is_allocated[0], flow.largest,
               flow.is_reused ? flow.send_depth : 0),
        connection_(end.call(post.peer, {.peer_name = "the receiver",
                                         .qps = flow.qps[static_cast<size_t>(post.side)]})) {
    paint(region_.base(), region_.bytes(), flow.seed);
    post.peer.send(region_.remote());
  }

  bool is_done() const { return done_ == flow_.messages.size(); }
  void advance() {
    while (next_ < flow_.send_order.size() && flow_.send_order[next_] < done_ + flow_.send_depth) {
      const size_t index = flow_.send_order[next_];
      const Message& message = flow_.messages[index];
      Request* const request = send(index, message);
      if (request == nullptr) break;
      ++next_;
      group_[message.member] = request;
      if (next_ - (index - message.member) < message.members) {
        EXPECT_FALSE(request->is_done()) << "before all of its group are sent";
        continue;
      }
      for (uint32_t i = 0; i < message.members; ++i) under_way_.add(group_[i]);
    }
    while (Request* const request = under_way_.take()) {
      const Message& message = flow_.messages[done_];
      ASSERT_TRUE(request->status().is_ok()) << connection_->describe();
      EXPECT_EQ(request->bytes(), message.bytes);
      if (flow_.is_reused) std::fill_n(slots_.at(done_, message), message.bytes, kUntouched);
      connection_->release(request);
      ++done_;
    }
    ASSERT_TRUE(connection_->status().is_ok()) << connection_->describe();
  }

 private:
  Request* send(size_t index, const Message& message) {
    if (next_ % 8 == 0) {
      EXPECT_EQ(connection_->try_send(region_, 0, 1, kTagOfNobody), nullptr);
    }
    const bool is_alone = message.members == 1 && message.tag == 0;
    if (is_alone && message.bytes <= SendConnection::kInlineBytes && next_ % 2 == 0) {
      std::array<std::byte, SendConnection::kInlineBytes> bytes;
      paint(bytes.data(), message.bytes, flow_.seed, message.from);
      return connection_->try_send_inline(bytes.data(), static_cast<uint32_t>(message.bytes));
    }
    if (!flow_.is_reused)
      return connection_->try_send(region_, message.from, message.bytes, message.tag);
    if (painted_ <= next_) {
      paint(slots_.at(index, message), message.bytes, flow_.seed, message.from);
      painted_ = next_ + 1;
    }
    return connection_->try_send(slots_.region(), slots_.offset_of(index, message), message.bytes,
                                 message.tag);
  }

  const Flow& flow_;
  std::vector<std::byte> memory_;
  Region region_;  // what the peer reads, and what is sent where memory is not reused
  Slots slots_;
  std::unique_ptr<SendConnection> connection_;
  size_t painted_ = 0, next_ = 0, done_ = 0;  // painted_ and next_ count in send order
  std::array<Request*, kMaxGroup> group_{};   // the one that is being sent
  InOrder under_way_;
};

class Receiver {
 public:
  Receiver(TransportEnd& end, Post& post, const Flow& flow)
      : flow_(flow),
        slots_(*end.domain, flow.is_allocated[static_cast<size_t>(post.side)], flow.largest,
               flow.recv_depth),
        read_slots_(*end.domain, flow.is_allocated[0], flow.largest,
                    flow.reads.empty() ? 0 : flow.read_depth),
        connection_(end.accept(post.peer, {.peer_name = "the sender",
                                           .qps = flow.qps[static_cast<size_t>(post.side)],
                                           .has_kept_regions = flow.is_staged})),
        remote_(post.peer.recv<RemoteRegion>()) {}

  bool is_done() const {
    return done_ == flow_.messages.size() && reads_done_ == flow_.reads.size();
  }
  void advance() {
    advance_receives();
    advance_reads();
    ASSERT_TRUE(connection_->status().is_ok()) << connection_->describe();
  }

 private:
  void advance_receives() {
    while (next_ < flow_.messages.size()) {
      const uint32_t members = flow_.messages[next_].members;
      if (next_ + members > done_ + flow_.recv_depth) break;
      Request* const request = receive(members);
      if (request == nullptr) break;
      under_way_.add(request);
      next_ += members;
    }
    while (Request* const request = under_way_.take()) {
      const uint32_t members = flow_.messages[done_].members;
      ASSERT_TRUE(request->status().is_ok()) << connection_->describe();
      for (uint32_t i = 0; i < members; ++i) {
        const Message& message = flow_.messages[done_ + i];
        EXPECT_EQ(connection_->part_bytes(request, i), message.bytes) << "message " << done_ + i;
        slots_.check(done_ + i, message, flow_.seed, "message");
      }
      connection_->release(request);
      done_ += members;
    }
  }
  Request* receive(uint32_t members) {
    std::array<RecvPart, kMaxGroup> parts;
    for (uint32_t i = 0; i < members; ++i) {
      const Message& message = flow_.messages[next_ + i];
      slots_.prepare(next_ + i, message);
      parts[i] = {.region = &slots_.region(),
                  .offset = slots_.offset_of(next_ + i, message),
                  .bytes = message.offered,
                  .tag = message.tag};
    }
    if (members != 1) return connection_->try_recv_group({parts.data(), members});
    return connection_->try_recv(slots_.region(), parts[0].offset, parts[0].bytes, parts[0].tag);
  }
  // Reads may be done in any order; they are taken in theirs.
  void advance_reads() {
    for (; next_read_ < flow_.reads.size() && reads_.size() < flow_.read_depth; ++next_read_) {
      const Message& read = flow_.reads[next_read_];
      read_slots_.prepare(next_read_, read);
      Request* const request =
          connection_->try_read(read_slots_.region(), read_slots_.offset_of(next_read_, read),
                                remote_, read.from, read.bytes);
      if (request == nullptr) break;
      reads_.push_back(request);
    }
    for (; !reads_.empty() && reads_.front()->is_done(); ++reads_done_) {
      Request* const request = reads_.front();
      reads_.pop_front();
      ASSERT_TRUE(request->status().is_ok()) << connection_->describe();
      read_slots_.check(reads_done_, flow_.reads[reads_done_], flow_.seed, "read");
      connection_->release(request);
    }
  }

  const Flow& flow_;
  Slots slots_, read_slots_;
  std::unique_ptr<RecvConnection> connection_;
  RemoteRegion remote_;
  size_t next_ = 0, done_ = 0, next_read_ = 0, reads_done_ = 0;
  InOrder under_way_;
  std::deque<Request*> reads_;
};

void run_side(Post& post, const Scenario& scenario) {
  Params params = test::params_from_environment();
  params.stripe_min_bytes = scenario.stripe_min;
  TransportEnd end(params, scenario.rails[static_cast<size_t>(post.side)]);
  ASSERT_NE(end.domain, nullptr);
  std::deque<Sender> senders;
  std::deque<Receiver> receivers;
  for (const Flow& flow : scenario.flows) {
    if (flow.sender == post.side)
      senders.emplace_back(end, post, flow);
    else
      receivers.emplace_back(end, post, flow);
    ASSERT_FALSE(testing::Test::HasFailure());
  }
  const auto is_done = [](const auto& one) { return one.is_done(); };
  uint32_t empty_polls = 0;
  const bool sleeps = scenario.sleeps[static_cast<size_t>(post.side)];
  ASSERT_TRUE(end.poll_until([&] {
    for (Sender& sender : senders) sender.advance();
    for (Receiver& receiver : receivers) receiver.advance();
    empty_polls = end.domain->poll() != 0 ? 0 : empty_polls + 1;
    // A credit wakes nobody, so that sleep is a nap.
    if (sleeps && empty_polls > 100) {
      EXPECT_TRUE(end.domain->arm_and_wait(now_ns() + 100_us, -1).is_ok());
    }
    return testing::Test::HasFailure() ||
           (std::all_of(senders.begin(), senders.end(), is_done) &&
            std::all_of(receivers.begin(), receivers.end(), is_done));
  })) << "stands still";
  post.peer.meet();
}

// ---- the tests ---------------------------------------------------------------------------------

TEST(Transport_property, Random_traffic_arrives_whole_and_in_place) {
  const uint64_t end = command_line.first_seed + command_line.seeds;
  for (uint64_t seed = command_line.first_seed; seed != end && !HasFailure(); ++seed) {
    const Scenario scenario = scenario_of(seed);
    test::run_pair([&scenario](Post& post) { run_side(post, scenario); });
    if (HasFailure()) ADD_FAILURE() << "again: " << command_line.replay << " --seed " << seed;
  }
}

// Slots, laps and sequence numbers of all widths go round; both ends in one process.
class TransportLongRun : public test::TransportPair {};

TEST_F(TransportLongRun, A_connection_carries_more_than_a_million_messages) {
  test::Connected link = connect();
  ASSERT_NE(link.recv, nullptr);
  constexpr uint64_t kSlot = 192;
  const Region from = allocate(*a_, kSpread + kSlot), to = allocate(*b_, kWindow * kSlot);
  paint(from.base(), from.bytes(), 1);
  const auto size_of = [](uint64_t n) { return n * 7 % (kSlot + 1); };
  const auto from_of = [](uint64_t n) { return n * 37 % kSpread; };
  std::array<Request*, kWindow> received{}, sent{};
  uint64_t posted = 0, arrived = 0, next = 0, acknowledged = 0, wrong = 0;
  const Nanoseconds start = now_ns();
  while (arrived != command_line.messages || acknowledged != command_line.messages) {
    for (; posted != arrived + kWindow; ++posted) {
      Request* const request = link.recv->try_recv(to, posted % kWindow * kSlot, kSlot);
      if (request == nullptr) break;
      received[posted % kWindow] = request;
    }
    for (; next != acknowledged + kWindow && next != command_line.messages; ++next) {
      Request* const request = link.send->try_send(from, from_of(next), size_of(next));
      if (request == nullptr) break;
      sent[next % kWindow] = request;
    }
    if (a_->poll() + b_->poll() == 0 && now_ns() - start > 2 * test::kPatience) break;
    for (; acknowledged != next && sent[acknowledged % kWindow]->is_done(); ++acknowledged)
      link.send->release(sent[acknowledged % kWindow]);
    for (; arrived != posted && received[arrived % kWindow]->is_done(); ++arrived) {
      Request* const request = received[arrived % kWindow];
      const std::byte* const place = to.base() + arrived % kWindow * kSlot;
      const uint64_t bytes = size_of(arrived);
      wrong += request->status().is_ok() && request->bytes() == bytes &&
                       first_wrong(place, bytes, 1, from_of(arrived)) == bytes
                   ? 0
                   : 1;
      link.recv->release(request);
    }
  }
  EXPECT_EQ(arrived, command_line.messages) << link.recv->describe();
  EXPECT_EQ(acknowledged, command_line.messages) << link.send->describe();
  EXPECT_EQ(wrong, 0u);
}

// The program with the part of its environment that matters.
std::string command_of(const char* program) {
  std::string command;
  for (char** entry = environ; *entry != nullptr; ++entry)
    if (std::string_view(*entry).starts_with("NORIA_")) command += std::string("'") + *entry + "' ";
  return "env " + command + program;
}

}  // namespace

bool read_command_line(int argc, char** argv) {
  command_line.replay = command_of(argv[0]);
  for (int i = 1; i < argc; i += 2) {
    const std::string_view flag = argv[i];
    uint64_t* const value = flag == "--seed"       ? &command_line.first_seed
                            : flag == "--seeds"    ? &command_line.seeds
                            : flag == "--messages" ? &command_line.messages
                                                   : nullptr;
    if (value == nullptr || i + 1 == argc) return false;
    *value = std::strtoull(argv[i + 1], nullptr, 10);
    if (flag == "--seed") command_line.seeds = 1;
  }
  return true;
}

}  // namespace noria::transport

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (!noria::transport::read_command_line(argc, argv)) {
    std::fprintf(stderr, "usage: %s [--seed N] [--seeds COUNT] [--messages COUNT]\n", argv[0]);
    return 2;
  }
  return RUN_ALL_TESTS();
}
