// own_folder: the folder of the library or program that a piece of code is in, with its last slash.
//
// What is shipped with noria lies beside its libraries, wherever the tree was put. Empty where the
// loader does not say. Allocates; no system call but one readlink() for a program found on PATH.
//
// Threads: any thread.
#pragma once

#include <dlfcn.h>
#include <unistd.h>

#include <string>

namespace noria {

inline std::string own_folder(const void* code) {
  Dl_info self{};
  if (::dladdr(code, &self) == 0 || self.dli_fname == nullptr) return "";
  std::string folder(self.dli_fname);
  if (folder.find('/') == std::string::npos) {
    // An executable found on PATH is known by its bare name only.
    char link[4096];
    const ssize_t length = ::readlink("/proc/self/exe", link, sizeof link);
    if (length > 0) folder.assign(link, static_cast<size_t>(length));
  }
  return folder.erase(folder.rfind('/') == std::string::npos ? 0 : folder.rfind('/') + 1);
}

}  // namespace noria
