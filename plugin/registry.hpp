// Registry: every communicator's context, and every object that NCCL holds a pointer to or has
// forgotten.
//
// NCCL forgets what was half open when it aborted, and before v11 it does not say when it is done.
// So everything belongs to the registry: what a context leaves behind goes with it, and what is
// left when the library is unloaded goes then. Connections are left alone at the end of a process:
// NCCL's threads may still be running.
//
// A pointer that is closed or none of ours is found out here, by set-up calls; the data path does
// not come by, and finds out what is closed: verbs/transport/kept_storage.hpp.
//
// Threads: any thread.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <utility>

#include "base/mutex.hpp"
#include "plugin/abi/net.hpp"
#include "plugin/connection.hpp"
#include "plugin/setup.hpp"
#include "plugin/tuner_context.hpp"

namespace noria::plugin {

struct Context {
  uint64_t communicator = 0;
  int traffic_class = -1;                     // negative: not given
  std::unique_ptr<const TunerContext> tuner;  // null but in the tuner's contexts
};

using HandleBytes = std::array<std::byte, abi::kHandleBytes>;

class Registry {
 public:
  // The first context finds the devices anew.
  Context* open(uint64_t communicator, int traffic_class) NORIA_EXCLUDES(mutex_);
  // The one of NCCL versions that have none; made when it is first asked for.
  Context* open_shared() NORIA_EXCLUDES(mutex_);
  Context* shared() NORIA_EXCLUDES(mutex_);
  // Frees all that is the context's; false when it is none of ours.
  bool close(Context* context) NORIA_EXCLUDES(mutex_);
  bool has(const Context* context) NORIA_EXCLUDES(mutex_);

  // What was found; null while there is no context.
  std::shared_ptr<const Setup> setup() NORIA_EXCLUDES(mutex_);

  void* keep(std::unique_ptr<Object> object) NORIA_EXCLUDES(mutex_);
  Object* find(const void* object) NORIA_EXCLUDES(mutex_);  // null when it is none of ours
  std::unique_ptr<Object> take(const void* object, Kind kind) NORIA_EXCLUDES(mutex_);
  void* keep(std::unique_ptr<Memory> memory) NORIA_EXCLUDES(mutex_);
  std::unique_ptr<Memory> take_memory(const void* memory) NORIA_EXCLUDES(mutex_);

  // A connection that is under way to this handle; null when none is.
  std::unique_ptr<Connecting> resume(const Context* context, const HandleBytes& handle)
      NORIA_EXCLUDES(mutex_);
  void suspend(const Context* context, const HandleBytes& handle,
               std::unique_ptr<Connecting> connecting) NORIA_EXCLUDES(mutex_);

  // At unload. Returns whether nothing is left that a thread of NCCL could be using.
  bool forget_half_open() NORIA_EXCLUDES(mutex_);

 private:
  using Way = std::pair<const Context*, HandleBytes>;
  Context* add(uint64_t communicator, int traffic_class) NORIA_REQUIRES(mutex_);

  // Declared in the order of their births: connections need the devices.
  Mutex mutex_;
  std::shared_ptr<const Setup> setup_ NORIA_GUARDED_BY(mutex_);
  std::map<const Context*, std::unique_ptr<Context>> contexts_ NORIA_GUARDED_BY(mutex_);
  Context* shared_ NORIA_GUARDED_BY(mutex_) = nullptr;
  std::map<const void*, std::unique_ptr<Memory>> memories_ NORIA_GUARDED_BY(mutex_);
  std::map<const void*, std::unique_ptr<Object>> objects_ NORIA_GUARDED_BY(mutex_);
  std::map<Way, std::unique_ptr<Connecting>> connecting_ NORIA_GUARDED_BY(mutex_);
};

// The one of this process.
Registry& registry();

}  // namespace noria::plugin
