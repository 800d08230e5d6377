#include "verbs/transport/region.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/log.hpp"
#include "base/units.hpp"
#include "verbs/transport/region_state.hpp"

namespace noria::transport {

OwnedMemory& OwnedMemory::operator=(OwnedMemory&& other) noexcept {
  std::swap(piece_, other.piece_);
  std::swap(pages_, other.pages_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

OwnedMemory::~OwnedMemory() {
  if (pages_ != nullptr) munmap(pages_, bytes_);
}

Result<OwnedMemory> OwnedMemory::allocate(const RailSet& rails, uint64_t bytes) {
  OwnedMemory memory;
  memory.bytes_ = align_up(bytes, static_cast<uint64_t>(sysconf(_SC_PAGESIZE)));
  if (memory.bytes_ < bytes) return Status(Code::bad_argument);
  ProviderMemory& provider = rails.rails.front().shared->provider_memory();
  if (provider.exists()) {
    auto piece = provider.take(memory.bytes_);
    if (piece) {
      memory.piece_ = std::move(*piece);
      return memory;
    }
    log(LogLevel::info, "ibv_noria_alloc of %llu bytes failed: taking plain pages",
        static_cast<unsigned long long>(memory.bytes_));
  }
  void* base =
      mmap(nullptr, memory.bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return Status::from_errno(Code::no_memory, errno);
  memory.pages_ = static_cast<std::byte*>(base);
  return memory;
}

Result<std::unique_ptr<RegionState>> RegionState::make(const RailSet& rails,
                                                       const MemoryRange& range, int fd) {
  std::unique_ptr<RegionState> state(new RegionState);
  state->base_ = reinterpret_cast<std::byte*>(range.address);
  state->bytes_ = range.bytes;
  // Devices refuse to register nothing; no work request ever names an empty range.
  for (size_t i = 0; range.bytes != 0 && i < rails.rails.size(); ++i) {
    state->ports_[i] = rails.rails[i].shared;
    NORIA_TRY_ASSIGN(state->mrs_[i], state->ports_[i]->registrations().take(range, fd));
    state->lkeys_[i] = state->mrs_[i]->lkey;
    state->rkeys_[i] = state->mrs_[i]->rkey;
  }
  return state;
}

Result<std::unique_ptr<RegionState>> RegionState::over(const RailSet& rails, void* base,
                                                       uint64_t bytes, verbs::Ordering ordering) {
  return make(rails,
              {.address = reinterpret_cast<uintptr_t>(base), .bytes = bytes, .ordering = ordering},
              -1);
}

Result<std::unique_ptr<RegionState>> RegionState::over(const RailSet& rails,
                                                       const DeviceMemory& memory,
                                                       verbs::Ordering ordering) {
  MemoryRange range{.address = reinterpret_cast<uintptr_t>(memory.base),
                    .bytes = memory.bytes,
                    .ordering = ordering};
  if (memory.dmabuf_fd >= 0) {
    range.way = MemoryRange::Way::descriptor;
    range.offset = memory.dmabuf_offset;
  }
  auto made = make(rails, range, memory.dmabuf_fd);
  if (!made && range.way == MemoryRange::Way::descriptor &&
      made.failure().code() == Code::unsupported) {
    rails.rails.front().shared->say_no_dmabuf(made.failure());
    range.way = MemoryRange::Way::address;
    range.offset = 0;
    made = make(rails, range, -1);
  }
  if (made) (*made)->is_of_device_ = true;
  return made;
}

Result<std::unique_ptr<RegionState>> RegionState::allocate(const RailSet& rails, uint64_t bytes,
                                                           verbs::Ordering ordering) {
  if (bytes == 0) return over(rails, nullptr, 0, ordering);
  NORIA_TRY_ASSIGN(OwnedMemory memory, OwnedMemory::allocate(rails, bytes));
  NORIA_TRY_ASSIGN(auto state, over(rails, memory.base(), bytes, ordering));
  state->memory_ = std::move(memory);
  return state;
}

Region::Region() = default;
Region::~Region() = default;
Region::Region(Region&&) noexcept = default;
Region& Region::operator=(Region&&) noexcept = default;
Region::Region(std::unique_ptr<RegionState> state) : state_(std::move(state)) {}

std::byte* Region::base() const { return state_ != nullptr ? state_->base() : nullptr; }
uint64_t Region::bytes() const { return state_ != nullptr ? state_->bytes() : 0; }
bool Region::is_of_device() const { return state_ != nullptr && state_->is_of_device(); }
RemoteRegion Region::remote() const {
  if (state_ == nullptr) return {};
  return {.address = state_->address(), .bytes = state_->bytes(), .rkeys = state_->remote_keys()};
}

}  // namespace noria::transport
