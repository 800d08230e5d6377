// Arena: the one block of memory that holds all of a reducer's buckets.
//
// Zeroed. From the domain where there is one, so that it is registered once and peers may map it;
// plain memory for a single rank, which needs no device.
//
// Threads: one at a time; the memory itself is anybody's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "bucketing/failure.hpp"
#include "bucketing/plan.hpp"
#include "verbs/transport/domain.hpp"

namespace noria::bucketing {

// Behind the buckets lies the news, then the narrow image of the buckets, element for element.
struct ArenaLayout {
  uint64_t news = 0, wire = 0;  // offsets
  uint64_t bytes = 0;
};

class Arena {
 public:
  Arena() = default;

  // `domain` null: plain memory.
  static Outcome<Arena> create(transport::Domain* domain, uint64_t bytes) {
    Arena arena;
    if (domain != nullptr) {
      auto region = domain->allocate(bytes);
      if (!region.is_ok()) {
        const Status status = region.failure();
        std::string text = refused(bytes) + " on " + domain->describe() + ": " + cause_of(status);
        if (status.code() == Code::no_memory) text += kWhatToTry;
        return Failure{to_noria_status(status.code()), std::move(text)};
      }
      arena.region_ = std::move(region).value();
      arena.base_ = arena.region_.base();
      return arena;
    }
    // calloc takes large blocks from the system as they are: zeroed, and untouched until used.
    arena.plain_.reset(static_cast<std::byte*>(std::calloc(bytes + kBucketAlign, 1)));
    if (arena.plain_ == nullptr) return Failure{NORIA_E_NOMEM, refused(bytes) + kWhatToTry};
    const auto address = reinterpret_cast<uintptr_t>(arena.plain_.get());
    arena.base_ = arena.plain_.get() + (align_up(address, uintptr_t{kBucketAlign}) - address);
    return arena;
  }

  std::byte* base() const { return base_; }
  const transport::Region* region() const { return region_.is_valid() ? &region_ : nullptr; }

 private:
  struct Freer {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  static constexpr const char* kWhatToTry =
      "; raise the limits of memory (ulimit -l and -v), or the container's, or, in copy mode, set "
      "max_in_flight";
  static std::string refused(uint64_t bytes) {
    return "no " + std::to_string(bytes) + " bytes for the gradients";
  }

  transport::Region region_;
  std::unique_ptr<std::byte, Freer> plain_;
  std::byte* base_ = nullptr;
};

}  // namespace noria::bucketing
