#include "verbs/transport/provider_memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.hpp"

namespace noria::transport {

struct ProviderMemory::Allocation {
  Allocation(const verbs::Api& of, ibv_context* made_by, void* at)
      : api(of), context(made_by), base(static_cast<std::byte*>(at)) {}
  ~Allocation() {
    if (const int error = api.symbols().noria_free(context, base); error != 0)
      log(LogLevel::warn, "ibv_noria_free failed (errno %d)", error);
  }
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;

  const verbs::Api& api;
  ibv_context* const context;
  std::byte* const base;
};

ProviderMemory::Piece& ProviderMemory::Piece::operator=(Piece&& other) noexcept {
  std::swap(in_, other.in_);
  std::swap(pool_, other.pool_);
  std::swap(index_, other.index_);
  return *this;
}

ProviderMemory::Piece::~Piece() {
  if (pool_ != nullptr) pool_->give_back(*this);
}

std::byte* ProviderMemory::Piece::base() const {
  return in_ != nullptr ? in_->base + index_ * kPieceBytes : nullptr;
}

bool ProviderMemory::exists() const {
  return api_->symbols().noria_alloc != nullptr && api_->symbols().noria_free != nullptr;
}

Result<std::shared_ptr<ProviderMemory::Allocation>> ProviderMemory::allocate(uint64_t bytes) const {
  void* const base = api_->symbols().noria_alloc(context_, bytes);
  if (base == nullptr) return Status::from_errno(Code::no_memory, errno);
  return std::make_shared<Allocation>(*api_, context_, base);
}

Result<ProviderMemory::Piece> ProviderMemory::take(uint64_t bytes) {
  Piece piece;
  if (bytes > kPieceBytes) {
    NORIA_TRY_ASSIGN(piece.in_, allocate(bytes));
    return piece;
  }
  bool was_written = false;
  {
    const MutexLock lock(mutex_);
    std::erase_if(shared_, [](const Shared& each) { return each.allocation.expired(); });
    auto found = std::find_if(shared_.begin(), shared_.end(),
                              [](const Shared& each) { return ~each.taken != 0; });
    if (found != shared_.end()) piece.in_ = found->allocation.lock();
    if (piece.in_ == nullptr) {  // there is none, or it went just now
      NORIA_TRY_ASSIGN(piece.in_, allocate(kPieces * kPieceBytes));
      shared_.push_back({.allocation = piece.in_});
      found = shared_.end() - 1;
    }
    piece.pool_ = this;
    piece.index_ = static_cast<uint32_t>(std::countr_one(found->taken));
    const uint64_t bit = uint64_t{1} << piece.index_;
    was_written = (found->written & bit) != 0;
    found->taken |= bit;
    found->written |= bit;
  }
  if (was_written) std::memset(piece.base(), 0, kPieceBytes);
  return piece;
}

void ProviderMemory::give_back(const Piece& piece) {
  const MutexLock lock(mutex_);
  for (Shared& each : shared_)
    if (each.allocation.lock() == piece.in_) each.taken &= ~(uint64_t{1} << piece.index_);
}

}  // namespace noria::transport
