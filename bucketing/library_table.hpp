// What a table of functions of a library loaded at run time is made of, and who keeps it.
//
// Threads: init only; OpenLibraries any thread.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>

#include "base/dl.hpp"
#include "base/mutex.hpp"
#include "bucketing/failure.hpp"

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

// Those that were opened, by path.
template <class Api>
class OpenLibraries {
 public:
  // `open` answers an Outcome<std::unique_ptr<const Api>>, and is asked once for each path that it
  // opens.
  template <class Open>
  Outcome<const Api*> get(const std::string& path, const Open& open) {
    const MutexLock lock(mutex_);
    auto& place = by_path_[path];
    if (place == nullptr) {
      NORIA_TRY_ASSIGN(place, open());
    }
    return place.get();
  }

 private:
  Mutex mutex_;
  std::map<std::string, std::unique_ptr<const Api>> by_path_ NORIA_GUARDED_BY(mutex_);
};

}  // namespace noria::bucketing
