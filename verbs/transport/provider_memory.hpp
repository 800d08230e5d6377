// ProviderMemory: memory of the provider's own allocator, which peers map, for those who open a
// port (base/verbs_extensions.hpp). A network card's provider has none.
//
// An allocation costs a descriptor, and every peer a mapping. So what is small is a piece of one
// that 64 share, and a thousand connections take a few dozen descriptors. An allocation goes back
// with its last piece.
//
// Threads: any thread; never used on the data path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "base/units.hpp"
#include "verbs/api.hpp"

namespace noria::transport {

class ProviderMemory {
  struct Allocation;

 public:
  static constexpr uint64_t kPieceBytes = 16_KiB;  // a ring of 64 bytes for each of the window

  // Zeroed and page-aligned. Deregister what lies in it first.
  class Piece {
   public:
    Piece() = default;
    Piece(Piece&& other) noexcept { *this = std::move(other); }
    Piece& operator=(Piece&& other) noexcept;
    ~Piece();
    std::byte* base() const;

   private:
    friend class ProviderMemory;
    std::shared_ptr<Allocation> in_;
    ProviderMemory* pool_ = nullptr;  // null where the allocation is its own
    uint32_t index_ = 0;
  };

  ProviderMemory(const verbs::Api& api, ibv_context* context) : api_(&api), context_(context) {}

  bool exists() const;
  // The failure is the provider's. Must outlive the piece.
  Result<Piece> take(uint64_t bytes) NORIA_EXCLUDES(mutex_);

 private:
  static constexpr uint32_t kPieces = 64;  // of an allocation: a bit for each
  struct Shared {
    std::weak_ptr<Allocation> allocation;
    uint64_t taken = 0;
    uint64_t written = 0;  // by who had the piece before
  };

  Result<std::shared_ptr<Allocation>> allocate(uint64_t bytes) const;
  void give_back(const Piece& piece) NORIA_EXCLUDES(mutex_);

  const verbs::Api* const api_;
  ibv_context* const context_;
  Mutex mutex_;
  std::vector<Shared> shared_ NORIA_GUARDED_BY(mutex_);
};

}  // namespace noria::transport
