// Counters: what was decided, and how often.
//
// The rows live in counters.def. Whoever counts owns a CounterCells and is its only writer, so a
// count is a load, an addition and a store, with no locked instruction. Readers sum over all cells
// that live and those that are gone. Counts of a process never go down.
//
// Cost: making and ending a CounterCells takes a mutex; add() about a nanosecond.
//
// Threads: add() the owner; counter_totals() any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/check.hpp"
#include "base/mutex.hpp"

namespace noria {

enum class Counter : uint8_t {
#define NORIA_COUNTER(name, unit, sentence) name,
#include "base/counters.def"
#undef NORIA_COUNTER
};

struct CounterRow {
  const char* name;
  const char* unit;
  const char* sentence;
};

inline constexpr auto kCounterRows = std::to_array<CounterRow>({
#define NORIA_COUNTER(name, unit, sentence) {#name, unit, sentence},
#include "base/counters.def"
#undef NORIA_COUNTER
});

using CounterTotals = std::array<uint64_t, kCounterRows.size()>;

class CounterCells;

namespace detail {

struct CounterRegistry {
  Mutex mutex;
  CounterCells* first NORIA_GUARDED_BY(mutex) = nullptr;
  CounterTotals departed NORIA_GUARDED_BY(mutex){};  // sums of the cells that are gone
};
inline constinit CounterRegistry counter_registry;

}  // namespace detail

class CounterCells {
 public:
  CounterCells() {
    detail::CounterRegistry& registry = detail::counter_registry;
    MutexLock lock(registry.mutex);
    next_ = registry.first;
    if (next_ != nullptr) next_->previous_ = this;
    registry.first = this;
  }
  ~CounterCells() {
    detail::CounterRegistry& registry = detail::counter_registry;
    MutexLock lock(registry.mutex);
    for (size_t i = 0; i < cells_.size(); ++i) registry.departed[i] += value(i);
    (previous_ != nullptr ? previous_->next_ : registry.first) = next_;
    if (next_ != nullptr) next_->previous_ = previous_;
  }
  CounterCells(const CounterCells&) = delete;
  CounterCells& operator=(const CounterCells&) = delete;

  NORIA_HOT void add(Counter counter, uint64_t count = 1) {
    std::atomic<uint64_t>& cell = cells_[static_cast<size_t>(counter)];
    // relaxed: a count orders nothing. One writer, so the sum cannot lose an addition.
    cell.store(cell.load(std::memory_order_relaxed) + count, std::memory_order_relaxed);
  }

  // Any thread. relaxed: a reader may see a count a little late.
  uint64_t value(Counter counter) const { return value(static_cast<size_t>(counter)); }

 private:
  friend CounterTotals counter_totals();
  uint64_t value(size_t index) const { return cells_[index].load(std::memory_order_relaxed); }

  CounterCells* next_ = nullptr;  // both guarded by the registry's mutex
  CounterCells* previous_ = nullptr;
  alignas(64) std::array<std::atomic<uint64_t>, kCounterRows.size()> cells_{};
};

// The sums over this process, in the order of kCounterRows.
inline CounterTotals counter_totals() {
  detail::CounterRegistry& registry = detail::counter_registry;
  MutexLock lock(registry.mutex);
  CounterTotals totals = registry.departed;
  for (const CounterCells* cells = registry.first; cells != nullptr; cells = cells->next_)
    for (size_t i = 0; i < totals.size(); ++i) totals[i] += cells->value(i);
  return totals;
}

}  // namespace noria
