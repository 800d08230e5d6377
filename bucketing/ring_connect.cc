// How ranks become a ring: one gather in which all say how they would fetch and where they listen,
// then four handshakes a rank, polled side by side.

#include <time.h>

#include <cstring>
#include <vector>

#include "base/fingerprint.hpp"
#include "bucketing/ring.hpp"
#include "bucketing/ring_state.hpp"
#include "verbs/transport/listener.hpp"

namespace noria::bucketing {
namespace {

// What each rank tells all others. Fixed width, trivially copyable.
struct Offer {
  RingFetch fetch = RingFetch::by_memory;  // what its user asks for; by_memory: nothing
  uint8_t reads_are_cheap = 0;
  uint8_t reserved[6] = {};
  transport::Handle reduce, gather;  // where the left neighbour connects to
  transport::RemoteRegion lines;     // and writes lines to
};
static_assert(std::is_trivially_copyable_v<Offer> && sizeof(Offer) == 296);

RingFetch wanted_fetch(const Params& params) {
  if (params.ring_fetch == "read") return RingFetch::read;
  return params.ring_fetch == "message" ? RingFetch::message : RingFetch::by_memory;
}

std::string rank_name(uint32_t rank) { return "rank " + std::to_string(rank); }

// The same on all ranks: who asks for a way gets it, else what the devices are good at.
Outcome<RingFetch> agree_on_fetch(const std::vector<Offer>& offers) {
  bool all_cheap = true;
  RingFetch agreed = RingFetch::by_memory;
  size_t asked_by = 0;
  for (size_t rank = 0; rank < offers.size(); ++rank) {
    const Offer& offer = offers[rank];
    all_cheap &= offer.reads_are_cheap != 0;
    if (offer.fetch == RingFetch::by_memory || offer.fetch == agreed) continue;
    if (agreed != RingFetch::by_memory) {
      const bool is_read = agreed == RingFetch::read;
      return Failure{NORIA_E_MISMATCH, "NORIA_RING_FETCH is " +
                                           std::string(is_read ? "read" : "message") + " on rank " +
                                           std::to_string(asked_by) + " and " +
                                           (is_read ? "message" : "read") + " on rank " +
                                           std::to_string(rank) + ": set it alike on all ranks"};
    }
    agreed = offer.fetch;
    asked_by = rank;
  }
  return agreed == RingFetch::by_memory && !all_cheap ? RingFetch::message : agreed;
}

Failure transport_failure(const Status& status, const std::string& doing,
                          const std::string& cause) {
  return {to_noria_status(status.code()), doing + ": " + cause};
}

// The handshakes of one rank.
class Handshakes {
 public:
  Handshakes(transport::Domain& domain, RingPlace place) : domain_(domain), place_(place) {}

  Outcome<Ok> listen(const std::string& host, const transport::ConnectOptions& from_left) {
    for (auto* listener : {&reduce_listener_, &gather_listener_}) {
      auto opened = transport::Listener::open(domain_, host, from_left);
      if (!opened)
        return transport_failure(opened.failure(),
                                 rank_name(place_.rank) + " cannot listen on " + host,
                                 cause_of(opened.failure()));
      *listener = std::move(opened).value();
    }
    return Ok{};
  }
  const transport::Handle& reduce_handle() const { return reduce_listener_->handle(); }
  const transport::Handle& gather_handle() const { return gather_listener_->handle(); }

  Outcome<Ok> call(const Offer& right, const transport::ConnectOptions& to_right) {
    transport::ConnectOptions with_lines = to_right;
    with_lines.sends_lines = true;
    NORIA_TRY_ASSIGN(reduce_connector_, start(right.reduce, with_lines));
    NORIA_TRY_ASSIGN(gather_connector_, start(right.gather, to_right));
    return Ok{};
  }

  // True when all four are done.
  Outcome<bool> poll() {
    NORIA_TRY(accept(*reduce_listener_, &links_.reduce_in));
    NORIA_TRY(accept(*gather_listener_, &links_.gather_in));
    NORIA_TRY(finish(*reduce_connector_, &links_.reduce_out));
    NORIA_TRY(finish(*gather_connector_, &links_.gather_out));
    return links_.reduce_in && links_.gather_in && links_.reduce_out && links_.gather_out;
  }
  RingLinks take_links() { return std::move(links_); }

  std::string missing() const {
    std::string text;
    if (!links_.reduce_in || !links_.gather_in)
      text = rank_name(place_.left()) + " did not connect";
    if (!links_.reduce_out || !links_.gather_out)
      text += (text.empty() ? "" : ", ") + rank_name(place_.right()) + " did not answer";
    return text;
  }

 private:
  Outcome<std::unique_ptr<transport::Connector>> start(const transport::Handle& handle,
                                                       const transport::ConnectOptions& options) {
    auto started = transport::Connector::start(domain_, handle, options);
    if (!started)
      return transport_failure(started.failure(),
                               rank_name(place_.rank) + " cannot connect to " + options.peer_name,
                               cause_of(started.failure()));
    return std::move(started).value();
  }

  Outcome<Ok> accept(transport::Listener& listener,
                     std::unique_ptr<transport::RecvConnection>* connection) {
    if (*connection) return Ok{};
    auto accepted = listener.try_accept();
    if (!accepted)
      return transport_failure(accepted.failure(),
                               "the ring connection from " + rank_name(place_.left()) + " to " +
                                   rank_name(place_.rank) + " failed",
                               listener.describe());
    *connection = std::move(accepted).value();
    return Ok{};
  }

  Outcome<Ok> finish(transport::Connector& connector,
                     std::unique_ptr<transport::SendConnection>* connection) {
    if (*connection) return Ok{};
    auto finished = connector.try_finish();
    if (!finished)
      return transport_failure(finished.failure(),
                               "the ring connection from " + rank_name(place_.rank) + " to " +
                                   rank_name(place_.right()) + " failed",
                               connector.describe());
    *connection = std::move(finished).value();
    return Ok{};
  }

  transport::Domain& domain_;
  RingPlace place_;
  std::unique_ptr<transport::Listener> reduce_listener_, gather_listener_;
  std::unique_ptr<transport::Connector> reduce_connector_, gather_connector_;
  RingLinks links_;
};

Outcome<std::vector<Offer>> exchange_offers(ControlPlane& control, const Offer& own,
                                            Nanoseconds deadline) {
  NORIA_TRY_ASSIGN(
      const std::vector<std::string> texts,
      control.all_gather("ring: offers",
                         std::string(reinterpret_cast<const char*>(&own), sizeof own), deadline));
  std::vector<Offer> offers(texts.size());
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank].size() != sizeof(Offer))
      return Failure{NORIA_E_MISMATCH, rank_name(static_cast<uint32_t>(rank)) +
                                           " runs another version of noria: its offer to the ring "
                                           "has another size"};
    std::memcpy(static_cast<void*>(&offers[rank]), texts[rank].data(), sizeof(Offer));
  }
  return offers;
}

// Everything that neighbours must agree on beside the offers.
uint64_t settings_fingerprint() {
  Fingerprint fingerprint;
  for (const uint64_t value : {uint64_t{kRingWireVersion}, kChunkBytes, kChunkAlign})
    fingerprint.add(value);
  return fingerprint.value();
}

}  // namespace

Outcome<std::unique_ptr<Ring>> Ring::connect(transport::Domain& domain, ControlPlane& control,
                                             const Params& params, const std::string& host,
                                             Nanoseconds deadline) {
  const RingPlace place{.rank = static_cast<uint32_t>(control.rank()),
                        .size = static_cast<uint32_t>(control.size())};
  // Reads or messages is not part of it: listeners are open before that is settled.
  transport::ConnectOptions from_left{.fingerprint = settings_fingerprint(),
                                      .peer_name = rank_name(place.left())};
  transport::ConnectOptions to_right = from_left;
  to_right.peer_name = rank_name(place.right());

  NORIA_TRY_ASSIGN(
      transport::Region lines,
      allocate_for_ring(domain, place, RingLines::bytes_of(place.size), transport::Watched::yes));
  Handshakes handshakes(domain, place);
  NORIA_TRY(handshakes.listen(host, from_left));
  const Offer own{.fetch = wanted_fetch(params),
                  .reads_are_cheap = domain.reads_are_cheap(),
                  .reduce = handshakes.reduce_handle(),
                  .gather = handshakes.gather_handle(),
                  .lines = lines.remote()};
  NORIA_TRY_ASSIGN(const std::vector<Offer> offers, exchange_offers(control, own, deadline));
  NORIA_TRY_ASSIGN(const RingFetch fetch, agree_on_fetch(offers));
  NORIA_TRY(handshakes.call(offers[place.right()], to_right));

  for (;;) {
    NORIA_TRY_ASSIGN(const bool is_done, handshakes.poll());
    if (is_done) break;
    if (control.failed()) return control.failure();
    if (now_ns() > deadline)
      return Failure{NORIA_E_TIMEOUT,
                     "the ring was not connected in time: " + handshakes.missing() +
                         "; raise NORIA_START_TIMEOUT_MS if hosts are slow"};
    const timespec pause{.tv_sec = 0, .tv_nsec = 100'000};  // a handshake takes as long
    nanosleep(&pause, nullptr);
  }
  RingLinks links = handshakes.take_links();
  links.lines_in = std::move(lines);
  links.lines_out = offers[place.right()].lines;
  return over(domain, place, std::move(links), fetch, &control);
}

Outcome<Ok> Ring::exchange_parts(Collective& collective, Nanoseconds deadline) {
  std::vector<RemotePart> own;
  for (const Part& part : collective.parts) {
    NORIA_CHECK(part.in_region != nullptr && part.out_region != nullptr,
                "parts to be exchanged lie in registered memory");
    own.push_back({.in_region = part.in_region->remote(),
                   .out_region = part.out_region->remote(),
                   .in_offset = static_cast<uint64_t>(part.in - part.in_region->base()),
                   .out_offset = static_cast<uint64_t>(part.out - part.out_region->base())});
  }
  const uint64_t bytes = own.size() * sizeof(RemotePart);
  NORIA_TRY_ASSIGN(
      const std::string left,
      state_->control().pass_right(
          "ring: parts", std::string(reinterpret_cast<const char*>(own.data()), bytes), deadline));
  collective.left.resize(own.size());
  std::memcpy(static_cast<void*>(collective.left.data()), left.data(), bytes);
  return Ok{};
}

}  // namespace noria::bucketing
