// Region: memory that a Domain registered, and RemoteRegion: a peer's, as it travels on the wire.
//
// A Region may be made from any thread and is deregistered with the object; no byte lands in it
// after its destructor returns. Memory made by Domain::allocate() belongs to its Region.
//
// Threads: one at a time per object; distinct objects from any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace noria::transport {

inline constexpr unsigned kMaxRails = 4;

// Everything a peer needs to read or write the memory. Wire layout: fixed width, trivially
// copyable.
struct RemoteRegion {
  uint64_t address = 0;
  uint64_t bytes = 0;
  std::array<uint32_t, kMaxRails> rkeys{};
};
static_assert(sizeof(RemoteRegion) == 32);

class RegionState;  // the registrations, one per rail

class Region {
 public:
  Region();
  ~Region();
  Region(Region&&) noexcept;
  Region& operator=(Region&&) noexcept;

  std::byte* base() const;
  uint64_t bytes() const;
  RemoteRegion remote() const;  // what to hand to a peer
  bool is_valid() const { return state_ != nullptr; }

  const RegionState* state() const { return state_.get(); }

 private:
  friend class Domain;
  explicit Region(std::unique_ptr<RegionState> state);
  std::unique_ptr<RegionState> state_;
};

}  // namespace noria::transport
