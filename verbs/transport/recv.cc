#include "verbs/transport/recv.hpp"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <new>

#include "verbs/names.hpp"
#include "verbs/transport/credit.hpp"

namespace noria::transport {
namespace {

constexpr std::array<uint32_t, kMaxRails> kNoKeys{};  // of a receive of no bytes

bool is_inside(const RecvPart& part) {
  const RegionState* const region = part.region->state();
  return region != nullptr && region->contains(part.offset, part.bytes);
}

}  // namespace

RecvState::RecvState(DomainState& domain, const ConnectOptions& options, unsigned peer_rails)
    : link_(domain, options, Link::Role::receiver, peer_rails), counters_(domain.counters()) {}

Result<std::unique_ptr<RecvState>> RecvState::make(DomainState& domain,
                                                   const ConnectOptions& options,
                                                   unsigned peer_rails) {
  std::unique_ptr<RecvState> state(new RecvState(domain, options, peer_rails));
  NORIA_TRY(state->link_.open({.send = kCreditDepth + kReadDepth,
                               .recv = kPostedReceives,
                               .inline_bytes = sizeof(wire::Credit),
                               .other_completions = Flush::kWindow}));
  if (options.has_kept_regions) state->staging_ = Staging::make(state->link_.rails());
  if (state->staging_ != nullptr) state->staged_below_ = Staging::kMaxBytes + 1;
  return state;
}

Status RecvState::prepare(const RemoteRegion& credits) {
  if (credits.bytes < kWindow * sizeof(wire::Credit)) return Status(Code::mismatch);
  credits_ = credits;
  credit_write_.set_local(reinterpret_cast<uintptr_t>(&credit_), sizeof credit_, 0);
  credit_write_.set_remote(credits.address, credits.rkeys[0]);
  credit_write_.set_id(WrId::make(link_.id_base(), WrKind::credit, 0, 0));
  credit_qp_ = link_.qp(0);
  lanes_.resize(link_.qp_count());
  read_qps_ = link_.peer_rails() <= kMaxReadRails ? link_.qp_count()
                                                  : std::min(link_.qp_count(), kMaxReadRails);
  for (uint32_t qp = 0; qp < link_.qp_count(); ++qp) {
    auto& wrs = lanes_[qp].wrs;
    for (uint32_t i = 0; i < kBatch; ++i) {
      wrs[i].wr_id = WrId::make(link_.id_base(), WrKind::receive, qp, 0);
      wrs[i].next = i + 1 < kBatch ? &wrs[i + 1] : nullptr;
    }
    for (uint32_t i = 0; i < kPostedReceives / kBatch; ++i) NORIA_TRY(post_receives(qp));
  }
  return {};
}

Status RecvState::make_records() {
  // Strict ordering: a record may not land behind the completion that announces it.
  NORIA_TRY_ASSIGN(record_memory_,
                   RegionState::allocate(link_.rails(), kWindow * sizeof(wire::Record),
                                         verbs::Ordering::strict));
  records_ = new (record_memory_->base()) wire::Record[kWindow];
  return {};
}

wire::Records RecvState::records() const {
  if (record_memory_ == nullptr) return {};
  return {.address = record_memory_->address(), .rkeys = record_memory_->rkeys()};
}

void RecvState::start() { link_.publish(*this); }

Status RecvState::post_receives(uint32_t qp) {
  ibv_recv_wr* bad = nullptr;
  const int error = ibv_post_recv(link_.qp(qp), lanes_[qp].wrs.data(), &bad);
  return error == 0 ? Status() : Status::from_errno(Code::connection_lost, error);
}

Request* RecvState::try_recv(const Region& region, uint64_t offset, uint64_t bytes, uint32_t tag) {
  if (bytes < staged_below_) return try_small_recv(region, offset, bytes, tag);
  return try_recv_alone(region, offset, bytes, tag, false);
}

Request* RecvState::try_small_recv(const Region& region, uint64_t offset, uint64_t bytes,
                                   uint32_t tag) {
  return try_recv_alone(region, offset, bytes, tag, true);
}

inline Request* RecvState::try_recv_alone(const Region& region, uint64_t offset, uint64_t bytes,
                                          uint32_t tag, bool is_small) {
  const uint64_t sequence = next_;
  Request& request = receives_[wire::slot_of(sequence)];
  if (!request.is_free() || sequence >= first_without_room_) return nullptr;
  const uint32_t message =
      make_credit(sequence, wire::match_of(tag, 1), region, offset, bytes, is_small);
  if (message == wire::Immediate::kNoMessage) [[unlikely]]
    return RequestAccess::refuse(request, Code::bad_argument);
  await(request, message, bytes);
  send_credit(sequence);
  return &request;
}

Request* RecvState::try_recv_group(std::span<const RecvPart> parts) {
  const auto members = static_cast<uint32_t>(parts.size());
  NORIA_CHECK(members >= 1 && members <= kMaxGroup, "1 to kMaxGroup messages in a group");
  if (next_ + members > first_without_room_) return nullptr;
  const auto request_of = [&](uint32_t i) -> Request& {
    return receives_[wire::slot_of(next_ + i)];
  };
  for (uint32_t i = 0; i < members; ++i)
    if (!request_of(i).is_free()) return nullptr;
  // Nothing is offered of a group that cannot be offered whole.
  for (const RecvPart& part : parts)
    if (part.bytes != 0 && !is_inside(part)) [[unlikely]]
      return RequestAccess::refuse(request_of(0), Code::bad_argument);

  Request& last = request_of(members - 1);
  for (const RecvPart& part : parts) {
    const uint64_t sequence = next_;
    Request& request = receives_[wire::slot_of(sequence)];
    await(request,
          make_credit(sequence, wire::match_of(part.tag, members), *part.region, part.offset,
                      part.bytes, part.bytes < staged_below_),
          part.bytes);
    send_credit(sequence);
  }
  RequestAccess::set_messages(last, members);
  return &last;
}

inline uint32_t RecvState::make_credit(uint64_t sequence, uint64_t match, const Region& region,
                                       uint64_t offset, uint64_t bytes, bool is_small) {
  const RegionState* const state = region.state();
  uint32_t message = wire::Immediate::message_of(sequence, 0);
  if (state == nullptr || !state->contains(offset, bytes)) [[unlikely]] {
    if (bytes != 0) return wire::Immediate::kNoMessage;
    set_credit(&credit_, sequence, match, 0, 0, kNoKeys);
    return message;
  }
  uint64_t address = state->address() + offset;
  const std::array<uint32_t, kMaxRails>* rkeys = &state->rkeys();
  if (is_small && !state->is_of_device()) {
    address = staging_->expect(wire::slot_of(sequence), region, state->base() + offset);
    rkeys = &staging_->rkeys();
    message |= wire::Immediate::kStaged;
  }
  set_credit(&credit_, sequence, match, address, bytes, *rkeys);
  return message;
}

inline void RecvState::await(Request& request, uint32_t message, uint64_t bytes) {
  RequestAccess::take(request, 0, 0);
  RequestAccess::room(request) = bytes;
  RequestAccess::message(request) = message;
}

inline void RecvState::send_credit(uint64_t sequence) {
  next_ = sequence + 1;
  counters_.add(Counter::receives_posted);
  credit_write_.set_remote_address(credits_.address + wire::slot_of(sequence) * sizeof credit_);
  sequence % kBatch == 0 ? post_signalled_credit() : post_credit();
}

inline void RecvState::post_credit() {
  if (const int error = credit_write_.post(credit_qp_); error != 0) [[unlikely]]
    link_.fail_by_post(error, 0);
}

void RecvState::post_signalled_credit() {
  credit_write_.set_flags(IBV_SEND_INLINE | IBV_SEND_SIGNALED);
  post_credit();
  credit_write_.set_flags(IBV_SEND_INLINE);
}

Request& RecvState::part(const Request* request, uint32_t index) {
  const auto last = static_cast<uint32_t>(request - receives_.data());
  return receives_[(last + 1 - request->messages() + index) & (kWindow - 1)];
}

void RecvState::release_group(Request* request) {
  for (uint32_t i = 0; i + 1 < request->messages(); ++i) RequestAccess::give_back(part(request, i));
  RequestAccess::set_messages(*request, 1);
  RequestAccess::give_back(*request);
}

void RecvState::set_owner(void* owner) {
  owner_ = owner;
  RequestAccess::set_owner(receives_, owner);
  RequestAccess::set_owner(reads_, owner);
  if (flush_ != nullptr) flush_->set_owner(owner);
}

const ibv_wc* RecvState::on_completions(const ibv_wc* wc, const ibv_wc* end) {
  do {
    on_completion(WrId(wc->wr_id), verbs::Completion(*wc));
  } while (++wc != end && link_.is_seat_of(WrId(wc->wr_id)));
  return wc;
}

inline void RecvState::on_completion(WrId id, verbs::Completion completion) {
  const auto success = completion.success();
  if (!success) [[unlikely]]
    return id.kind() == WrKind::flush ? on_flush_failed(completion, id.qp())
                                      : link_.fail_by_completion(completion, id.qp());
  if (!link_.status().is_ok()) [[unlikely]]
    return;  // its request has ended already
  if (id.kind() == WrKind::receive) [[likely]]
    return on_piece(id.qp(), success);
  if (id.kind() == WrKind::read) return on_read(id);
  if (id.kind() == WrKind::flush) return flush_->on_read(id);
  first_without_room_ += kBatch;  // a credit
}

inline void RecvState::on_piece(uint32_t qp, verbs::Completion::Success piece) {
  const uint32_t imm = piece.imm();
  const uint32_t slot = wire::Immediate::slot_in(imm);
  Request& request = receives_[slot];
  if (wire::Immediate::message_in(imm) != RequestAccess::message(request)) [[unlikely]]
    return on_recorded_piece(qp, imm, piece.bytes());
  const uint64_t bytes = RequestAccess::bytes(request) + piece.bytes();
  if (bytes > RequestAccess::room(request)) [[unlikely]]
    return on_protocol_broken("more bytes than were offered", imm);
  RequestAccess::bytes(request) = bytes;
  count_piece(request, slot, imm, qp);
}

void RecvState::on_recorded_piece(uint32_t qp, uint32_t imm, uint32_t piece_bytes) {
  const uint32_t slot = wire::Immediate::slot_in(imm);
  Request& request = receives_[slot];
  const uint32_t awaited = RequestAccess::message(request) | wire::Immediate::kRecorded;
  if (wire::Immediate::message_in(imm) != awaited || records_ == nullptr) [[unlikely]]
    return on_staged_piece(qp, imm, piece_bytes);
  const uint64_t bytes = recorded_bytes(slot);
  if (bytes > RequestAccess::room(request)) [[unlikely]]
    return on_protocol_broken("more bytes than were offered", imm);
  RequestAccess::bytes(request) = bytes;
  count_piece(request, slot, imm, qp);
}

inline uint64_t RecvState::recorded_bytes(uint32_t slot) const {
  // relaxed: ordered behind the completion, and not written again before its message was received.
  return std::atomic_ref(records_[slot]).load(std::memory_order_relaxed);
}

void RecvState::on_staged_piece(uint32_t qp, uint32_t imm, uint32_t piece_bytes) {
  const uint32_t slot = wire::Immediate::slot_in(imm);
  Request& request = receives_[slot];
  const uint32_t difference = wire::Immediate::message_in(imm) ^ RequestAccess::message(request);
  const bool is_recorded = difference == (wire::Immediate::kStaged | wire::Immediate::kRecorded);
  if (is_recorded ? records_ == nullptr : difference != wire::Immediate::kStaged) [[unlikely]]
    return on_protocol_broken("a piece of no message that is awaited", imm);
  const uint64_t bytes =
      is_recorded ? recorded_bytes(slot) : RequestAccess::bytes(request) + piece_bytes;
  if (bytes > RequestAccess::room(request)) [[unlikely]]
    return on_protocol_broken("more bytes than were offered", imm);
  RequestAccess::bytes(request) = bytes;
  if (++RequestAccess::pieces(request) >= wire::Immediate::pieces_in(imm)) {
    if (!staging_->deliver(slot, bytes)) [[unlikely]]
      return on_memory_gone();
    on_whole(request, slot);
  }
  count_receive(qp);
}

void RecvState::on_memory_gone() {
  link_.fail(Status(Code::connection_lost),
             "a message came for memory that was deregistered while its receive was under way");
}

inline void RecvState::count_piece(Request& request, uint32_t slot, uint32_t imm, uint32_t qp) {
  if (++RequestAccess::pieces(request) >= wire::Immediate::pieces_in(imm)) on_whole(request, slot);
  count_receive(qp);
}

inline void RecvState::count_receive(uint32_t qp) {
  if (++consumed_[qp] == kBatch) replace_receives(qp);
}

inline void RecvState::on_whole(Request& request, uint32_t slot) {
  RequestAccess::message(request) = wire::Immediate::kNoMessage;
  if (slot != wire::slot_of(first_undone_)) {
    ++arrived_;
    return;
  }
  RequestAccess::finish(request);
  ++first_undone_;
  if (arrived_ != 0) finish_in_order();
}

void RecvState::finish_in_order() {
  for (; arrived_ != 0; --arrived_, ++first_undone_) {
    Request& oldest = receives_[wire::slot_of(first_undone_)];
    if (RequestAccess::message(oldest) != wire::Immediate::kNoMessage) return;
    RequestAccess::finish(oldest);
  }
}

void RecvState::replace_receives(uint32_t qp) {
  consumed_[qp] = 0;
  if (const Status posted = post_receives(qp); !posted.is_ok()) [[unlikely]]
    link_.fail_by_post(posted.raw(), qp);
}

void RecvState::on_protocol_broken(const char* what, uint32_t imm) {
  char text[160];
  std::snprintf(text, sizeof text,
                "the peer sent %s (immediate 0x%08x): do both sides run the same build?", what,
                imm);
  link_.fail(Status(Code::mismatch), text);
}

Request* RecvState::try_read(const RegionState* local, uint64_t local_offset,
                             const RemoteRegion& remote, uint64_t remote_offset, uint64_t bytes) {
  const uint32_t slot = static_cast<uint32_t>(next_read_) & (kReadWindow - 1);
  Request& request = reads_[slot];
  if (!request.is_free() || !link_.status().is_ok()) return nullptr;
  const bool is_inside = local != nullptr && local->contains(local_offset, bytes) &&
                         remote_offset <= remote.bytes && bytes <= remote.bytes - remote_offset;
  if (!is_inside) [[unlikely]]
    return RequestAccess::refuse(request, Code::bad_argument);

  const uint64_t chunks = bytes / kChunkBytes + (bytes % kChunkBytes != 0 ? 1 : 0);
  if (chunks > UINT16_MAX) [[unlikely]]
    return RequestAccess::refuse(request, Code::bad_argument);
  RequestAccess::take(request, bytes, static_cast<uint32_t>(chunks));
  jobs_[slot] = {.local = local,
                 .local_offset = local_offset,
                 .remote_address = remote.address + remote_offset,
                 .rkeys = remote.rkeys};
  ++next_read_;
  counters_.add(Counter::reads);
  counters_.add(Counter::bytes_read, bytes);
  if (chunks == 0) RequestAccess::finish(request);
  post_reads();
  return &request;
}

void RecvState::post_reads() {
  while (first_unposted_read_ != next_read_) {
    const uint32_t slot = static_cast<uint32_t>(first_unposted_read_) & (kReadWindow - 1);
    ReadJob& job = jobs_[slot];
    const uint64_t bytes = RequestAccess::bytes(reads_[slot]);
    while (job.posted < bytes) {
      const uint32_t qp = read_qp_;
      if (lanes_[qp].reads_posted == kReadDepth) return;  // goes on as chunks complete
      const unsigned rail = link_.rail_of(qp);
      const uint64_t chunk = std::min(kChunkBytes, bytes - job.posted);
      read_.set_local(job.local->address() + job.local_offset + job.posted,
                      static_cast<uint32_t>(chunk), job.local->lkey(rail));
      read_.set_remote(job.remote_address + job.posted, job.rkeys[link_.peer_rail_of(qp)]);
      read_.set_id(WrId::make(link_.id_base(), WrKind::read, qp, slot));
      if (const int error = read_.post(link_.qp(qp)); error != 0) [[unlikely]]
        return link_.fail_by_post(error, qp);
      job.posted += chunk;
      ++lanes_[qp].reads_posted;
      read_qp_ = qp + 1 == read_qps_ ? 0 : qp + 1;
    }
    ++first_unposted_read_;
  }
}

void RecvState::on_read(WrId id) {
  --lanes_[id.qp()].reads_posted;
  Request& request = reads_[id.slot()];
  if (--RequestAccess::pieces(request) == 0) RequestAccess::finish(request);
  post_reads();
}

void RecvState::on_failed(Status status) {
  first_without_room_ = 0;
  RequestAccess::fail_all(receives_, status);
  RequestAccess::fail_all(reads_, status);
  if (flush_ != nullptr) flush_->on_failed(status);
}

Request* RecvState::try_flush(std::span<const FlushPoint> points) {
  NORIA_CHECK(!points.empty() && points.size() <= kMaxFlushPoints, "a flush has 1 to 8 points");
  if (!link_.status().is_ok()) return nullptr;
  if (flush_ == nullptr) {
    auto made = Flush::make(link_.rails(), link_.id_base());
    if (!made) {
      link_.fail(made.failure(), "a device gives no queue pair to flush device memory with");
      return nullptr;
    }
    flush_ = std::move(*made);
    flush_->set_owner(owner_);
  }
  const auto request = flush_->try_flush(points);
  if (request) return *request;
  link_.fail(request.failure(), "a device refused to read what arrived in device memory");
  return nullptr;
}

void RecvState::on_flush_failed(verbs::Completion completion, uint32_t rail) {
  const ibv_wc_status status = completion.wc_status();
  char text[256];
  std::snprintf(
      text, sizeof text,
      "%s cannot read back what arrived in device memory: %s (completion status %d, vendor "
      "0x%x): %s",
      link_.rails().rails[rail].port().info.device.c_str(), verbs::to_string(status),
      static_cast<int>(status), completion.vendor_error(), verbs::advice(status));
  link_.fail(Status::from_wc(Code::connection_lost, status), text);
}

RecvConnection::RecvConnection(std::unique_ptr<RecvState> state) : state_(std::move(state)) {}
RecvConnection::~RecvConnection() = default;

Request* RecvConnection::try_recv(const Region& region, uint64_t offset, uint64_t bytes,
                                  uint32_t tag) {
  return state_->try_recv(region, offset, bytes, tag);
}
Request* RecvConnection::try_read(const Region& local, uint64_t local_offset,
                                  const RemoteRegion& remote, uint64_t remote_offset,
                                  uint64_t bytes) {
  return state_->try_read(local.state(), local_offset, remote, remote_offset, bytes);
}
Request* RecvConnection::try_flush(std::span<const FlushPoint> points) {
  return state_->try_flush(points);
}
Request* RecvConnection::try_recv_group(std::span<const RecvPart> parts) {
  return state_->try_recv_group(parts);
}
uint64_t RecvConnection::part_bytes(const Request* request, uint32_t part) const {
  return state_->part(request, part).bytes();
}
void RecvConnection::release_group(Request* request) { state_->release_group(request); }
void RecvConnection::set_owner(void* owner) { state_->set_owner(owner); }
Status RecvConnection::status() const { return state_->link().status(); }
std::string RecvConnection::describe() const { return state_->link().describe(); }

}  // namespace noria::transport
