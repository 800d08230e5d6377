#include "bucketing/arrival.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace noria::bucketing {
namespace {

constexpr Nanoseconds kNotSeen = -1;

}  // namespace

std::vector<uint32_t> ArrivalTimes::places() const {
  std::vector<uint32_t> places(order.size());
  for (uint32_t i = 0; i < order.size(); ++i) places[order[i]] = i;
  return places;
}

Arrival::Arrival(uint32_t tensors)
    : tensors_(tensors), seen_ns_(new std::atomic<Nanoseconds>[tensors]) {
  restart();
}

void Arrival::restart() {
  // relaxed: published by whatever lets callers in.
  for (uint32_t id = 0; id < tensors_; ++id)
    seen_ns_[id].store(kNotSeen, std::memory_order_relaxed);
}

bool Arrival::has_any() const {
  for (uint32_t id = 0; id < tensors_; ++id)
    if (seen_ns_[id].load(std::memory_order_relaxed) != kNotSeen) return true;
  return false;
}

ArrivalTimes Arrival::times(Nanoseconds begun_ns) const {
  std::vector<Nanoseconds> seen(tensors_);
  Nanoseconds latest = begun_ns;
  for (uint32_t id = 0; id < tensors_; ++id) {
    seen[id] = seen_ns_[id].load(std::memory_order_relaxed);
    latest = std::max(latest, seen[id]);
  }
  for (Nanoseconds& when : seen)
    if (when == kNotSeen) when = latest + 1;
  ArrivalTimes times{.order = std::vector<uint32_t>(tensors_),
                     .ready_us = std::vector<uint32_t>(tensors_)};
  std::iota(times.order.begin(), times.order.end(), 0U);
  std::stable_sort(times.order.begin(), times.order.end(),
                   [&](uint32_t a, uint32_t b) { return seen[a] < seen[b]; });
  for (uint32_t id = 0; id < tensors_; ++id) {
    const Nanoseconds since = std::max<Nanoseconds>(seen[id] - begun_ns, 0) / 1000;
    times.ready_us[id] = static_cast<uint32_t>(std::min<Nanoseconds>(since, UINT32_MAX));
  }
  return times;
}

std::string to_bytes(const ArrivalTimes& times) {
  const size_t half = times.order.size() * sizeof(uint32_t);
  std::string bytes(2 * half, '\0');
  if (half == 0) return bytes;
  std::memcpy(bytes.data(), times.order.data(), half);
  std::memcpy(bytes.data() + half, times.ready_us.data(), half);
  return bytes;
}

Outcome<ArrivalTimes> arrival_from_bytes(std::string_view bytes, uint32_t tensors) {
  const size_t half = tensors * sizeof(uint32_t);
  ArrivalTimes times{.order = std::vector<uint32_t>(tensors),
                     .ready_us = std::vector<uint32_t>(tensors)};
  std::vector<bool> is_seen(tensors, false);
  bool is_good = bytes.size() == 2 * half;
  if (is_good && half != 0) {
    std::memcpy(times.order.data(), bytes.data(), half);
    std::memcpy(times.ready_us.data(), bytes.data() + half, half);
  }
  for (uint32_t i = 0; is_good && i < tensors; ++i) {
    const uint32_t id = times.order[i];
    is_good = id < tensors && !is_seen[id];
    if (is_good) is_seen[id] = true;
  }
  if (!is_good)
    return Failure{NORIA_E_MISMATCH, "rank 0's order of arrival does not name each of " +
                                         std::to_string(tensors) + " tensors once"};
  return times;
}

Nanoseconds held_back_ns(std::span<const ReadyBucket> buckets) {
  double waited = 0, bytes = 0;
  Nanoseconds turn = 0;  // when those before were ready
  for (const ReadyBucket& bucket : buckets) {
    turn = std::max(turn, bucket.ready_ns);
    waited += static_cast<double>(turn - bucket.ready_ns) * static_cast<double>(bucket.bytes);
    bytes += static_cast<double>(bucket.bytes);
  }
  return bytes > 0 ? static_cast<Nanoseconds>(waited / bytes) : 0;
}

}  // namespace noria::bucketing
