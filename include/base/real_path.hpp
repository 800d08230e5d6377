// real_path: where a path leads, absolute and without links; empty where it leads nowhere.
//
// Reads the file system, and allocates.
//
// Threads: any thread.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>

namespace noria {

inline std::string real_path(const std::string& path) {
  const std::unique_ptr<char, void (*)(void*)> found(::realpath(path.c_str(), nullptr), std::free);
  return found != nullptr ? found.get() : "";
}

}  // namespace noria
