// What a table of functions of a library loaded at run time is made of.
//
// Threads: init only.
#pragma once

#include <cstring>
#include <string>

#include "base/dl.hpp"

namespace noria::bucketing {

// The last column of cuda_symbols.def and nccl_symbols.def.
enum class Answers : uint8_t {
  done,         // success, or a failure
  done_or_not,  // or that it is not done yet, which is no failure
  text,
};

// Fills in `member` and notes in `missing` the first required function that the library lacks.
template <class Member>
void take_function(const SharedObject& library, const char* name, bool is_required, Member* member,
                   std::string* missing) {
  void* const found = library.find(name);
  if (found == nullptr && is_required && missing->empty()) *missing = name;
  // memcpy: an object pointer is not convertible to a function pointer in ISO C++.
  static_assert(sizeof(*member) == sizeof(found));
  std::memcpy(member, &found, sizeof found);
}

}  // namespace noria::bucketing
