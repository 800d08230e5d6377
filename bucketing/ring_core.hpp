// What the phases of a ring share: its place, its connections to the neighbours, and the first
// failure, which is sticky.
//
// Threads: the engine's driver, one at a time.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "bucketing/failure.hpp"
#include "bucketing/request_fifo.hpp"
#include "bucketing/ring_schedule.hpp"
#include "verbs/transport/connection.hpp"
#include "verbs/transport/domain.hpp"

namespace noria::bucketing {

// How the reduce phase gets the left neighbour's chunk; all ranks agree on it.
enum class RingFetch : uint8_t {
  // A device that moves bytes by the CPU: reads of memory that it allocated, which peers map, and
  // messages through such memory where the caller's own memory would have to be attached to.
  by_memory = 0,
  read = 1,
  message = 2,
};

// Two one-way connections to each neighbour, so that the order of messages on each is fixed. With
// two ranks both neighbours are the same rank.
struct RingLinks {
  std::unique_ptr<transport::RecvConnection> reduce_in;  // from the left
  std::unique_ptr<transport::RecvConnection> gather_in;
  std::unique_ptr<transport::SendConnection> reduce_out;  // to the right
  std::unique_ptr<transport::SendConnection> gather_out;
  // Where the left neighbour's lines land, RingLines::bytes_of() that are watched; and where this
  // rank's do. reduce_out sends them.
  transport::Region lines_in;
  transport::RemoteRegion lines_out;
};

// Memory of the ring's own, with the text of its failure.
inline Outcome<transport::Region> allocate_for_ring(
    transport::Domain& domain, const RingPlace& place, uint64_t bytes,
    transport::Watched watched = transport::Watched::no) {
  auto allocated = domain.allocate(bytes, watched);
  if (allocated) return std::move(*allocated);
  return Failure{to_noria_status(allocated.failure().code()),
                 "rank " + std::to_string(place.rank) +
                     " has no memory for the ring: " + std::to_string(bytes) + " bytes from " +
                     domain.describe() + ": " + cause_of(allocated.failure())};
}

class RingCore {
 public:
  RingCore(transport::Domain& domain, RingPlace place) : domain_(domain), place_(place) {}

  transport::Domain& domain() { return domain_; }
  const RingPlace& place() const { return place_; }
  uint32_t steps() const { return place_.size - 1; }

  bool has_failed() const { return failure_.code != NORIA_OK; }
  const Failure& failure() const { return failure_; }
  NORIA_COLD void fail(Failure failure) {
    if (!has_failed()) failure_ = std::move(failure);
  }

  // By which number texts call the collective of this sequence: those that the caller made count.
  uint64_t number_of(uint64_t sequence) const { return sequence - not_counted_; }
  void count_after(uint64_t sequence) { not_counted_ = sequence; }

  // The left neighbour sent what cannot come now.
  NORIA_COLD void fail_out_of_step(const char* wanted) {
    fail({NORIA_E_INTERNAL, "rank " + std::to_string(place_.left()) + " is out of step with rank " +
                                std::to_string(place_.rank) + ": what it sent is not " + wanted});
  }

  // Called when a try_ call gave nothing: that is *not yet*, unless the connection failed.
  template <class Connection>
  NORIA_HOT void check(const Connection& connection) {
    if (const Status status = connection.status(); !status.is_ok()) [[unlikely]]
      fail_connection(status, connection.describe());
  }

  // A neighbour that is gone is found out even where nothing is under way to it now.
  NORIA_HOT void check_left() {
    check(*links.reduce_in);
    check(*links.gather_in);
  }
  NORIA_HOT void check_right() {
    check(*links.reduce_out);
    check(*links.gather_out);
  }

  // Takes the oldest request off if it is done. False: nothing to take, or it failed.
  template <class Connection>
  NORIA_HOT bool take_done(RequestFifo& fifo, Connection& connection, uint64_t* bytes = nullptr) {
    if (fifo.is_empty() || !fifo.front_is_done()) return false;
    if (bytes != nullptr) *bytes = 0;
    if (transport::Request* request = fifo.front(); request != nullptr) {
      if (!request->status().is_ok()) [[unlikely]] {
        fail_connection(request->status(), connection.describe());
        return false;
      }
      if (bytes != nullptr) *bytes = request->bytes();
      connection.release(request);
    }
    fifo.pop();
    return true;
  }

  RingLinks links;

 private:
  NORIA_COLD void fail_connection(const Status& status, std::string text) {
    fail({to_noria_status(status.code()), std::move(text)});
  }

  transport::Domain& domain_;
  RingPlace place_;
  Failure failure_{NORIA_OK, {}};
  uint64_t not_counted_ = 0;
};

}  // namespace noria::bucketing
