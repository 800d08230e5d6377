// RegionState: one piece of memory and its registrations, one per rail, each shared with whoever
// registered the same range on that port.
//
// Threads: made by any thread; immutable until destroyed.
#pragma once

#include <algorithm>
#include <array>
#include <memory>

#include "verbs/transport/rails.hpp"
#include "verbs/transport/region.hpp"

namespace noria::transport {

// Memory that allocate() made: the provider's, which peers map, or plain pages.
class OwnedMemory {
 public:
  OwnedMemory() = default;
  OwnedMemory(OwnedMemory&& other) noexcept { *this = std::move(other); }
  OwnedMemory& operator=(OwnedMemory&& other) noexcept;
  ~OwnedMemory();
  static Result<OwnedMemory> allocate(const RailSet& rails, uint64_t bytes);

  std::byte* base() const { return pages_ != nullptr ? pages_ : piece_.base(); }
  bool is_mapped_by_peers() const { return piece_.base() != nullptr; }

 private:
  ProviderMemory::Piece piece_;
  std::byte* pages_ = nullptr;  // where the provider has none
  uint64_t bytes_ = 0;
};

class RegionState {
 public:
  static Result<std::unique_ptr<RegionState>> over(const RailSet& rails, void* base, uint64_t bytes,
                                                   verbs::Ordering ordering);
  static Result<std::unique_ptr<RegionState>> over(const RailSet& rails, const DeviceMemory& memory,
                                                   verbs::Ordering ordering);
  static Result<std::unique_ptr<RegionState>> allocate(const RailSet& rails, uint64_t bytes,
                                                       verbs::Ordering ordering);

  std::byte* base() const { return base_; }
  uint64_t bytes() const { return bytes_; }
  uint64_t address() const { return reinterpret_cast<uintptr_t>(base_); }
  uint32_t lkey(unsigned rail) const { return lkeys_[rail]; }
  const std::array<uint32_t, kMaxRails>& rkeys() const { return rkeys_; }
  bool is_of_device() const { return is_of_device_; }
  bool is_mapped_by_peers() const { return memory_.is_mapped_by_peers(); }
  std::array<uint32_t, kMaxReadRails> remote_keys() const {  // as a RemoteRegion has them
    std::array<uint32_t, kMaxReadRails> keys;
    std::copy_n(rkeys_.data(), keys.size(), keys.data());
    return keys;
  }
  // Whether [offset, offset + bytes) lies inside.
  bool contains(uint64_t offset, uint64_t bytes) const {
    return offset <= bytes_ && bytes <= bytes_ - offset;
  }

 private:
  RegionState() = default;
  static Result<std::unique_ptr<RegionState>> make(const RailSet& rails, const MemoryRange& range,
                                                   int fd);

  // A registration never outlives the protection domain it belongs to, whatever order the owners of
  // regions and connections drop them in.
  std::array<std::shared_ptr<Port>, kMaxRails> ports_;
  OwnedMemory memory_;
  std::array<MrShare, kMaxRails> mrs_;
  std::byte* base_ = nullptr;
  uint64_t bytes_ = 0;
  bool is_of_device_ = false;
  std::array<uint32_t, kMaxRails> lkeys_{}, rkeys_{};
};

}  // namespace noria::transport
