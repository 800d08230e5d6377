// A copy whose stores go past the cache to memory. When it returns, they are ordered as stores are.
//
// Any alignment and size; no byte may be in both ranges. Without such stores: memcpy.
//
// Threads: any thread.
#pragma once

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace noria::soft {

inline void store_streamed(uint8_t* to, const uint8_t* from, uint64_t bytes) {
#if defined(__SSE2__)
  uint64_t at = std::min<uint64_t>(bytes, -reinterpret_cast<uintptr_t>(to) & 63);
  std::memcpy(to, from, at);
  for (; at + 64 <= bytes; at += 64) {
    const auto* line = reinterpret_cast<const __m128i*>(from + at);
    auto* out = reinterpret_cast<__m128i*>(to + at);
    const __m128i a = _mm_loadu_si128(line), b = _mm_loadu_si128(line + 1);
    const __m128i c = _mm_loadu_si128(line + 2), d = _mm_loadu_si128(line + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
  }
  std::memcpy(to + at, from + at, bytes - at);
  _mm_sfence();  // streamed stores are ordered by nothing else: the completion must not pass them
#else
  std::memcpy(to, from, bytes);
#endif
}

}  // namespace noria::soft
