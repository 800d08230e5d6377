// RingLine: what one rank gives to a collective that fits into a line of memory, with the words
// that name the collective, and the way to look at one that lands.
//
// A device lands each half of 32 bytes whole, and the halves in either order; so each ends with the
// number of the line. has_landed() is the only way to look at a slot. Once it is true the line is
// not written again before this rank has used it (ring_lines.hpp), so that it may be read as plain
// memory.
//
// Threads: one reader; the writer is a device or another process.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/check.hpp"
#include "bucketing/collective.hpp"
#include "bucketing/kernels.hpp"

namespace noria::bucketing {

// What is called: the same on all ranks, compared as a whole.
struct LineCall {
  Kind kind = Kind::barrier;
  uint8_t dtype = 0, op = 0, count = 0;  // of an all-reduce

  bool operator==(const LineCall&) const = default;
};
static_assert(sizeof(LineCall) == 4 && std::has_unique_object_representations_v<LineCall>);

struct alignas(64) RingLine {
  static constexpr uint64_t kHalfBytes = 24;
  static constexpr uint64_t kMostBytes = 2 * kHalfBytes;

  std::byte first[kHalfBytes] = {};
  LineCall call;
  uint32_t number = 0;
  std::byte second[kHalfBytes] = {};
  uint32_t sequence = 0;  // low bits of the collective's
  uint32_t number_again = 0;

  void put(const std::byte* from, uint64_t bytes) {
    const uint64_t front = bytes < kHalfBytes ? bytes : kHalfBytes;
    if (front != 0) std::memcpy(first, from, front);
    if (bytes > front) std::memcpy(second, from + front, bytes - front);
  }
  void set_number(uint32_t value) { number = number_again = value; }

  NORIA_HOT bool has_landed(uint32_t wanted) {
    // acquire: pairs with the order in which the device lands a half; the rest is read after.
    return std::atomic_ref(number).load(std::memory_order_acquire) == wanted &&
           std::atomic_ref(number_again).load(std::memory_order_acquire) == wanted;
  }
};
static_assert(sizeof(RingLine) == 64 && std::is_trivially_copyable_v<RingLine>);
static_assert(offsetof(RingLine, number) == 28 && offsetof(RingLine, number_again) == 60);

// Whether a call of one part, or none for a barrier, goes by lines: the same on all ranks that call
// the same.
inline bool fits_line(Kind kind, const Part* part) {
  if (kind == Kind::barrier) return true;
  return kind == Kind::all_reduce && part->in_region == nullptr && part->out_region == nullptr &&
         part->wide == nullptr && part->input_divisor == 1 &&
         part->count <= RingLine::kMostBytes &&  // so that the product cannot overflow
         part->count * dtype_bytes(part->dtype) <= RingLine::kMostBytes;
}

// The numbers of a line behind each other, without a copy where they lie so.
class LineNumbers {
 public:
  NORIA_HOT LineNumbers(const RingLine& line, uint64_t bytes) : data_(line.first) {
    if (bytes <= RingLine::kHalfBytes) return;
    std::memcpy(room_, line.first, RingLine::kHalfBytes);
    std::memcpy(room_ + RingLine::kHalfBytes, line.second, RingLine::kHalfBytes);
    data_ = room_;
  }
  LineNumbers(const LineNumbers&) = delete;
  LineNumbers& operator=(const LineNumbers&) = delete;
  const std::byte* data() const { return data_; }

 private:
  const std::byte* data_;
  std::byte room_[RingLine::kMostBytes];
};

}  // namespace noria::bucketing
