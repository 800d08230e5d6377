// ChangedQps: the queue pairs of ours of which peers over TCP are to be told again.
//
// So that who looks, at every poll, pays for what has changed and not for all that is watched: one
// load where nothing has. A change costs two locked instructions.
//
// Threads: note(): any thread; take(): one at a time.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "verbs/soft/shared_layout.hpp"

namespace noria::soft {

// A bit for each queue pair of a process.
inline constexpr size_t kQpWords = kMaxQps / 64;
using QpBits = std::array<uint64_t, kQpWords>;

class ChangedQps {
 public:
  // What changed was written before: who takes the note sees it.
  void note(uint32_t index) {
    words_[index / 64].fetch_or(uint64_t{1} << index % 64, std::memory_order_release);
    is_any_.store(true, std::memory_order_release);
  }

  // Calls `each(word, bits)` where any of queue pairs 64 * word to 64 * word + 63 was noted.
  template <class Each>
  void take(Each each) {
    // acquire in both: pairs with note().
    if (!is_any_.load(std::memory_order_relaxed) ||
        !is_any_.exchange(false, std::memory_order_acquire))
      return;
    for (size_t word = 0; word < words_.size(); ++word)
      if (const uint64_t bits = words_[word].exchange(0, std::memory_order_acquire); bits != 0)
        each(word, bits);
  }

 private:
  std::array<std::atomic<uint64_t>, kQpWords> words_{};
  std::atomic<bool> is_any_{false};
};

}  // namespace noria::soft
