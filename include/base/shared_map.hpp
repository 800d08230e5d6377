// SharedMap: values by key, of which holders of equal keys share one.
//
// A value lives exactly as long as somebody holds it: nothing is kept for later. Finding, adding
// and giving back cost O(log n) comparisons of n keys each, and hold a lock for that long; a value
// is destroyed outside of the lock, so one that takes its time stops nobody.
//
// Threads: any thread. Must outlive the shares that it gave.
#pragma once

#include <map>
#include <memory>
#include <utility>

#include "base/mutex.hpp"

namespace noria {

template <class Key, class Value>
class SharedMap {
  struct Counted {
    Value value;
    uint64_t holders = 0;
  };
  using Entries = std::map<Key, Counted>;
  using Entry = typename Entries::value_type;

 public:
  // What one holder has; empty, or keeps the value.
  class Share {
   public:
    Share() = default;
    explicit operator bool() const { return held_ != nullptr; }
    const Value& operator*() const { return held_->second.value; }
    const Value& operator->() const { return **this; }  // and what the value's own leads to

   private:
    friend class SharedMap;
    struct Releaser {
      void operator()(Entry* entry) const { map->release(entry); }
      SharedMap* map = nullptr;
    };
    Share(Entry* entry, SharedMap* map) : held_(entry, Releaser{map}) {}
    std::unique_ptr<Entry, Releaser> held_;
  };

  SharedMap() = default;
  SharedMap(const SharedMap&) = delete;
  SharedMap& operator=(const SharedMap&) = delete;

  // Empty where nobody holds an equal key.
  Share find(const Key& key) NORIA_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    const auto found = entries_.find(key);
    return found != entries_.end() ? share(*found) : Share();
  }
  // `made`, or the value of an equal key that came first; `made` is then destroyed.
  Share add(const Key& key, Value made) NORIA_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    const auto [entry, is_first] = entries_.try_emplace(key);
    // Where it is not the first, it goes with the arguments of this call: after the lock.
    if (is_first) entry->second.value = std::move(made);
    return share(*entry);
  }
  bool empty() const NORIA_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return entries_.empty();
  }

 private:
  Share share(Entry& entry) NORIA_REQUIRES(mutex_) {
    ++entry.second.holders;
    return Share(&entry, this);
  }
  void release(Entry* entry) NORIA_EXCLUDES(mutex_) {
    typename Entries::node_type last;  // destroyed after the lock is gone
    const MutexLock lock(mutex_);
    if (--entry->second.holders == 0) last = entries_.extract(entry->first);
  }

  mutable Mutex mutex_;
  Entries entries_ NORIA_GUARDED_BY(mutex_);
};

}  // namespace noria
