#include "tests/support/cuda_standin/machine.hpp"

#include <algorithm>

#include "tests/support/cuda_standin/driver_numbers.hpp"
#include "tests/support/cuda_standin/say.hpp"

namespace noria::standin {

namespace {

uint64_t number_of(void* handle) { return reinterpret_cast<uint64_t>(handle); }
void* handle_of(uint64_t number) { return reinterpret_cast<void*>(number); }

constexpr uint64_t kLegacy = 1;
constexpr uint64_t kPerThread = 2;
constexpr uint64_t kHandleStep = 0x10;

}  // namespace

HostThread& host_thread() {
  static thread_local HostThread thread;
  return thread;
}

Machine& Machine::instance() {
  // Never destroyed: its thread plays on until the process ends.
  static Machine& machine = *new Machine;
  return machine;
}

Machine::Machine() {
  for (int device = 0; device < kDevices; ++device) {
    contexts.push_back(std::make_unique<Context>());
    contexts.back()->device = device;
    contexts.back()->is_primary = true;
  }
  seed(0);
}

void Machine::seed(uint64_t value) {
  random.seed(value);
  is_lazy_ = value % 3 != 0;
  reuses_handles_ = value % 2 == 1;
  steps_ = 0;
}

Context* Machine::current() const {
  const HostThread& thread = host_thread();
  return thread.contexts.empty() ? nullptr : thread.contexts.back();
}

Stream* Machine::new_stream(Context* context, bool is_blocking, int priority, const char* kind) {
  streams.push_back(std::make_unique<Stream>());
  Stream* const stream = streams.back().get();
  stream->clock_id = next_clock_id_++;
  stream->context = context;
  stream->is_blocking = is_blocking;
  stream->priority = priority;
  stream->name = say("%s%zu of device %d", kind, stream->clock_id, context->device);
  return stream;
}

Stream* Machine::stream(void* handle) {
  const uint64_t number = number_of(handle);
  if (number > kPerThread) {
    const auto found = stream_handles.find(number);
    return found == stream_handles.end() ? nullptr : found->second;
  }
  Context* const context = current();
  if (context == nullptr) return nullptr;
  Stream*& own =
      number <= kLegacy ? context->legacy : context->per_thread[std::this_thread::get_id()];
  if (own == nullptr)
    own = new_stream(context, true, 0, number <= kLegacy ? "legacy stream " : "per-thread stream ");
  return own;
}

void* Machine::add_stream(Context* context, bool is_blocking, int priority) {
  uint64_t number = next_stream_;
  if (reuses_handles_ && !free_stream_handles_.empty()) {
    number = free_stream_handles_.back();
    free_stream_handles_.pop_back();
  } else {
    next_stream_ += kHandleStep;
  }
  stream_handles[number] = new_stream(context, is_blocking, priority, "stream ");
  return handle_of(number);
}

void Machine::destroy_stream(void* handle) {
  const auto found = stream_handles.find(number_of(handle));
  found->second->is_destroyed = true;  // what is queued still runs
  free_stream_handles_.push_back(found->first);
  stream_handles.erase(found);
}

Event* Machine::event(void* handle) {
  const auto found = events.find(number_of(handle));
  return found == events.end() ? nullptr : &found->second;
}

void* Machine::add_event(Context* context, bool is_timed) {
  const uint64_t number = next_event_;
  next_event_ += kHandleStep;
  events[number] = {.context = context, .is_timed = is_timed, .record = nullptr};
  return handle_of(number);
}

void Machine::destroy_event(void* handle) { events.erase(number_of(handle)); }

void Machine::end_context(Context* context) {
  for (const std::unique_ptr<Stream>& stream : streams) {
    if (stream->context != context) continue;
    if (!stream->queue.empty())
      violation(say("the context of device %d ends while %s runs", context->device,
                    stream->queue.front()->name->c_str()));
    stream->is_destroyed = true;
  }
  std::erase_if(stream_handles,
                [&](const auto& entry) { return entry.second->context == context; });
  std::erase_if(events, [&](const auto& entry) { return entry.second.context == context; });
  context->legacy = nullptr;
  context->per_thread.clear();
  context->is_alive = false;
  context->sticky = 0;
}

OperationRef Machine::enqueue(Stream* stream, const std::string& name) {
  return enqueue(stream, name, nullptr, nullptr);
}

OperationRef Machine::enqueue(Stream* stream, const std::string& name,
                              std::function<std::vector<Access>()> touches,
                              std::function<void()> act) {
  auto operation = std::make_shared<Operation>();
  operation->name = std::make_shared<std::string>(name);
  operation->touches = std::move(touches);
  operation->act = std::move(act);
  return enqueue(stream, std::move(operation));
}

OperationRef Machine::enqueue(Stream* stream, OperationRef operation) {
  operation->number = ++operations_;
  operation->stream = stream;
  operation->name = std::make_shared<std::string>(
      say("'%s' (%s, no. %llu)", operation->name->c_str(), stream->name.c_str(),
          static_cast<unsigned long long>(operation->number)));
  operation->issued = host_clock();
  Context* const context = stream->context;
  if (stream == context->legacy) {
    for (const std::unique_ptr<Stream>& other : streams)
      if (other->context == context && other->is_blocking && other.get() != stream &&
          other->last != nullptr)
        operation->after.push_back(other->last);
  } else if (stream->is_blocking && context->legacy != nullptr &&
             context->legacy->last != nullptr) {
    operation->after.push_back(context->legacy->last);
  }
  stream->queue.push_back(operation);
  stream->last = operation;
  poke();
  return operation;
}

bool Machine::wait(const OperationRef& operation, std::unique_lock<std::mutex>* lock) {
  if (operation == nullptr) return true;
  ++waiting_;
  poke();
  const bool is_over =
      changed.wait_for(*lock, std::chrono::minutes(1), [&] { return operation->is_done; });
  --waiting_;
  if (is_over)
    host_.join(operation->clock);
  else
    violation(say("the host has waited for %s for a minute", operation->name->c_str()));
  return is_over;
}

bool Machine::query(const OperationRef& operation) {
  if (operation == nullptr) return true;
  if (operation->is_done) {
    seen().join(operation->clock);
    return true;
  }
  steps_ += 1 + random() % 4;
  poke();
  return false;
}

VectorClock Machine::host_clock() {
  VectorClock clock = host_;
  clock.join(seen());
  clock.set(0, host_time_);
  return clock;
}

void Machine::host_touch(const std::string& name, const Access& access) {
  ++host_time_;
  const Actor host{.clock_id = 0,
                   .time = host_time_,
                   .number = ++operations_,
                   .name = std::make_shared<std::string>("'" + name + "' (host)")};
  checker.touch(host, host_clock(), access, &violations);
}

void Machine::hand_over() { host_.join(seen()); }

VectorClock& Machine::seen() {
  HostThread& thread = host_thread();
  if (thread.generation != generation_) thread.seen = {};
  thread.generation = generation_;
  return thread.seen;
}

void Machine::forget_history() {
  ++generation_;
  violations.clear();
  checker.clear();
  host_ = {};
  std::erase_if(streams, [](const std::unique_ptr<Stream>& stream) {
    return stream->is_destroyed && stream->queue.empty();
  });
  next_clock_id_ = 1;
  for (const std::unique_ptr<Stream>& stream : streams) {
    stream->clock_id = next_clock_id_++;
    stream->clock = {};
    if (stream->last != nullptr) stream->last->clock = {};
  }
  for (auto& [handle, event] : events)
    if (event.record != nullptr) event.record->clock = {};
}

bool Machine::check(const Operation& operation, const std::vector<Access>& accesses) {
  const Actor actor{.clock_id = operation.stream->clock_id,
                    .time = operation.clock.at(operation.stream->clock_id),
                    .number = operation.number,
                    .name = operation.name};
  bool is_allowed = true;
  const auto refuse = [&](const Access& access, const char* why) {
    is_allowed = false;
    const unsigned long long first = access.first;
    const unsigned long long end = access.first + access.bytes;
    violation(say("%s %s bytes 0x%llx to 0x%llx, which %s", operation.name->c_str(),
                  access.writes ? "writes" : "reads", first, end, why));
  };
  for (const Access& access : accesses) {
    if (access.bytes == 0) continue;
    const Allocation* const allocation = memory.find(access.first);
    if (allocation == nullptr ||
        access.first + access.bytes > allocation->first + allocation->bytes) {
      refuse(access, "no allocation holds");
      operation.stream->context->sticky = kIllegalAddress;
    } else if (allocation->is_freed) {
      refuse(access, "were freed");
    } else if (allocation->kind == MemoryKind::device &&
               allocation->context->device != operation.stream->context->device) {
      refuse(access, say("are device %d's", allocation->context->device).c_str());
      operation.stream->context->sticky = kIllegalAddress;
    } else {
      checker.touch(actor, operation.clock, access, &violations);
    }
  }
  return is_allowed;
}

}  // namespace noria::standin
