// Flush: what arrived in another device's memory is seen there once a flush has completed.
//
// A write to a GPU is posted on the bus: the message that announces it may be complete before its
// bytes are there. A read by the same network device comes behind them and pushes them on. So each
// rail of a connection reads one byte of each memory that received something, over a queue pair
// that is connected to itself, on that rail alone.
//
// Made for a connection when it is first asked for: host memory never needs it, nor do GPUs that
// order by themselves, and a queue pair for each rail is not cheap.
//
// Threads: the owner of the domain.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "verbs/qp.hpp"
#include "verbs/transport/connection.hpp"
#include "verbs/transport/kept_storage.hpp"
#include "verbs/transport/region_state.hpp"
#include "verbs/transport/request_access.hpp"
#include "verbs/transport/wr_id.hpp"
#include "verbs/wr.hpp"

namespace noria::transport {

class Flush : public InKeptStorage {
 public:
  // Under way at once; also the completions that a rail's queue must have room for.
  static constexpr uint32_t kWindow = kMaxFlushes;

  // Enters the kernel. `id_base` leads completions to the connection.
  static Result<std::unique_ptr<Flush>> make(const RailSet& rails, uint64_t id_base);

  // Null when kWindow flushes are under way. Fails with the errno value of a refused post.
  Result<Request*> try_flush(std::span<const FlushPoint> points);
  void on_read(WrId id);
  void on_failed(Status status);
  void set_owner(void* owner) { RequestAccess::set_owner(requests_, owner); }

 private:
  explicit Flush(uint64_t id_base) : id_base_(id_base) {}

  const uint64_t id_base_;
  std::array<uint8_t, kMaxRails> bytes_{};  // what is read, and of no interest
  std::unique_ptr<RegionState> landing_;    // bytes_
  std::vector<verbs::Qp> loops_;            // one per rail
  uint64_t next_ = 0;
  std::array<Request, kWindow> requests_;
  verbs::RdmaWr read_{IBV_WR_RDMA_READ, 0};
};

}  // namespace noria::transport
