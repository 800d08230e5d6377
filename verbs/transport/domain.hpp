// Domain: the unit of progress. Completion queues of all rails, whose ports are its own or shared,
// and every connection that was handed to it.
//
// Nothing moves unless its owner calls poll(): the transport has no thread. poll() never blocks,
// allocates or logs unless something failed. arm_and_wait() is for owners that may sleep; it spins
// not at all: the caller spins by calling poll() as long as it likes and then sleeps here.
//
// Threads: poll() and arm_and_wait(): one owner at a time, as do all calls on the connections of
// this domain; the owner may change between calls if the hand-over synchronises. register_region()
// and allocate(): any thread, and never a lock on the data path.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/counters.hpp"
#include "base/params.hpp"
#include "base/result.hpp"
#include "base/verbs_extensions.hpp"
#include "verbs/provider.hpp"
#include "verbs/transport/region.hpp"

namespace noria::transport {

class Port;
class DomainState;  // shared by the connections of a domain; private to this folder

enum class Watched : bool { no, yes };

class Domain {
 public:
  // Opens the first active port of the provider and those of its kind (InfiniBand or Ethernet), in
  // order, `rails` in all (at most kMaxRails; 0 takes one).
  // `params` is copied where needed. Fails with Code::device_lost when no port is active.
  static Result<std::unique_ptr<Domain>> create(
      const std::shared_ptr<const verbs::Provider>& provider, const Params& params,
      unsigned rails = 1);
  // Over ports that are open (1 to kMaxRails, else Code::bad_argument), with completion queues for
  // one connection: for who has hundreds of connections, of each of which another thread may be the
  // owner. Costs no descriptor; arm_and_wait() answers Code::unsupported.
  static Result<std::unique_ptr<Domain>> create_for_one(
      std::span<const std::shared_ptr<Port>> ports, const Params& params);
  ~Domain();  // connections must be gone
  Domain(const Domain&) = delete;
  Domain& operator=(const Domain&) = delete;

  // Registers memory of the caller for local and remote access on every rail. `base` must stay
  // mapped until the Region is gone. Zero bytes are fine.
  Result<Region> register_region(void* base, uint64_t bytes);
  // The same of another device's memory. Where a descriptor cannot be registered, by its address.
  Result<Region> register_region(const DeviceMemory& memory);

  // Zeroed, page-aligned, registered memory that belongs to the Region; memory that peers map where
  // the provider has it, so that traffic to it is loads and stores.
  // Watched: its owner looks at the memory itself, as at lines, and not at completions only.
  Result<Region> allocate(uint64_t bytes, Watched watched = Watched::no);

  // Handles completions, a batch of each queue at most; returns how many.
  NORIA_HOT unsigned poll();

  // Sleeps until a completion may be there, `wake_fd` (an eventfd; -1 for none) is readable, or the
  // deadline has passed. Completions that arrived before the call are never slept through. Does not
  // read wake_fd. Ok in all three cases: the caller polls and looks.
  Status arm_and_wait(Nanoseconds deadline, int wake_fd);

  bool reads_are_cheap() const;  // pull rather than push
  unsigned rails() const;
  // Equal for domains over the same ports in the same order, while one of them stands: memory that
  // one registered serves the connections of all of them.
  uint64_t ports() const;
  std::string describe() const;  // "noria0 port 1 (software HCA, cross-memory attach)"
  // Payload bytes counted by the devices of all rails; zeros where the provider does not count.
  VerbsStats stats() const;
  // What its connections counted so far. Any thread.
  uint64_t counted(Counter counter) const;

  DomainState& state() { return *state_; }

 private:
  explicit Domain(std::unique_ptr<DomainState> state);
  std::unique_ptr<DomainState> state_;
};

}  // namespace noria::transport
