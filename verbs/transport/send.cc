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

SendState::SendState(DomainState& domain, const ConnectOptions& options, unsigned peer_rails)
    : link_(domain, options, Link::Role::sender, peer_rails),
      counters_(domain.counters()),
      adaptive_from_(adaptive_from(domain.params(), domain.rails()->is_infiniband())),
      stripe_min_(stripe_min(domain)),
      max_message_bytes_(domain.rails()->max_message_bytes) {
  data_.chain(notice_);
  notice_.set_local(reinterpret_cast<uintptr_t>(&record_), sizeof record_, 0);
}

Result<std::unique_ptr<SendState>> SendState::make(DomainState& domain,
                                                   const ConnectOptions& options,
                                                   unsigned peer_rails) {
  std::unique_ptr<SendState> state(new SendState(domain, options, peer_rails));
  // Strict ordering: credits are polled, no completion announces them.
  NORIA_TRY_ASSIGN(state->ring_memory_,
                   RegionState::allocate(*domain.rails(), kWindow * sizeof(wire::Credit),
                                         verbs::Ordering::strict));
  state->ring_ = new (state->ring_memory_->base()) wire::Credit[kWindow];
  // A message has at most one piece on a queue pair, and kWindow messages are in flight.
  const uint32_t requests_a_piece = state->wants_records() ? 2 : 1;
  NORIA_TRY(state->link_.open({.send = kWindow * requests_a_piece,
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
  long_from_ = std::min(stripe_min_, adaptive_from_);
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

inline void SendState::post(const Piece& piece, uint64_t local_address, uint32_t lkey,
                            uint64_t sequence, uint32_t imm, CreditView credit) {
  write_.set_local(local_address, static_cast<uint32_t>(piece.bytes), lkey);
  write_.set_remote(credit.address() + piece.offset, credit.rkey(link_.peer_rail_of(piece.qp)));
  write_.set_imm(imm);
  write_.set_id(WrId::make(link_.id_base(), WrKind::piece, piece.qp, wire::slot_of(sequence)));
  if (const int error = write_.post(link_.qp(piece.qp)); error != 0) [[unlikely]]
    link_.fail_by_post(error, piece.qp);
}

Request* SendState::try_send(const RegionState* region, uint64_t offset, uint64_t bytes,
                             uint32_t tag) {
  const uint64_t sequence = next_;
  const CreditView credit = read_credit(ring_[wire::slot_of(sequence)], sequence);
  if (!credit) return on_credit_missing();
  if (credit.match() != wire::match_of(tag, 1)) [[unlikely]]
    return try_send_in_group(credit, region, offset, bytes, tag);
  Request& request = requests_[wire::slot_of(sequence)];
  if (!RequestAccess::is_free(request) || !link_.status().is_ok()) return nullptr;
  if (!fits(credit, region, offset, bytes)) [[unlikely]]
    return RequestAccess::refuse(request, Code::bad_argument);
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
    if (!RequestAccess::is_free(request)) return nullptr;
    if (!fits(credit, region, offset, bytes)) [[unlikely]]
      return RequestAccess::refuse(request, Code::bad_argument);
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
                            uint64_t bytes) const {
  const bool is_inside = bytes == 0 || (region != nullptr && region->contains(offset, bytes));
  return is_inside && bytes <= credit.bytes() && bytes <= max_message_bytes_;
}

inline void SendState::send_message(uint64_t sequence, CreditView credit, Request* request,
                                    const RegionState* region, uint64_t offset, uint64_t bytes) {
  write_.set_flags(IBV_SEND_SIGNALED);
  if (bytes >= long_from_) {
    send_long(*region, offset, bytes, sequence, request, credit);
  } else {
    const Piece whole{.offset = 0, .bytes = bytes, .qp = stripe_.take_whole(bytes)};
    RequestAccess::take(*request, bytes, 1);
    post(whole, bytes != 0 ? region->address() + offset : 0,
         bytes != 0 ? region->lkey(link_.rail_of(whole.qp)) : 0, sequence,
         wire::Immediate::of(sequence, 0, 1).pack(), credit);
  }
  count_message(bytes);
}

inline void SendState::post_striped(const RegionState& region, uint64_t offset, uint64_t bytes,
                                    uint64_t sequence, Request* request, CreditView credit) {
  counters_.add(Counter::messages_striped);
  Cut pieces;
  stripe_.cut(bytes, &pieces);
  RequestAccess::take(*request, bytes, pieces.count);
  const uint32_t imm = wire::Immediate::of(sequence, 0, pieces.count).pack();
  for (uint32_t i = 0; i < pieces.count; ++i) {
    const Piece& piece = pieces.piece[i];
    post(piece, region.address() + offset + piece.offset, region.lkey(link_.rail_of(piece.qp)),
         sequence, imm, credit);
  }
}

void SendState::send_long(const RegionState& region, uint64_t offset, uint64_t bytes,
                          uint64_t sequence, Request* request, CreditView credit) {
  if (bytes < adaptive_from_) return post_striped(region, offset, bytes, sequence, request, credit);
  counters_.add(Counter::messages_adaptive);
  Cut pieces;
  if (bytes >= stripe_min_) {
    counters_.add(Counter::messages_striped);
    stripe_.cut(bytes, &pieces);
  } else {
    pieces.piece[0] = {.offset = 0, .bytes = bytes, .qp = stripe_.take_whole(bytes)};
    pieces.count = 1;
  }
  RequestAccess::take(*request, bytes, pieces.count);
  post_adaptively(pieces, region, offset, bytes, sequence, credit);
}

inline void SendState::post_adaptively(const Cut& pieces, const RegionState& region,
                                       uint64_t offset, uint64_t bytes, uint64_t sequence,
                                       CreditView credit) {
  record_ = static_cast<wire::Record>(bytes);
  const uint64_t record = records_.address + wire::slot_of(sequence) * sizeof record_;
  notice_.set_imm(wire::Immediate::recorded(sequence, 0, pieces.count).pack());
  for (uint32_t i = 0; i < pieces.count; ++i) {
    const Piece& piece = pieces.piece[i];
    const unsigned peer_rail = link_.peer_rail_of(piece.qp);
    const uint64_t id =
        WrId::make(link_.id_base(), WrKind::piece, piece.qp, wire::slot_of(sequence));
    data_.set_local(region.address() + offset + piece.offset, static_cast<uint32_t>(piece.bytes),
                    region.lkey(link_.rail_of(piece.qp)));
    data_.set_remote(credit.address() + piece.offset, credit.rkey(peer_rail));
    data_.set_id(id);
    notice_.set_remote(record, records_.rkeys[peer_rail]);
    notice_.set_id(id);
    if (const int error = data_.post(link_.qp(piece.qp)); error != 0) [[unlikely]]
      link_.fail_by_post(error, piece.qp);
  }
}

Request* SendState::try_send_inline(const void* data, uint32_t bytes) {
  const uint32_t slot = wire::slot_of(next_);
  const CreditView credit = read_credit(ring_[slot], next_);
  if (!credit || credit.match() != wire::match_of(0, 1)) return on_credit_missing();
  Request& request = requests_[slot];
  if (!RequestAccess::is_free(request) || !link_.status().is_ok()) return nullptr;
  if (bytes > SendConnection::kInlineBytes || bytes > credit.bytes()) [[unlikely]]
    return RequestAccess::refuse(request, Code::bad_argument);

  RequestAccess::take(request, bytes, 1);
  write_.set_flags(IBV_SEND_SIGNALED | IBV_SEND_INLINE);
  post({.offset = 0, .bytes = bytes, .qp = stripe_.take_whole(bytes)},
       reinterpret_cast<uintptr_t>(data), 0, next_, wire::Immediate::of(next_, 0, 1).pack(),
       credit);
  ++next_;
  count_message(bytes);
  return &request;
}

void SendState::on_completion(WrId id, verbs::Completion completion) {
  if (!completion.success()) [[unlikely]]
    return link_.fail_by_completion(completion, id.qp());
  if (!link_.status().is_ok()) [[unlikely]]
    return;  // its request has ended already
  if (stripe_.count() > 1) stripe_.on_done(id.qp());
  --RequestAccess::pieces_left(requests_[id.slot()]);
  finish_in_order();
}

void SendState::finish_in_order() {
  while (first_undone_ != next_) {
    Request& oldest = requests_[wire::slot_of(first_undone_)];
    if (RequestAccess::pieces_left(oldest) != 0) return;
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
void SendConnection::release(Request* request) { RequestAccess::give_back(request); }
Status SendConnection::status() const { return state_->link().status(); }
std::string SendConnection::describe() const { return state_->link().describe(); }

}  // namespace noria::transport
