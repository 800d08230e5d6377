#include "verbs/soft/posted_writes.hpp"

#include "verbs/soft/device_copy.hpp"

namespace noria::soft {

void PostedWrites::add(uint32_t device, uint8_t* to, const uint8_t* from, uint64_t bytes) {
  MutexLock lock(mutex_);
  Waiting& waiting = waiting_[device];
  if (waiting.bytes + bytes > kMost) publish_locked(device);
  waiting.writes.push_back({to, std::vector<uint8_t>(bytes)});
  device_copy(waiting.writes.back().bytes.data(), from, bytes);
  waiting.bytes += bytes;
}

void PostedWrites::publish(uint32_t device) {
  MutexLock lock(mutex_);
  publish_locked(device);
}

void PostedWrites::publish_locked(uint32_t device) {
  Waiting& waiting = waiting_[device];
  for (const Write& write : waiting.writes)
    device_copy(write.to, write.bytes.data(), write.bytes.size());
  waiting = Waiting{};
}

}  // namespace noria::soft
