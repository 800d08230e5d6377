// SharedObject: a library opened at run time, or one that the process has loaded already.
//
// Opened with RTLD_NOW | RTLD_LOCAL, so that none of its symbols leak into the host process.
// open() answers with the loader's own text when it fails. The handle is closed with the object.
//
// Threads: init only; find() from any thread.
#pragma once

#include <dlfcn.h>

#include <memory>
#include <optional>
#include <string>

#include "base/result.hpp"

namespace noria {

class SharedObject {
 public:
  static Result<SharedObject, std::string> open(const std::string& path) {
    dlerror();  // clear what an earlier call left
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      const char* text = dlerror();
      return std::string(text != nullptr ? text : "dlopen failed without a reason");
    }
    return SharedObject(handle, path);
  }
  // Loads nothing: fails where nobody has loaded it.
  static std::optional<SharedObject> find_loaded(const char* path) {
    void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (handle == nullptr) return std::nullopt;
    return SharedObject(handle, path);
  }

  // The symbol, or null. `version` null takes the default version.
  void* find(const char* name, const char* version = nullptr) const {
    return version != nullptr ? dlvsym(handle_.get(), name, version) : dlsym(handle_.get(), name);
  }

  const std::string& path() const { return path_; }

 private:
  struct Closer {
    void operator()(void* handle) const { dlclose(handle); }
  };
  SharedObject(void* handle, std::string path) : handle_(handle), path_(std::move(path)) {}

  std::unique_ptr<void, Closer> handle_;
  std::string path_;
};

}  // namespace noria
