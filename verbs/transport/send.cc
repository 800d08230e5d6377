#include "verbs/transport/send.hpp"

#include <algorithm>
#include <new>

#include "verbs/transport/adaptive.hpp"

namespace noria::transport {
namespace {

// From how many bytes on a message is cut: between ports it is worth it whatever
// NORIA_SPLIT_DATA_ON_QPS says of queue pairs.
uint64_t stripe_min(const DomainState& domain) {
  const Params& params = domain.params();
  if (params.split == "on") return 1;
  const bool is_one_port = domain.rails()->rails.size() == 1;
  return params.split == "off" && is_one_port ? UINT64_MAX : params.stripe_min_bytes;
}

}  // namespace

SendState::SendState(DomainState& domain, const ConnectOptions& options, const Peer& peer)
    : link_(domain, options, Link::Role::sender, peer.rails),
      counters_(domain.counters()),
      adaptive_from_(adaptive_from(domain.params(), domain.rails()->is_infiniband())),
      stripe_min_(stripe_min(domain)),
      request_bytes_(std::min(domain.rails()->request_bytes, peer.request_bytes)),
      recorded_from_(std::min(adaptive_from_, request_bytes_ + 1)) {
  data_.chain(notice_);
  notice_.set_local(reinterpret_cast<uintptr_t>(&record_), sizeof record_, 0);
}

Result<std::unique_ptr<SendState>> SendState::make(DomainState& domain,
                                                   const ConnectOptions& options,
                                                   const Peer& peer) {
  std::unique_ptr<SendState> state(new SendState(domain, options, peer));
  // Strict ordering: credits are polled, no completion announces them.
  NORIA_TRY_ASSIGN(state->ring_memory_,
                   RegionState::allocate(*domain.rails(), kWindow * sizeof(wire::Credit),
                                         verbs::Ordering::strict));
  state->ring_ = new (state->ring_memory_->base()) wire::Credit[kWindow];
  // A message has at most one piece on a queue pair, and kWindow messages are in flight.
  const bool is_adaptive = state->adaptive_from_ != UINT64_MAX;
  if (options.sends_lines) state->line_depth_ = kLineDepth;
  NORIA_TRY(state->link_.open({.send = kWindow * (is_adaptive ? 2 : 1) +
                                       parts_of_longest(state->request_bytes_) + state->line_depth_,
                               .recv = 1,
                               .inline_bytes = SendConnection::kInlineBytes}));
  return state;
}

RemoteRegion SendState::credits() const {
  return {.address = ring_memory_->address(),
          .bytes = ring_memory_->bytes(),
          .rkeys = ring_memory_->remote_keys()};
}

void SendState::start() {
  stripe_.start(link_.weights());
  if (stripe_.count() == 1) stripe_min_ = UINT64_MAX;
  long_from_ = std::min(stripe_min_, recorded_from_);
  alone_below_ = stripe_.count() == 1 ? long_from_ : 0;
  for (uint32_t qp = 0; qp < link_.qp_count(); ++qp)
    paths_[qp] = {.qp = link_.qp(qp),
                  .id = WrId::make(link_.id_base(), WrKind::piece, qp, 0),
                  .rail = link_.rail_of(qp),
                  .peer_rail = link_.peer_rail_of(qp),
                  .key = wire::Credit::word_of_key(link_.peer_rail_of(qp))};
  line_.set_id(WrId::make(link_.id_base(), WrKind::line, 0, kLineSlot));
  link_.publish(*this);
}

Request* SendState::on_credit_missing() {
  counters_.add(Counter::credits_missed);
  return nullptr;
}

inline void SendState::count_message(uint64_t bytes) {
  counters_.add(Counter::messages_sent);
  counters_.add(Counter::bytes_sent, bytes);
}

inline void SendState::post(const Path& path, uint32_t bytes, uint32_t lkey, CreditView credit,
                            uint32_t slot) {
  write_.set_piece(bytes, lkey, credit.rkey(path.key));
  write_.set_id(path.id | slot);
  if (const int error = write_.post(path.qp); error != 0) [[unlikely]]
    link_.fail_by_post(error, WrId(path.id).qp());
}

Request* SendState::try_send(const RegionState* region, uint64_t offset, uint64_t bytes,
                             uint32_t tag) {
  const uint64_t sequence = next_;
  const CreditView credit = read_credit(ring_[wire::slot_of(sequence)], sequence);
  if (!credit) return on_credit_missing();
  if (credit.match() != wire::match_of(tag, 1)) [[unlikely]]
    return try_send_in_group(credit, region, offset, bytes, tag);
  Request& request = requests_[wire::slot_of(sequence)];
  if (!request.is_free() || !link_.status().is_ok()) return nullptr;
  if (!fits(credit, region, offset, bytes, request_bytes_)) [[unlikely]]
    return try_send_long(region, offset, bytes);
  next_ = sequence + 1;
  send_message(sequence, credit, &request, region, offset, bytes);
  return &request;
}

Request* SendState::try_send_long(const RegionState* region, uint64_t offset, uint64_t bytes) {
  const uint64_t sequence = next_;
  const CreditView credit = read_credit(ring_[wire::slot_of(sequence)], sequence);
  NORIA_CHECK(credit, "a credit that is read once more is not there");
  Request& request = requests_[wire::slot_of(sequence)];
  if (!goes_in_parts(request, credit, region, offset, bytes))
    return request.is_done() ? &request : nullptr;
  next_ = sequence + 1;
  send_message(sequence, credit, &request, region, offset, bytes);
  return &request;
}

Request* SendState::try_send_in_group(CreditView first, const RegionState* region, uint64_t offset,
                                      uint64_t bytes, uint32_t tag) {
  if (!link_.status().is_ok()) return nullptr;
  const uint32_t members = wire::members_in(first.match());
  if (members == 0 || members > kMaxGroup) [[unlikely]]
    return on_group_of_none(members);
  for (uint32_t i = 0; i < members; ++i) {
    if ((group_sent_ >> i & 1) != 0) continue;
    const uint64_t sequence = next_ + i;
    const CreditView credit = read_credit(ring_[wire::slot_of(sequence)], sequence);
    if (!credit) break;  // what is behind it must not overtake it: its tag may be the same
    if (wire::tag_in(credit.match()) != tag) continue;
    Request& request = requests_[wire::slot_of(sequence)];
    if (!request.is_free()) return nullptr;
    if (!fits(credit, region, offset, bytes, request_bytes_)) [[unlikely]]
      if (!goes_in_parts(request, credit, region, offset, bytes))
        return request.is_done() ? &request : nullptr;
    group_sent_ |= 1u << i;
    if (group_sent_ == (1u << members) - 1) {
      group_sent_ = 0;
      next_ += members;
    }
    send_message(sequence, credit, &request, region, offset, bytes);
    return &request;
  }
  return on_credit_missing();
}

Request* SendState::on_group_of_none(uint32_t members) {
  link_.fail(Status(Code::mismatch), "the peer offered a group of " + std::to_string(members) +
                                         " receives, where 1 to " + std::to_string(kMaxGroup) +
                                         " can be: do both sides run the same build?");
  return nullptr;
}

inline bool SendState::fits(CreditView credit, const RegionState* region, uint64_t offset,
                            uint64_t bytes, uint64_t most) const {
  const bool is_inside = bytes == 0 || (region != nullptr && region->contains(offset, bytes));
  return is_inside && bytes <= credit.bytes() && bytes <= most;
}

bool SendState::goes_in_parts(Request& request, CreditView credit, const RegionState* region,
                              uint64_t offset, uint64_t bytes) {
  if (!fits(credit, region, offset, bytes, kMaxMessageBytes)) {
    RequestAccess::refuse(request, Code::bad_argument);
    return false;
  }
  if (long_ != nullptr && RequestAccess::pieces(*long_) != 0) return false;
  long_ = &request;
  return true;
}

inline void SendState::send_message(uint64_t sequence, CreditView credit, Request* request,
                                    const RegionState* region, uint64_t offset, uint64_t bytes) {
  count_message(bytes);
  write_.has_bytes(bytes != 0);
  write_.set_addresses(bytes != 0 ? region->address() + offset : 0, credit.address());
  if (bytes >= alone_below_) return send_on_many(sequence, credit, request, region, bytes);
  send_whole(paths_[0], sequence, credit, request, region, bytes);
}

inline void SendState::send_whole(const Path& path, uint64_t sequence, CreditView credit,
                                  Request* request, const RegionState* region, uint64_t bytes) {
  RequestAccess::take(*request, bytes, 1);
  write_.set_imm(wire::Immediate::of(sequence, 0, 1).pack());
  post(path, static_cast<uint32_t>(bytes),
       bytes != 0 && region != nullptr ? region->lkey(path.rail) : 0, credit,
       wire::slot_of(sequence));
}

void SendState::send_on_many(uint64_t sequence, CreditView credit, Request* request,
                             const RegionState* region, uint64_t bytes) {
  const uint32_t slot = wire::slot_of(sequence);
  const auto total = static_cast<uint32_t>(bytes);
  if (bytes < long_from_)
    return send_whole(paths_[stripe_.take_whole(slot, total)], sequence, credit, request, region,
                      bytes);
  Cut cut;
  if (bytes >= stripe_min_) {
    counters_.add(Counter::messages_striped);
    stripe_.cut(slot, total, &cut);
  } else {
    cut.piece[0] = {.bytes = total,
                    .qp = stripe_.count() > 1 ? stripe_.take_whole(slot, total) : 0};
    cut.count = 1;
  }
  RequestAccess::take(*request, bytes, cut.count);
  if (bytes >= recorded_from_) return post_recorded(cut, sequence, credit, *region, bytes);
  write_.set_imm(wire::Immediate::of(sequence, 0, cut.count).pack());
  for (uint32_t i = 0; i < cut.count; ++i) {
    const Path& path = paths_[cut.piece[i].qp];
    post(path, cut.piece[i].bytes, region->lkey(path.rail), credit, slot);
    write_.pass_piece();
  }
}

inline void SendState::post_recorded(const Cut& cut, uint64_t sequence, CreditView credit,
                                     const RegionState& region, uint64_t bytes) {
  if (bytes >= adaptive_from_) counters_.add(Counter::messages_adaptive);
  const uint32_t slot = wire::slot_of(sequence);
  record_ = static_cast<wire::Record>(bytes);
  data_.set_addresses(write_.local_address(), write_.remote_address());
  const uint64_t record = records_.address + slot * sizeof record_;
  notice_.set_imm(wire::Immediate::recorded(sequence, 0, cut.count).pack());
  for (uint32_t i = 0; i < cut.count; ++i) {
    const Path& path = paths_[cut.piece[i].qp];
    data_.set_piece(cut.piece[i].bytes, region.lkey(path.rail), credit.rkey(path.key));
    data_.set_id(path.id | slot);
    if (cut.piece[i].bytes > request_bytes_) [[unlikely]]
      if (!post_front(path, cut.piece[i].bytes, region.lkey(path.rail), credit.rkey(path.key)))
        return;
    notice_.set_remote(record, records_.rkeys[path.peer_rail]);
    notice_.set_id(path.id | slot);
    if (const int error = data_.post(path.qp); error != 0) [[unlikely]]
      link_.fail_by_post(error, cut.piece[i].qp);
    data_.pass_piece();
  }
}

// All of a piece but what a last work request takes, left in data_. False: the link failed.
bool SendState::post_front(const Path& path, uint32_t bytes, uint32_t lkey, uint32_t rkey) {
  part_.set_addresses(data_.local_address(), data_.remote_address());
  part_.set_id(path.id);
  const auto most = static_cast<uint32_t>(request_bytes_);
  for (; bytes > most; bytes -= most) {
    part_.set_piece(most, lkey, rkey);
    if (const int error = part_.post(path.qp); error != 0) [[unlikely]] {
      link_.fail_by_post(error, WrId(path.id).qp());
      return false;
    }
    part_.pass_piece();
  }
  data_.set_addresses(part_.local_address(), part_.remote_address());
  data_.set_piece(bytes, lkey, rkey);
  return true;
}

Request* SendState::try_send_inline(const void* data, uint32_t bytes) {
  const uint64_t sequence = next_;
  const uint32_t slot = wire::slot_of(sequence);
  const CreditView credit = read_credit(ring_[slot], sequence);
  if (!credit || credit.match() != wire::match_of(0, 1)) return on_credit_missing();
  Request& request = requests_[slot];
  if (!request.is_free() || !link_.status().is_ok()) return nullptr;
  if (bytes > SendConnection::kInlineBytes || bytes > credit.bytes()) [[unlikely]]
    return RequestAccess::refuse(request, Code::bad_argument);

  next_ = sequence + 1;
  count_message(bytes);
  write_.set_flags(IBV_SEND_SIGNALED | IBV_SEND_INLINE);
  write_.has_bytes(bytes != 0);
  write_.set_addresses(reinterpret_cast<uintptr_t>(data), credit.address());
  const uint32_t qp = stripe_.count() > 1 ? stripe_.take_whole(slot, bytes) : 0;
  send_whole(paths_[qp], sequence, credit, &request, nullptr, bytes);
  write_.set_flags(IBV_SEND_SIGNALED);
  return &request;
}

bool SendState::try_write_line(const RemoteRegion& to, uint64_t offset, const void* line) {
  NORIA_DCHECK(offset % SendConnection::kLineBytes == 0 && offset < to.bytes, "no line of it");
  const uint32_t under_way =
      RequestAccess::pieces(requests_[kLineSlot]) * kLineBatch + lines_posted_ % kLineBatch;
  if (under_way >= line_depth_ || !link_.status().is_ok()) return false;
  counters_.add(Counter::lines_sent);
  line_.set_local(reinterpret_cast<uintptr_t>(line), SendConnection::kLineBytes, 0);
  line_.set_remote(to.address + offset, to.rkeys[paths_[0].peer_rail]);
  ++lines_posted_ % kLineBatch == 0 ? post_signalled_line() : post_line();
  return true;
}

inline void SendState::post_line() {
  if (const int error = line_.post(paths_[0].qp); error != 0) [[unlikely]]
    link_.fail_by_post(error, 0);
}

void SendState::post_signalled_line() {
  ++RequestAccess::pieces(requests_[kLineSlot]);
  line_.set_flags(IBV_SEND_INLINE | IBV_SEND_SIGNALED);
  post_line();
  line_.set_flags(IBV_SEND_INLINE);
}

const ibv_wc* SendState::on_completions(const ibv_wc* wc, const ibv_wc* end) {
  do {
    on_completion(WrId(wc->wr_id), verbs::Completion(*wc));
  } while (++wc != end && link_.is_seat_of(WrId(wc->wr_id)));
  return wc;
}

inline void SendState::on_completion(WrId id, verbs::Completion completion) {
  if (!completion.success()) [[unlikely]]
    return link_.fail_by_completion(completion, id.qp());
  if (!link_.status().is_ok()) [[unlikely]]
    return;  // its request has ended already
  if (stripe_.count() > 1) stripe_.on_done(id.slot(), id.qp());
  if (--RequestAccess::pieces(requests_[id.slot()]) == 0) finish_in_order();
}

inline void SendState::finish_in_order() {
  while (first_undone_ != next_) {
    Request& oldest = requests_[wire::slot_of(first_undone_)];
    if (RequestAccess::pieces(oldest) != 0) return;
    RequestAccess::finish(oldest);
    ++first_undone_;
  }
}

void SendState::on_failed(Status status) { RequestAccess::fail_all(requests_, status); }

SendConnection::SendConnection(std::unique_ptr<SendState> state) : state_(std::move(state)) {}
SendConnection::~SendConnection() = default;

Request* SendConnection::try_send(const Region& region, uint64_t offset, uint64_t bytes,
                                  uint32_t tag) {
  return state_->try_send(region.state(), offset, bytes, tag);
}
Request* SendConnection::try_send_inline(const void* data, uint32_t bytes) {
  return state_->try_send_inline(data, bytes);
}
bool SendConnection::try_write_line(const RemoteRegion& to, uint64_t offset, const void* line) {
  return state_->try_write_line(to, offset, line);
}
void SendConnection::set_owner(void* owner) { state_->set_owner(owner); }
Status SendConnection::status() const { return state_->link().status(); }
std::string SendConnection::describe() const { return state_->link().describe(); }

}  // namespace noria::transport
