// Test data that depends on a seed (side, message) and on the position: what went astray, or was
// there before, is not what should be there. Cheap: a word of eight bytes at a time.
//
// Threads: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace noria::test {
namespace detail {

// Which position holds what: a word of a well-mixed counter.
inline uint64_t word_of(uint64_t seed, uint64_t index) {
  uint64_t x = seed * 0x9e3779b97f4a7c15u + index + 1;
  x ^= x >> 31;
  x *= 0xbf58476d1ce4e5b9u;
  return x ^ (x >> 27);
}
inline uint8_t byte_of(uint64_t seed, uint64_t position) {
  return static_cast<uint8_t>(word_of(seed, position / 8) >> (position % 8 * 8));
}

}  // namespace detail

// The bytes of the pattern from position `from` on.
inline void paint(void* memory, size_t bytes, uint64_t seed, uint64_t from = 0) {
  auto* data = static_cast<uint8_t*>(memory);
  size_t i = 0;
  for (; i < bytes && (from + i) % 8 != 0; ++i) data[i] = detail::byte_of(seed, from + i);
  for (; i + 8 <= bytes; i += 8) {
    const uint64_t word = detail::word_of(seed, (from + i) / 8);
    std::memcpy(data + i, &word, 8);
  }
  for (; i < bytes; ++i) data[i] = detail::byte_of(seed, from + i);
}

// The first position that differs from paint(), or `bytes`.
inline size_t first_wrong(const void* memory, size_t bytes, uint64_t seed, uint64_t from = 0) {
  const auto* data = static_cast<const uint8_t*>(memory);
  size_t i = 0;
  for (; i < bytes && (from + i) % 8 != 0; ++i)
    if (data[i] != detail::byte_of(seed, from + i)) return i;
  for (; i + 8 <= bytes; i += 8) {
    const uint64_t word = detail::word_of(seed, (from + i) / 8);
    if (std::memcmp(data + i, &word, 8) != 0) break;  // the tail loop finds the byte
  }
  for (; i < bytes; ++i)
    if (data[i] != detail::byte_of(seed, from + i)) return i;
  return bytes;
}

}  // namespace noria::test
