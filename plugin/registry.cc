#include "plugin/registry.hpp"

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <vector>

namespace noria::plugin {
namespace {

// Moves out of `map` what `is_wanted` of key and value.
template <class Map, class Predicate>
std::vector<typename Map::mapped_type> take_all(Map& map, Predicate is_wanted) {
  std::vector<typename Map::mapped_type> taken;
  for (auto it = map.begin(); it != map.end();) {
    if (is_wanted(*it)) {
      taken.push_back(std::move(it->second));
      it = map.erase(it);
    } else {
      ++it;
    }
  }
  return taken;
}

// Not an object with a destructor: at the end of a process it may be in use.
constinit std::atomic<Registry*> the_registry{nullptr};
constinit std::atomic<pid_t> its_process{0};

// Runs at dlclose() and at exit(). A child that was forked has copies of what is its parent's.
[[gnu::destructor]] void on_unload() {
  // relaxed: whoever unloads a library has ordered that with its use.
  if (its_process.load(std::memory_order_relaxed) != ::getpid()) return;
  Registry* const all = the_registry.load(std::memory_order_relaxed);
  if (all == nullptr || !all->forget_half_open()) return;
  the_registry.store(nullptr, std::memory_order_relaxed);
  delete all;
  transport::free_kept_storage();
}

}  // namespace

Registry& registry() {
  Registry* found = the_registry.load(std::memory_order_acquire);  // pairs with the exchange below
  if (found != nullptr) return *found;
  auto made = std::make_unique<Registry>();
  if (!the_registry.compare_exchange_strong(found, made.get(), std::memory_order_acq_rel))
    return *found;
  its_process.store(::getpid(), std::memory_order_relaxed);
  return *made.release();
}

Context* Registry::add(uint64_t communicator, int traffic_class) {
  if (setup_ == nullptr) setup_ = Setup::load();
  auto context = std::make_unique<Context>(
      Context{.communicator = communicator, .traffic_class = traffic_class});
  Context* const made = context.get();
  contexts_.emplace(made, std::move(context));
  return made;
}

Context* Registry::open(uint64_t communicator, int traffic_class) {
  const MutexLock lock(mutex_);
  return add(communicator, traffic_class);
}

Context* Registry::open_shared() {
  const MutexLock lock(mutex_);
  if (shared_ == nullptr) shared_ = add(0, -1);
  return shared_;
}

Context* Registry::shared() {
  const MutexLock lock(mutex_);
  return shared_;
}

bool Registry::close(Context* context) {
  // Freed without the lock, for closing queue pairs takes its time; memory after those who use it.
  std::shared_ptr<const Setup> last_setup;
  std::vector<std::unique_ptr<Memory>> memories;
  std::vector<std::unique_ptr<Object>> objects;
  std::vector<std::unique_ptr<Connecting>> connecting;
  const MutexLock lock(mutex_);
  const auto found = contexts_.find(context);
  if (found == contexts_.end() || context == shared_) return false;
  const auto is_its = [&](const auto& entry) { return entry.second->context() == context; };
  objects = take_all(objects_, is_its);
  connecting = take_all(connecting_, [&](const auto& way) { return way.first.first == context; });
  memories =
      take_all(memories_, [&](const auto& entry) { return entry.second->context == context; });
  contexts_.erase(found);
  if (contexts_.empty()) last_setup.swap(setup_);
  return true;
}

bool Registry::has(const Context* context) {
  const MutexLock lock(mutex_);
  return contexts_.contains(context);
}

std::shared_ptr<const Setup> Registry::setup() {
  const MutexLock lock(mutex_);
  return setup_;
}

void* Registry::keep(std::unique_ptr<Object> object) {
  const MutexLock lock(mutex_);
  Object* const kept = object.get();
  objects_.emplace(kept, std::move(object));
  return kept;
}

Object* Registry::find(const void* object) {
  const MutexLock lock(mutex_);
  const auto found = objects_.find(object);
  return found == objects_.end() ? nullptr : found->second.get();
}

std::unique_ptr<Object> Registry::take(const void* object, Kind kind) {
  const MutexLock lock(mutex_);
  const auto found = objects_.find(object);
  if (found == objects_.end() || found->second->kind() != kind) return nullptr;
  return std::move(objects_.extract(found).mapped());
}

void* Registry::keep(std::unique_ptr<Memory> memory) {
  const MutexLock lock(mutex_);
  Memory* const kept = memory.get();
  memories_.emplace(kept, std::move(memory));
  return kept;
}

std::unique_ptr<Memory> Registry::take_memory(const void* memory) {
  const MutexLock lock(mutex_);
  const auto found = memories_.find(memory);
  if (found == memories_.end()) return nullptr;
  return std::move(memories_.extract(found).mapped());
}

std::unique_ptr<Connecting> Registry::resume(const Context* context, const HandleBytes& handle) {
  const MutexLock lock(mutex_);
  const auto found = connecting_.find({context, handle});
  if (found == connecting_.end()) return nullptr;
  return std::move(connecting_.extract(found).mapped());
}

void Registry::suspend(const Context* context, const HandleBytes& handle,
                       std::unique_ptr<Connecting> connecting) {
  const MutexLock lock(mutex_);
  connecting_.insert_or_assign({context, handle}, std::move(connecting));
}

bool Registry::forget_half_open() {
  if (!mutex_.try_lock()) return false;  // a thread of NCCL is here
  connecting_.clear();
  std::erase_if(objects_,
                [](const auto& entry) { return entry.second->kind() == Kind::listening; });
  const bool is_empty = objects_.empty();
  mutex_.unlock();
  return is_empty;
}

}  // namespace noria::plugin
