// Region: memory that a Domain registered, and RemoteRegion: a peer's, as it travels on the wire.
//
// A Region may be made from any thread and is deregistered with the object, unless another Region
// of the same range on the same port still stands; no byte lands in it after the destructor of the
// last returns. Memory made by Domain::allocate() belongs to its Region.
//
// Threads: one at a time per object; distinct objects from any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace noria::transport {

inline constexpr unsigned kMaxRails = 8;  // ports of one domain: as many as NCCL fuses
// Reads go over the first rails only, so that what travels of a region stays half a line.
inline constexpr unsigned kMaxReadRails = 4;

// Everything a peer needs to read the memory. Wire layout: fixed width, trivially copyable.
struct RemoteRegion {
  uint64_t address = 0;
  uint64_t bytes = 0;
  std::array<uint32_t, kMaxReadRails> rkeys{};  // one per rail
};
static_assert(sizeof(RemoteRegion) == 32);

// Memory of another device, a GPU: by the descriptor that its driver exports it by, or, where that
// is -1, by its address, which a peer memory module of the kernel must understand.
struct DeviceMemory {
  void* base = nullptr;
  uint64_t bytes = 0;
  int dmabuf_fd = -1;  // may be closed when it is registered
  uint64_t dmabuf_offset = 0;
};

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
  bool is_of_device() const;    // what arrives may need a flush: RecvConnection::try_flush()
  bool is_valid() const { return state_ != nullptr; }

  const RegionState* state() const { return state_.get(); }

 private:
  friend class Domain;
  explicit Region(std::unique_ptr<RegionState> state);
  std::unique_ptr<RegionState> state_;
};

}  // namespace noria::transport
