#include "bucketing/ring.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "bucketing/ring_state.hpp"

namespace noria::bucketing {
namespace {

const char* kind_name(Kind kind) {
  switch (kind) {
    case Kind::all_reduce: return "all_reduce";
    case Kind::broadcast: return "broadcast";
    case Kind::barrier: return "barrier";
    case Kind::reduce_scatter: return "reduce_scatter";
    case Kind::all_gather: return "all_gather";
  }
  return "unknown collective";
}

// "all_reduce of 100 float32, sum"
std::string describe(const RingHeader& header) {
  std::string text = kind_name(header.kind);
  if (header.kind == Kind::barrier) return text;
  if (header.parts > 1) text = "a step of " + std::to_string(header.parts) + " parts";
  text += " of " + std::to_string(header.count) + ' ' + dtype_name(header.dtype);
  if (header.kind == Kind::broadcast) return text + " from rank " + std::to_string(header.root);
  if (header.kind == Kind::all_gather) return text;
  return text + ", " + op_name(header.op);
}

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
      run_(std::move(memory.barrier), std::move(memory.staging)),
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
  core_.domain().poll();
  if (!run_.is_active()) return Progress::none;

  bool moved = has_sent_header_ && has_left_header_ ? work() : exchange_headers() || send_ahead();
  moved |= outbox_.collect(core_);
  if (!moved) {
    // A neighbour that has ended this collective may leave, while this rank still waits for the
    // other one: what it owed is here.
    if (needs_left()) core_.check_left();
    if (needs_right()) core_.check_right();
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

bool Ring::State::exchange_headers() {
  bool moved = false;
  if (!has_sent_header_) moved = has_sent_header_ = send_header();
  if (has_left_header_) return moved;
  const RingInbox::Message message = inbox_.peek(core_);
  if (message.data == nullptr) return moved;
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
  const bool is_order = header.kind != header_.kind || header.parts != header_.parts;
  const std::string theirs = describe(header), ours = describe(header_);
  core_.fail({is_order ? NORIA_E_ORDER : NORIA_E_MISMATCH,
              "collective " + std::to_string(sequence_) + " differs: rank " +
                  std::to_string(core_.place().left()) + " called " + theirs + ", rank " +
                  std::to_string(core_.place().rank) + " called " + ours +
                  // The header has no room for the parts of parts.
                  (theirs == ours ? ", cut into other counts or of another reducer" : "") +
                  "; all ranks must call the same in the same order"});
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
  core_.fail({NORIA_E_ABORTED, "the ring was closed"});
}

std::string Ring::State::waiting_for() const {
  if (!run_.is_active()) return waited_for_;
  const std::string from = " from rank " + std::to_string(core_.place().left());
  const std::string to = "rank " + std::to_string(core_.place().right());
  if (!has_sent_header_) return to + " to take part";
  if (!has_left_header_) return "the start of collective " + std::to_string(sequence_) + from;

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

// ---- the handle --------------------------------------------------------------------------------

Outcome<std::unique_ptr<Ring>> Ring::over(transport::Domain& domain, RingPlace place,
                                          RingLinks links, RingFetch fetch, ControlPlane* control) {
  State::Memory memory;
  const std::pair<transport::Region*, uint64_t> needs[] = {
      {&memory.inbox, kInboxShape.slots * kInboxShape.slot_bytes},
      {&memory.outbox, sizeof(RingHeader)},
      {&memory.barrier, sizeof(int64_t)},
      {&memory.staging, RingRun::kStagingBytes},
      {&memory.scratch, fetch == RingFetch::message ? 0 : RingPull::kScratchBytes},
      {&memory.slots, fetch == RingFetch::by_memory ? RingGather::kSlotBytes : 0}};
  for (const auto& [region, bytes] : needs) {
    if (bytes == 0) continue;
    auto allocated = domain.allocate(bytes);
    if (!allocated)
      return Failure{to_noria_status(allocated.failure().code()),
                     "rank " + std::to_string(place.rank) +
                         " has no memory for the ring: " + std::to_string(bytes) + " bytes from " +
                         domain.describe() + ": " + to_string(allocated.failure().code())};
    *region = std::move(allocated).value();
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
std::string Ring::waiting_for() const { return state_->waiting_for(); }
RingFetch Ring::fetch() const { return state_->fetch(); }

}  // namespace noria::bucketing
