#include "tests/support/seeded_end.hpp"

#include <arpa/inet.h>
#include <errno.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <utility>

namespace noria::test {
namespace {

constexpr uint64_t kBytes = 512 << 10;  // of each kind of memory
constexpr uint64_t kLibraryBytes = 64 << 10;
constexpr uint32_t kMessageBytes = 4096;
constexpr uint64_t kQueueDepth = 16;
constexpr uint64_t kReceiveBit = uint64_t{1} << 63;
constexpr int kTries = 8;  // of a call that a fault may refuse

uint64_t hash_step(uint64_t hash, uint64_t value) { return (hash ^ value) * 0x100000001b3; }

bool takes_receive(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}
bool is_atomic(ibv_wr_opcode opcode) { return opcode == IBV_WR_ATOMIC_FETCH_AND_ADD; }

uint32_t draw_bytes(Draw& draw, bool may_be_long) {
  const uint64_t kind = draw.below(10);
  if (kind < 5) return static_cast<uint32_t>(draw.below(257));
  if (kind < 8 || !may_be_long) return static_cast<uint32_t>(draw.below(kMessageBytes + 1));
  return static_cast<uint32_t>(draw.below(40000));
}

}  // namespace

void Judge::see(const char* what, uint64_t a, uint64_t b, uint64_t c) {
  trace_ = hash_step(trace_, static_cast<uint64_t>(now));
  for (const char* p = what; *p != 0; ++p) trace_ = hash_step(trace_, static_cast<uint8_t>(*p));
  trace_ = hash_step(hash_step(hash_step(trace_, a), b), c);
  if (prints_)
    std::printf("%12.3f us  %s %" PRIu64 " %" PRIu64 " %" PRIu64 "\n",
                static_cast<double>(now) / 1000, what, a, b, c);
}

void Judge::expect(bool holds, const char* what, uint64_t end, uint64_t id) {
  if (holds || !wrong_.empty()) return;
  wrong_ = std::string(what) + " (end " + std::to_string(end) + ", request " +
           std::to_string(id & ~kReceiveBit) + ", at " + std::to_string(now) + " ns)";
  see(what, end, id);
}

SeededEnd::SeededEnd(const Hca& hca, ibv_cq* cq, const SeedPlan& plan, uint64_t number,
                     Judge& judge)
    : plan_(plan), number_(number), judge_(judge) {
  qp_ = hca.make_qp(cq, {.send_depth = kQueueDepth, .recv_depth = kQueueDepth});
  const Memory memory = plan.maps_memory ? Memory::mapped : Memory::plain;
  for (auto* buffer : {&out_, &in_, &landing_}) *buffer = hca.make_buffer(kBytes, memory);
  messages_ = hca.make_buffer(uint64_t{kMessageBytes} * kQueueDepth, memory);
  library_ = hca.make_buffer(kLibraryBytes, memory);
  counter_ = hca.make_buffer(4096, memory, kAllAccess | IBV_ACCESS_REMOTE_ATOMIC);
  paint(library_->data(), kLibraryBytes, ~number);
  address_ = hca.address_of(qp_.get());
}

bool SeededEnd::try_modify(int (*modify)(SeededEnd&)) {
  for (int i = 0; i < kTries; ++i) {
    const int failure = modify(*this);
    if (failure == 0) return true;
    judge_.expect(!plan_.is_quiet(), "a transition fails though no fault is set", number_);
    is_lost_ = failure == EIO;
    if (is_lost_) return false;
  }
  return false;
}

bool SeededEnd::connect() {
  const bool is_connected =
      try_modify([](SeededEnd& e) { return to_state(e.qp_.get(), IBV_QPS_RESET); }) &&
      try_modify([](SeededEnd& e) {
        return to_init(e.qp_.get(),
                       IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
      }) &&
      try_modify(
          [](SeededEnd& e) { return to_rtr(e.qp_.get(), e.peer_->address_, {.rnr_timer = 12}); }) &&
      try_modify([](SeededEnd& e) {
        return to_rts(e.qp_.get(), e.address_.psn,
                      {.ack_timeout = e.plan_.ack_timeout,
                       .retry_count = e.plan_.retry_count,
                       .rnr_retry = e.plan_.rnr_retry});
      });
  sent_.clear();
  coming_.clear();
  receives_.clear();
  has_failed_ = has_flushed_receives_ = has_asked_ = false;
  unsignalled_ = 0;
  judge_.see("connect", number_, is_connected ? 1 : 0);
  return is_connected;
}

bool SeededEnd::end_life() {
  // A device that is lost has ended its queue pairs itself.
  const bool has_ended =
      try_modify([](SeededEnd& e) { return to_state(e.qp_.get(), IBV_QPS_ERR); }) || is_lost_;
  judge_.see("end", number_, has_ended ? 1 : 0);
  return has_ended;
}

bool SeededEnd::has_settled() const {
  return has_asked_ && (sent_.empty() ||
                        (is_lost_ && std::none_of(sent_.begin(), sent_.end(), [](const Sent& each) {
                           return each.is_signalled;
                         })));
}

bool SeededEnd::ask_for_last() {
  if (has_asked_) return true;
  const uint64_t id = next_id_;
  const int failure = sent_.size() < kQueueDepth
                          ? post(qp_.get(), {.opcode = IBV_WR_RDMA_WRITE, .id = id})
                          : ENOMEM;
  if (failure == 0) {
    ++next_id_;
    sent_.push_back({id, IBV_WR_RDMA_WRITE, 0, 0, 0, true, 0});
  }
  // Nobody can ask a lost device; what was signalled it gives back all the same.
  is_lost_ = is_lost_ || failure == EIO;
  has_asked_ = failure == 0 || failure == EIO;
  return has_asked_;
}

SeededEnd::Sent SeededEnd::draw_request(Draw& draw) {
  constexpr std::array<ibv_wr_opcode, 7> kOpcodes{
      IBV_WR_RDMA_WRITE,          IBV_WR_RDMA_WRITE,          IBV_WR_RDMA_READ,
      IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND_WITH_IMM,
      IBV_WR_ATOMIC_FETCH_AND_ADD};
  Sent request{};
  request.id = next_id_;
  request.opcode = draw.of(kOpcodes);
  request.bytes =
      is_atomic(request.opcode) ? 8 : draw_bytes(draw, request.opcode != IBV_WR_SEND_WITH_IMM);
  request.is_signalled = unsignalled_ >= 3 || draw.one_in(2);
  request.add = draw.below(1000);
  const bool comes_back = request.opcode == IBV_WR_RDMA_READ || is_atomic(request.opcode);
  request.local = comes_back ? (landing_used_ + 7) / 8 * 8 : out_used_;
  request.remote = request.opcode == IBV_WR_RDMA_READ
                       ? draw.below(kLibraryBytes - std::min<uint64_t>(request.bytes, 40000))
                       : in_used_;
  return request;
}

void SeededEnd::post_one(Draw& draw) {
  const Sent r = draw_request(draw);
  const bool is_bad = plan_.has_bad_keys && draw.one_in(40) && r.bytes > 0;
  const bool is_fenced = draw.one_in(8), is_inline = draw.one_in(3) && r.bytes <= 64;
  if (sent_.size() >= kQueueDepth || r.local + r.bytes > kBytes || r.remote + r.bytes > kBytes)
    return;
  const bool reads = r.opcode == IBV_WR_RDMA_READ;
  const bool comes_back = reads || is_atomic(r.opcode);
  const Buffer& local = comes_back ? *landing_ : *out_;
  const Buffer& remote = reads                 ? *peer_->library_
                         : is_atomic(r.opcode) ? *peer_->counter_
                                               : *peer_->in_;
  SendSpec spec{.opcode = r.opcode,
                .id = r.id,
                .pieces = {{&local, r.local, r.bytes}},
                .remote = {remote.address() + (is_atomic(r.opcode) ? 0 : r.remote),
                           remote.rkey() ^ (is_bad ? 0x40u : 0u)},
                .flags = 0,
                .imm = static_cast<uint32_t>(r.id),
                .compare_add = r.add};
  if (r.is_signalled) spec.flags |= IBV_SEND_SIGNALED;
  if (is_fenced) spec.flags |= IBV_SEND_FENCE;
  if (is_inline && !comes_back) spec.flags |= IBV_SEND_INLINE;
  if (!comes_back) paint(local.data() + r.local, r.bytes, r.id * 64 + number_);
  const int failure = post(qp_.get(), spec);
  judge_.see("post", number_, r.id, static_cast<uint64_t>(failure) << 32 | r.opcode);
  judge_.expect(failure == 0 || !plan_.is_quiet(), "a post fails though no fault is set", number_);
  if (failure != 0) return;
  ++next_id_;
  unsignalled_ = r.is_signalled ? 0 : unsignalled_ + 1;
  (comes_back ? landing_used_ : out_used_) = r.local + r.bytes;
  if (!comes_back && r.opcode != IBV_WR_SEND_WITH_IMM) in_used_ = r.remote + r.bytes;
  sent_.push_back(r);
  if (takes_receive(r.opcode))
    peer_->coming_.push_back({r.id, r.bytes, r.remote, r.opcode != IBV_WR_SEND_WITH_IMM, false});
}

void SeededEnd::post_some(Draw& draw) {
  for (uint64_t count = draw.between(1, 5); count > 0; --count) post_one(draw);
}

void SeededEnd::post_receives(uint64_t most) {
  for (; most > 0 && receives_.size() < kQueueDepth; --most) {
    const uint64_t id = next_id_ | kReceiveBit;
    const uint64_t at = next_id_ % kQueueDepth * kMessageBytes;
    // Places are taken in a circle: this one is free if its last receive is.
    for (const Receive& other : receives_)
      if (other.at == at) return void(++next_id_);
    const int failure =
        noria::test::post_recv(qp_.get(), id, {{messages_.get(), at, kMessageBytes}});
    judge_.see("receive", number_, next_id_, static_cast<uint64_t>(failure));
    judge_.expect(failure == 0 || !plan_.is_quiet(), "a receive fails though no fault is set",
                  number_);
    if (failure != 0) return;
    ++next_id_;
    receives_.push_back({id, at});
  }
}

// It has taken effect: what must hold now.
void SeededEnd::settle(const Sent& r) {
  if (r.opcode == IBV_WR_RDMA_WRITE || r.opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
    judge_.expect(
        first_wrong(peer_->in_->data() + r.remote, r.bytes, r.id * 64 + number_) == r.bytes,
        "a write completed and its bytes are not there", number_, r.id);
  if (r.opcode == IBV_WR_RDMA_READ)
    judge_.expect(
        first_wrong(landing_->data() + r.local, r.bytes, ~peer_->number_, r.remote) == r.bytes,
        "a read completed and its bytes are not there", number_, r.id);
  if (is_atomic(r.opcode)) {
    uint64_t before = 0;
    std::memcpy(&before, landing_->data() + r.local, sizeof before);
    judge_.expect(before == added_, "an atomic brought back what it cannot have found", number_,
                  r.id);
    added_ += r.add;
  }
  for (Coming& message : peer_->coming_)
    if (message.id == r.id) message.is_acknowledged = true;
}

void SeededEnd::on_sent(const ibv_wc& wc) {
  while (!sent_.empty() && sent_.front().id != wc.wr_id) {
    judge_.expect(!sent_.front().is_signalled && !has_failed_,
                  "a request was passed over, that must complete first", number_, sent_.front().id);
    settle(sent_.front());
    sent_.pop_front();
  }
  judge_.expect(!sent_.empty(), "a request completes that is not under way", number_, wc.wr_id);
  if (sent_.empty()) return;
  const Sent request = sent_.front();
  sent_.pop_front();
  if (wc.status == IBV_WC_SUCCESS) {
    judge_.expect(!has_failed_, "a request succeeds behind one that failed", number_, wc.wr_id);
    judge_.expect(request.is_signalled, "an unsignalled success is told", number_, wc.wr_id);
    return settle(request);
  }
  const uint32_t bit = 1u << static_cast<uint32_t>(wc.status);
  const bool is_flush = wc.status == IBV_WC_WR_FLUSH_ERR;
  judge_.expect(is_flush || !has_failed_, "a second request fails of itself", number_, wc.wr_id);
  judge_.expect(is_flush || (plan_.statuses & bit) != 0, "a failure has no cause", number_,
                wc.wr_id);
  if (is_atomic(request.opcode)) may_have_added_.push_back(request.add);
  has_failed_ = true;
  ++judge_.failures;
}

void SeededEnd::take_message(const ibv_wc& wc, const Receive& receive) {
  judge_.expect(!coming_.empty(), "a message is received that nobody sent", number_, receive.id);
  if (coming_.empty()) return;
  const Coming message = coming_.front();
  coming_.pop_front();
  judge_.expect(wc.byte_len == message.bytes && ntohl(wc.imm_data) == message.id &&
                    (wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM) == message.is_write,
                "a message is another than the next that was sent", number_, receive.id);
  const uint8_t* bytes =
      message.is_write ? in_->data() + message.at : messages_->data() + receive.at;
  judge_.expect(
      first_wrong(bytes, message.bytes, message.id * 64 + peer_->number_) == message.bytes,
      "a message was received and its bytes are not there", number_, receive.id);
}

void SeededEnd::on_received(const ibv_wc& wc) {
  judge_.expect(!receives_.empty() && receives_.front().id == wc.wr_id,
                "a receive completes out of order, or twice", number_, wc.wr_id);
  if (receives_.empty()) return;
  const Receive receive = receives_.front();
  receives_.pop_front();
  if (wc.status == IBV_WC_SUCCESS) {
    judge_.expect(!has_flushed_receives_, "a message comes behind a flush", number_, wc.wr_id);
    return take_message(wc, receive);
  }
  judge_.expect(wc.status == IBV_WC_WR_FLUSH_ERR && !plan_.is_quiet(),
                "a receive fails without cause", number_, wc.wr_id);
  has_flushed_receives_ = true;
}

void SeededEnd::on_completion(const ibv_wc& wc) {
  ++judge_.completions;
  judge_.see("done", number_, wc.wr_id & ~kReceiveBit, static_cast<uint64_t>(wc.status));
  if ((wc.wr_id & kReceiveBit) != 0)
    on_received(wc);
  else
    on_sent(wc);
}

uint64_t SeededEnd::hash_memory() const {
  uint64_t hash = 0;
  for (const Buffer* buffer : {in_.get(), landing_.get(), messages_.get(), library_.get()})
    for (uint64_t i = 0; i < buffer->size(); i += 8) {
      uint64_t word = 0;
      std::memcpy(&word, buffer->data() + i, sizeof word);
      hash = hash_step(hash, word);
    }
  return hash_step(hash, counter());
}

void SeededEnd::remember() {
  for (const Coming& message : coming_)
    judge_.expect(!message.is_acknowledged, "a message was acknowledged and never received",
                  number_, message.id);
  // Of several that were under way the first ones may have taken effect.
  for (const uint64_t add : std::exchange(may_have_added_, {}))
    if (added_ != peer_->counter()) added_ += add;
  judge_.expect(is_lost_ || added_ == peer_->counter(), "a counter holds what nobody added",
                number_);
  added_ = peer_->counter();
  remembered_ = hash_memory();
}

void SeededEnd::expect_remembered() {
  judge_.expect(hash_memory() == remembered_, "bytes landed behind the fence", number_);
}

}  // namespace noria::test
