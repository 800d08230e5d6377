#include "bucketing/ring.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "bucketing/ring_mismatch.hpp"
#include "bucketing/ring_state.hpp"

namespace noria::bucketing {
namespace {

// The first chunk of these leaves a rank as soon as it takes part.
constexpr bool may_carry_chunk(Kind kind) {
  return kind == Kind::all_reduce || kind == Kind::reduce_scatter;
}

// Slots hold headers, and notices or chunks. Whatever the way to fetch: some collectives go by
// messages only.
constexpr RingInbox::Shape kInboxShape{RingPush::kInboxSlots, RingPush::kInboxSlotBytes};

}  // namespace

Ring::State::State(transport::Domain& domain, RingPlace place, RingLinks links, RingFetch fetch,
                   Memory memory, ControlPlane* control)
    : fetch_(fetch),
      inbox_(std::move(memory.inbox), kInboxShape),
      outbox_(std::move(memory.outbox)),
      lines_(place, std::move(links.lines_in), links.lines_out),
      run_(std::move(memory.staging)),
      pull_(std::move(memory.scratch)),
      push_(fetch == RingFetch::by_memory),
      gather_(std::move(memory.slots)),
      core_(domain, place),
      control_(control) {
  core_.links = std::move(links);
  inbox_.peek(core_);  // offers the slots
}

void Ring::State::start(Collective& collective) {
  ++sequence_;
  if (RingLines::fit(collective)) return lines_.begin(collective, sequence_);
  has_sent_header_ = has_left_header_ = false;
  if (!run_.begin(core_, collective)) return;
  pulls_ = should_pull(collective);
  header_ = make_header(collective);
  if (carries_chunk()) header_.flags |= kCarriesChunk;
  if (collective.kind == Kind::broadcast) {
    broadcast_.begin(core_, run_);
  } else {
    if (pulls_) {
      pull_.begin(core_, run_);
    } else {
      if (!push_.begin(core_, run_)) return;
    }
    gather_.begin(core_, run_);
  }
  has_sent_header_ = send_header();
}

// The same on all ranks: parts are exchanged by all or by none.
bool Ring::State::should_pull(const Collective& collective) const {
  if (collective.kind == Kind::broadcast || collective.has_single_phase) return false;
  return fetch_ == RingFetch::read || (fetch_ == RingFetch::by_memory && !collective.left.empty());
}

// Small collectives only: what is sent then lies in one piece with room for the header.
bool Ring::State::carries_chunk() {
  if (pulls_ || !may_carry_chunk(header_.kind) || !run_.is_staged() || run_.segments() == 0)
    return false;
  first_piece_ = run_.piece(0, core_.place().offered_chunk(0), Phases::reduce);
  return first_piece_.bytes != 0;
}

RingHeader Ring::State::make_header(const Collective& collective) const {
  RingHeader header;
  header.kind = collective.kind;
  header.sequence = sequence_;
  header.fingerprint = collective.fingerprint;
  header.parts = static_cast<uint32_t>(collective.parts.size());
  header.root = collective.root;
  if (!collective.parts.empty()) {
    const Part& part = collective.parts.front();
    header.dtype = static_cast<uint8_t>(part.dtype);
    header.op = static_cast<uint8_t>(part.op);
    header.count = part.count;
  }
  if (!pulls_ || collective.segments.empty()) return header;
  if (run_.all_ready()) header.flags |= kAllReady;
  if (collective.left.empty()) {
    NORIA_CHECK(collective.parts.size() == 1, "parts were not exchanged before the start");
    header.flags |= kHasRemote;
    header.part = run_.own_part();
  }
  return header;
}

Ring::Progress Ring::State::advance() {
  if (core_.has_failed()) [[unlikely]]
    return Progress::failed;
  if (lines_.is_active()) return advance_lines();
  core_.domain().poll();
  if (!run_.is_active()) return Progress::none;

  bool moved = has_sent_header_ && has_left_header_ ? work() : exchange_headers() || send_ahead();
  moved |= outbox_.collect(core_);
  if (!moved) {
    // A neighbour that has ended this collective may leave, while this rank still waits for the
    // other one: what it owed is here.
    if (needs_left()) core_.check_left();
    if (needs_right()) core_.check_right();
    if (has_sent_header_ && !has_left_header_) look_for_line();
  }
  if (core_.has_failed()) [[unlikely]]
    return Progress::failed;
  if (!needs_left() && !needs_right()) {
    run_.deliver();
    run_.end();
    return Progress::finished;
  }
  return moved ? Progress::some : Progress::none;
}

Ring::Progress Ring::State::advance_lines() {
  const bool moved = lines_.advance(core_, outbox_);
  if (!moved) look_around_lines();
  if (core_.has_failed()) [[unlikely]]
    return Progress::failed;
  if (lines_.is_done()) {
    lines_.deliver(core_);
    lines_.end();
    return Progress::finished;
  }
  return moved ? Progress::some : Progress::none;
}

// While a line does not come: what else a turn sees to, and what the left neighbour may have sent
// in its place.
void Ring::State::look_around_lines() {
  core_.domain().poll();
  // Looked for once more before the neighbour is missed: it may have gone when it had sent all.
  if (lines_.has_next()) return;
  outbox_.collect(core_);
  if (!lines_.has_taken_all()) core_.check_left();
  if (!lines_.has_sent_all()) core_.check_right();
  // What this rank calls is told before it fails for what another called.
  if (!lines_.has_sent_own()) return;
  const RingInbox::Message message = inbox_.peek(core_);
  if (message.data == nullptr || drop_wake(message)) return;
  RingHeader header;
  std::memcpy(static_cast<void*>(&header), message.data,
              std::min<uint64_t>(message.bytes, kShortHeaderBytes));
  const bool is_header = message.bytes >= kShortHeaderBytes && header.type == RingMessage::header;
  // The next one's: the neighbour has ended this one, and its line is there, or about to land.
  if (is_header && header.sequence == sequence_ + 1) return;
  if (!is_header || header.sequence != sequence_)
    return core_.fail_out_of_step("the line of this collective");
  core_.fail(
      calls_differ(core_.place(), core_.number_of(sequence_), header, header_of(lines_.called())));
}

// The other way round.
void Ring::State::look_for_line() {
  const LineCall* const theirs = lines_.heard_of(sequence_);
  if (theirs == nullptr) return;
  core_.fail(calls_differ(core_.place(), core_.number_of(sequence_), header_of(*theirs), header_));
}

bool Ring::State::drop_wake(const RingInbox::Message& message) {
  RingWake wake;
  if (message.bytes != sizeof wake) return false;
  std::memcpy(&wake, message.data, sizeof wake);
  if (wake.type != RingMessage::wake) return false;
  inbox_.take(core_);
  return true;
}

bool Ring::State::exchange_headers() {
  bool moved = false;
  if (!has_sent_header_) moved = has_sent_header_ = send_header();
  if (has_left_header_) return moved;
  const RingInbox::Message message = inbox_.peek(core_);
  if (message.data == nullptr) return moved;
  if (drop_wake(message)) return true;
  has_left_header_ = take_header(message);
  return has_left_header_;
}

bool Ring::State::send_header() {
  if ((header_.flags & kCarriesChunk) == 0) return outbox_.send_header(core_, header_);
  Place from = run_.in(first_piece_);
  from.data -= kHeaderRoom;
  std::memcpy(from.data, &header_, kShortHeaderBytes);
  if (!outbox_.send_chunk(core_, from, kHeaderRoom + first_piece_.bytes)) return false;
  push_.on_sent_with_header(run_);
  return true;
}

// False after core_.fail().
bool Ring::State::take_header(const RingInbox::Message& message) {
  constexpr const char* kWanted = "the start of a collective";
  RingHeader header;
  if (message.bytes >= kShortHeaderBytes)
    std::memcpy(static_cast<void*>(&header), message.data, kShortHeaderBytes);
  const bool carries_chunk = (header.flags & kCarriesChunk) != 0;
  const bool has_remote = message.bytes == sizeof header && !carries_chunk;
  if (carries_chunk ? message.bytes <= kHeaderRoom
                    : message.bytes != kShortHeaderBytes && !has_remote) {
    core_.fail_out_of_step(kWanted);
    return false;
  }
  if (has_remote) std::memcpy(static_cast<void*>(&header), message.data, sizeof header);
  if (!is_header_right(header)) return false;
  if (carries_chunk) {
    if (pulls_ || !may_carry_chunk(header_.kind)) core_.fail_out_of_step(kWanted);
    inbox_.drop_front(kHeaderRoom);
    return !core_.has_failed();
  }
  if ((header.flags & kHasRemote) != 0) run_.set_left(header.part);
  pull_.on_header(core_, header);
  inbox_.take(core_);
  return true;
}

// Messages need no word of the left neighbour's to be sent, only its slots.
bool Ring::State::send_ahead() {
  if (!has_sent_header_ || pulls_ || header_.kind == Kind::broadcast) return false;
  return push_.send_chunks(core_, run_, outbox_);
}

bool Ring::State::is_header_right(const RingHeader& header) {
  const bool is_in_step = header.type == RingMessage::header && header.sequence == sequence_;
  const bool is_same = header.fingerprint == header_.fingerprint;
  if (!is_in_step || (is_same && (header.flags & kHasRemote) != (header_.flags & kHasRemote))) {
    core_.fail_out_of_step("the start of this collective");
    return false;
  }
  if (is_same) return true;
  core_.fail(calls_differ(core_.place(), core_.number_of(sequence_), header, header_));
  return false;
}

bool Ring::State::work() {
  if (header_.kind == Kind::broadcast) return broadcast_.advance(core_, run_);
  const bool moved = pulls_ ? pull_.advance(core_, run_, inbox_, outbox_)
                            : push_.advance(core_, run_, inbox_, outbox_);
  // At once after the addition, while the sum is in the cache.
  return gather_.advance(core_, run_) || moved;
}

// Something is still to come from the left neighbour, or to be read from it.
bool Ring::State::needs_left() const {
  if (!has_left_header_) return true;
  if (header_.kind == Kind::broadcast) return !broadcast_.has_received_all();
  return !(pulls_ ? pull_.waits_at() : push_.waits_at()).is_done() || !gather_.has_received_all();
}

// Something is still to be sent to the right neighbour, or on its way there.
bool Ring::State::needs_right() const {
  if (!has_sent_header_ || !outbox_.is_drained()) return true;
  if (header_.kind == Kind::broadcast) return !broadcast_.has_sent_all();
  return !(pulls_ ? pull_.has_said_all() : push_.has_sent_all()) || !gather_.has_sent_all();
}

void Ring::State::close() {
  waited_for_ = waiting_for();
  core_.links = {};
  run_.end();
  lines_.end();
  core_.fail({NORIA_E_ABORTED, "the ring was closed"});
}

std::string Ring::State::waiting_for() const {
  const std::string from = " from rank " + std::to_string(core_.place().left());
  if (lines_.is_active()) return line_awaited(from);
  if (!run_.is_active()) return waited_for_;
  const std::string to = "rank " + std::to_string(core_.place().right());
  if (!has_sent_header_) return to + " to take part";
  if (!has_left_header_)
    return "the start of collective " + std::to_string(core_.number_of(sequence_)) + from;

  const auto named = [&](uint32_t segment) {
    return "segment " + std::to_string(segment + 1) + " of " + std::to_string(run_.segments());
  };
  if (header_.kind == Kind::broadcast) {
    const uint32_t segment = std::min(broadcast_.waits_at_segment(), run_.segments() - 1);
    return broadcast_.is_root() ? to + " to take " + named(segment) : named(segment) + from;
  }
  const PipelineWalk& reducing = pulls_ ? pull_.waits_at() : push_.waits_at();
  if (!reducing.is_done()) {
    if (reducing.step() == 0 && !run_.is_ready(reducing.segment()))
      return named(reducing.segment()) + " to become ready on this rank";
    return named(reducing.segment()) + from;
  }
  if (const PipelineWalk& gathering = gather_.waits_at(); !gathering.is_done())
    return "the result of " + named(gathering.segment()) + from;
  return to + " to take the last of the result";
}

std::string Ring::State::line_awaited(const std::string& from) const {
  const RingPlace& place = core_.place();
  const uint32_t behind = lines_.taken() + 1;  // so far to the left is who gave it
  if (behind == 1)
    return "the start of collective " + std::to_string(core_.number_of(sequence_)) + from;
  if (behind == place.size) return "rank " + std::to_string(place.right()) + " to take part";
  const uint32_t rank = (place.rank + place.size - behind) % place.size;
  return "rank " + std::to_string(rank) + "'s part of collective " +
         std::to_string(core_.number_of(sequence_)) + from;
}

// ---- the handle --------------------------------------------------------------------------------

Outcome<std::unique_ptr<Ring>> Ring::over(transport::Domain& domain, RingPlace place,
                                          RingLinks links, RingFetch fetch, ControlPlane* control) {
  State::Memory memory;
  const std::pair<transport::Region*, uint64_t> needs[] = {
      {&memory.inbox, kInboxShape.slots * kInboxShape.slot_bytes},
      {&memory.outbox, sizeof(RingHeader)},
      {&memory.staging, RingRun::kStagingBytes},
      {&memory.scratch, fetch == RingFetch::message ? 0 : RingPull::kScratchBytes},
      {&memory.slots, fetch == RingFetch::by_memory ? RingGather::kSlotBytes : 0}};
  for (const auto& [region, bytes] : needs) {
    if (bytes == 0) continue;
    NORIA_TRY_ASSIGN(*region, allocate_for_ring(domain, place, bytes));
  }
  return std::unique_ptr<Ring>(new Ring(
      std::make_unique<State>(domain, place, std::move(links), fetch, std::move(memory), control)));
}

Ring::Ring(std::unique_ptr<State> state) : state_(std::move(state)) {}
Ring::~Ring() = default;

void Ring::start(Collective& collective) { state_->start(collective); }
Ring::Progress Ring::advance() { return state_->advance(); }
const Failure& Ring::failure() const { return state_->failure(); }
void Ring::close() { state_->close(); }
void Ring::start_counting() { state_->start_counting(); }
std::string Ring::waiting_for() const { return state_->waiting_for(); }
RingFetch Ring::fetch() const { return state_->fetch(); }

}  // namespace noria::bucketing
