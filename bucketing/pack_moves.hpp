// How the threads of a block move a tile: as zeros, as it is, or converted.
//
// Threads take turns at units of 16 bytes and more; where the two sides never stand on such a
// boundary together, copies go by the widest access that both allow and conversions by elements.
//
// For g++, clang and nvcc, as pack_floats.hpp. Pointers are aligned to their elements, and to the
// global memory of a device or to the host's; the two sides do not overlap.
//
// Threads: any thread; no state.
#pragma once

#include <cstdint>
#include <cstring>

#include "bucketing/pack_floats.hpp"

namespace noria::bucketing {

struct Lane {
  uint32_t thread;
  uint32_t threads;  // of the block
};

namespace pack {

// What is loaded and stored by one instruction for each 16 bytes.
template <uint32_t kWords>
struct alignas(16) Words {
  uint32_t at[kWords];
};

// Addresses that come out of a table could be any memory of a device's, for all that nvcc knows.
NORIA_HOST_DEVICE void assume_global([[maybe_unused]] const char* address) {
#ifdef __CUDA_ARCH__
  __builtin_assume(__isGlobal(address));
#endif
}

template <class T>
NORIA_HOST_DEVICE T load(const char* from, uint32_t index) {
  T value;
  memcpy(&value, __builtin_assume_aligned(from + uint64_t{index} * sizeof(T), alignof(T)),
         sizeof value);
  return value;
}
template <class T>
NORIA_HOST_DEVICE void store(char* to, uint32_t index, const T& value) {
  memcpy(__builtin_assume_aligned(to + uint64_t{index} * sizeof(T), alignof(T)), &value,
         sizeof value);
}

// out[i] = move(in[i]) for i below count, by all threads of a block; each has kAhead loads under
// way before it stores.
template <uint32_t kAhead, class In, class Move>
NORIA_HOST_DEVICE void take_turns(const char* in, char* out, uint32_t count, Lane lane,
                                  const Move& move) {
  for (uint32_t first = lane.thread; first < count; first += kAhead * lane.threads) {
    In held[kAhead] = {};
    NORIA_UNROLL
    for (uint32_t i = 0; i < kAhead; ++i) {
      const uint32_t at = first + i * lane.threads;
      if (at < count) held[i] = load<In>(in, at);
    }
    NORIA_UNROLL
    for (uint32_t i = 0; i < kAhead; ++i) {
      const uint32_t at = first + i * lane.threads;
      if (at < count) store(out, at, move(held[i]));
    }
  }
}

NORIA_HOST_DEVICE uint32_t past_boundary(const char* address, uint32_t boundary) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(address)) & (boundary - 1);
}
NORIA_HOST_DEVICE uint32_t to_boundary(const char* address, uint32_t boundary) {
  return (boundary - past_boundary(address, boundary)) & (boundary - 1);
}

// What lies before the first unit of a stretch and behind its last one.
struct Edges {
  uint32_t head;   // elements before
  uint32_t units;  // between
  uint32_t tail;   // where the elements behind begin
  uint32_t count;  // of the stretch

  NORIA_HOST_DEVICE Edges(uint32_t before, uint32_t elements, uint32_t in_unit)
      : head(before < elements ? before : elements),
        units((elements - head) / in_unit),
        tail(head + units * in_unit),
        count(elements) {}

  // Calls `each` with the index of every element that is in no unit, a few in all.
  template <class Each>
  NORIA_HOST_DEVICE void for_each(Lane lane, const Each& each) const {
    const uint32_t all = count - (tail - head);
    for (uint32_t i = lane.thread; i < all; i += lane.threads)
      each(i < head ? i : tail + (i - head));
  }
};

NORIA_HOST_DEVICE void write_zeros(char* out, uint32_t bytes, Lane lane) {
  using Unit = Words<4>;
  assume_global(out);
  const Edges edges(to_boundary(out, sizeof(Unit)), bytes, sizeof(Unit));
  for (uint32_t i = lane.thread; i < edges.units; i += lane.threads)
    store(out + edges.head, i, Unit{});
  edges.for_each(lane, [out](uint32_t at) { out[at] = 0; });
}

// ---- copies ------------------------------------------------------------------------------------

// Both sides are equally far from a boundary of Unit.
template <class Unit>
NORIA_HOST_DEVICE void copy_by(const char* in, char* out, uint32_t bytes, Lane lane) {
  const Edges edges(to_boundary(out, sizeof(Unit)), bytes, sizeof(Unit));
  take_turns<4, Unit>(in + edges.head, out + edges.head, edges.units, lane,
                      [](const Unit& unit) { return unit; });
  edges.for_each(lane, [in, out](uint32_t at) { out[at] = in[at]; });
}

// By the widest access that both sides allow.
NORIA_HOST_DEVICE void copy(const char* in, char* out, uint32_t bytes, Lane lane) {
  const uint32_t apart = past_boundary(in, 16) ^ past_boundary(out, 16);
  if (apart == 0) return copy_by<Words<4>>(in, out, bytes, lane);
  if ((apart & 7U) == 0) return copy_by<uint64_t>(in, out, bytes, lane);
  if ((apart & 3U) == 0) return copy_by<uint32_t>(in, out, bytes, lane);
  if ((apart & 1U) == 0) return copy_by<uint16_t>(in, out, bytes, lane);
  copy_by<uint8_t>(in, out, bytes, lane);
}

// ---- conversions -------------------------------------------------------------------------------

template <class Format, uint32_t kWords>
NORIA_HOST_DEVICE typename Format::Value value_in(const Words<kWords>& words, uint32_t i) {
  if constexpr (sizeof(typename Format::Bits) == 2)
    return Format::value(static_cast<uint16_t>(words.at[i / 2] >> (i % 2 * 16)));
  else if constexpr (sizeof(typename Format::Bits) == 4)
    return Format::value(words.at[i]);
  else
    return Format::value(words.at[2 * i] | (uint64_t{words.at[2 * i + 1]} << 32U));
}

// The elements i, which is even, and i + 1.
template <class Format, uint32_t kWords>
NORIA_HOST_DEVICE void put_pair(Words<kWords>& words, uint32_t i, typename Format::Value low,
                                typename Format::Value high) {
  if constexpr (sizeof(typename Format::Bits) == 2) {
    words.at[i / 2] = Format::pair(low, high);
  } else if constexpr (sizeof(typename Format::Bits) == 4) {
    words.at[i] = Format::bits(low);
    words.at[i + 1] = Format::bits(high);
  } else {
    const uint64_t bits[] = {Format::bits(low), Format::bits(high)};
    for (uint32_t k = 0; k < 2; ++k) {
      words.at[2 * i + 2 * k] = static_cast<uint32_t>(bits[k]);
      words.at[2 * i + 2 * k + 1] = static_cast<uint32_t>(bits[k] >> 32U);
    }
  }
}

template <class From, class To, class Scale>
NORIA_HOST_DEVICE void convert(const char* in, char* out, uint32_t count, Lane lane,
                               const Scale& scale) {
  constexpr uint32_t kIn = sizeof(typename From::Bits);
  constexpr uint32_t kOut = sizeof(typename To::Bits);
  // Elements of a unit: 16 bytes on the narrower side, 16 or 32 on the other.
  constexpr uint32_t kUnit = 16 / (kIn < kOut ? kIn : kOut);
  using InUnit = Words<kUnit * kIn / 4>;
  using OutUnit = Words<kUnit * kOut / 4>;

  // The narrower side says how many elements come before a unit, the other whether they do for it.
  const uint32_t before = kIn < kOut ? to_boundary(in, 16) / kIn : to_boundary(out, 16) / kOut;
  const bool together = past_boundary(in + uint64_t{before} * kIn, 16) == 0 &&
                        past_boundary(out + uint64_t{before} * kOut, 16) == 0;
  using Element = typename From::Bits;
  const auto one = [&scale](Element bits) { return To::bits(scale(From::value(bits))); };
  const auto unit = [&scale](const InUnit& from) {
    OutUnit to;
    NORIA_UNROLL
    for (uint32_t i = 0; i < kUnit; i += 2)
      put_pair<To>(to, i, scale(value_in<From>(from, i)), scale(value_in<From>(from, i + 1)));
    return to;
  };
  if (!together) return take_turns<Scale::kAhead, Element>(in, out, count, lane, one);
  const Edges edges(before, count, kUnit);
  take_turns<Scale::kAhead, InUnit>(in + uint64_t{edges.head} * kIn,
                                    out + uint64_t{edges.head} * kOut, edges.units, lane, unit);
  edges.for_each(lane, [&](uint32_t at) { store(out, at, one(load<Element>(in, at))); });
}

}  // namespace pack
}  // namespace noria::bucketing
