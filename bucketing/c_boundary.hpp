// The C boundary: how failures and structs cross it.
//
// refuse() keeps the text for noria_last_error() of the calling thread and gives the code to
// return. A struct that was filled by an older header is shorter than ours, by a newer one longer:
// what it does not have is zero, which means the default; what we do not know must be zero.
//
// Threads: any thread.
#pragma once

#include <noria/bucketing.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/check.hpp"
#include "base/result.hpp"
#include "bucketing/failure.hpp"

namespace noria::bucketing {

noria_status refuse(const Failure& failure);
const std::string& last_refusal();  // of the calling thread; empty before the first

// Whether a handle may be followed: it is there, and not a copy of the parent's.
template <class Handle>
NORIA_HOT bool is_usable(const Handle* handle) {
  return handle != nullptr && handle->origin.is_here();
}
// Why not. `name` is the argument's.
NORIA_COLD Failure unusable(const void* handle, const std::string& name);

// No header's struct comes near; what says so has no struct_size where we read it.
inline constexpr uint32_t kMostStructBytes = 64 * 1024;

// Whether what stands at the head of a caller's struct can be its struct_size.
inline Outcome<Ok> check_struct_size(uint32_t size, const char* type) {
  if (size >= 2 * sizeof(uint32_t) && size <= kMostStructBytes) return Ok{};
  return Failure{NORIA_E_ARG, std::string(type) + ".struct_size is " + std::to_string(size) +
                                  ": set it to the size of the struct, as its _INIT does"};
}

// The caller's struct as this version knows it.
template <class T>
Outcome<T> read_struct(const T* given, const char* type) {
  if (given == nullptr)
    return Failure{NORIA_E_ARG, std::string(type) + " is NULL: give one made by its _INIT"};
  const uint32_t size = given->struct_size;
  NORIA_TRY(check_struct_size(size, type));
  const auto* bytes = reinterpret_cast<const char*>(given);
  for (size_t at = sizeof(T); at < size; ++at)
    if (bytes[at] != 0)
      return Failure{NORIA_E_UNSUPPORTED,
                     std::string(type) +
                         " uses a field that this library does not know: it was "
                         "compiled for a newer noria"};
  T copy{};
  std::memcpy(static_cast<void*>(&copy), given, std::min<size_t>(size, sizeof(T)));
  return copy;
}

// Fills in as much as the caller's struct of `size` bytes holds.
template <class T>
void fill_struct(void* out, T full, uint32_t size) {
  full.struct_size = size;
  std::memcpy(out, &full, std::min<size_t>(size, sizeof(T)));
}

// The same where the caller's struct tells its size.
template <class T>
Outcome<Ok> write_struct(T* out, const T& full, const char* type) {
  if (out == nullptr)
    return Failure{NORIA_E_ARG,
                   std::string(type) + " is NULL: give a struct whose struct_size is set"};
  NORIA_TRY(check_struct_size(out->struct_size, type));
  fill_struct(out, full, out->struct_size);
  return Ok{};
}

}  // namespace noria::bucketing
