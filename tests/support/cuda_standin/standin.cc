#include "tests/support/cuda_standin/standin.hpp"

#include <algorithm>

#include "tests/support/cuda_standin/call.hpp"
#include "tests/support/cuda_standin/communicator.hpp"
#include "tests/support/cuda_standin/driver_numbers.hpp"
#include "tests/support/cuda_standin/nccl_state.hpp"
#include "tests/support/cuda_standin/say.hpp"

namespace noria::standin {

namespace {

void each_of_rank(int rank, const std::function<void(Communicator*)>& change) {
  for (const auto& [handle, communicator] : communicators())
    if (rank < 0 || communicator->rank == static_cast<size_t>(rank)) change(communicator.get());
}

// The device's stream, or a violation and null.
Stream* find_stream(Machine& machine, void* handle) {
  Stream* const found = machine.stream(handle);
  if (found == nullptr) machine.violation(say("the test names %p, which is no stream", handle));
  return found;
}

// By the test, of one of its streams or of libnoria's.
void mark(void* handle, bool Stream::*what, bool is_so) {
  Machine& machine = Machine::instance();
  const std::lock_guard lock(machine.mutex);
  if (Stream* const found = find_stream(machine, handle)) found->*what = is_so;
  machine.poke();
}

void host_touch(std::string_view name, Range range, bool writes) {
  Machine& machine = Machine::instance();
  const std::lock_guard lock(machine.mutex);
  machine.host_touch(std::string(name), {range.address, range.bytes, writes, 0});
}

}  // namespace

void reset(uint64_t seed) {
  Machine& machine = Machine::instance();
  std::unique_lock lock(machine.mutex);
  forget_calls();
  nccl_version() = kNcclVersion;
  machine.holds_all = false;
  for (const auto& stream : machine.streams)
    stream->is_held = stream->is_slow = stream->drops_waits = stream->drops_records = false;
  for (const auto& context : machine.contexts) context->sticky = 0;
  each_of_rank(-1, [](Communicator* communicator) { communicator->is_stalled = false; });
  if (!machine.wait_all(&lock))
    each_of_rank(-1, [&](Communicator* communicator) { abort_launches(machine, *communicator); });
  machine.wait_all(&lock);
  each_of_rank(-1, [](Communicator* communicator) { communicator->async_error = 0; });
  machine.forget_history();
  machine.seed(seed);
}

std::vector<std::string> violations() {
  Machine& machine = Machine::instance();
  std::unique_lock lock(machine.mutex);
  machine.wait_all(&lock);
  return std::exchange(machine.violations, {});
}

size_t objects_alive() {
  Machine& machine = Machine::instance();
  const std::lock_guard lock(machine.mutex);
  return machine.stream_handles.size() + machine.events.size() + machine.memory.alive();
}

void launch(void* stream, std::string_view name, const std::vector<Range>& reads,
            const std::vector<Range>& writes, std::function<void()> act) {
  Machine& machine = Machine::instance();
  const std::lock_guard lock(machine.mutex);
  Stream* const on = find_stream(machine, stream);
  if (on == nullptr) return;
  std::vector<Access> accesses;
  for (const Range& range : reads) accesses.push_back({range.address, range.bytes, false, 0});
  for (const Range& range : writes) accesses.push_back({range.address, range.bytes, true, 0});
  machine.enqueue(
      on, std::string(name), [accesses] { return accesses; }, std::move(act));
}

void* memory_of(uint64_t address) { return Memory::backing(address); }

void host_reads(std::string_view name, Range range) { host_touch(name, range, false); }

void host_writes(std::string_view name, Range range) { host_touch(name, range, true); }

void order(void* before, void* after) {
  Machine& machine = Machine::instance();
  const std::lock_guard lock(machine.mutex);
  const Stream* const first = find_stream(machine, before);
  Stream* const then = find_stream(machine, after);
  if (first == nullptr || then == nullptr || first->last == nullptr) return;
  machine.enqueue(then, "order")->after.push_back(first->last);
}

void hand_over() {
  Machine& machine = Machine::instance();
  const std::lock_guard lock(machine.mutex);
  machine.hand_over();
}

void hold(void* stream) { mark(stream, &Stream::is_held, true); }

void release(void* stream) { mark(stream, &Stream::is_held, false); }

void hold_all() {
  Machine& machine = Machine::instance();
  const std::lock_guard lock(machine.mutex);
  machine.holds_all = true;
}

void release_all() {
  Machine& machine = Machine::instance();
  const std::lock_guard lock(machine.mutex);
  machine.holds_all = false;
  machine.poke();
}

void make_slow(void* stream) { mark(stream, &Stream::is_slow, true); }

bool finish() {
  Machine& machine = Machine::instance();
  std::unique_lock lock(machine.mutex);
  return machine.wait_all(&lock);
}

bool is_idle(void* stream) {
  Machine& machine = Machine::instance();
  const std::lock_guard lock(machine.mutex);
  const Stream* const found = find_stream(machine, stream);
  return found != nullptr && found->queue.empty();
}

void fail_call(std::string_view name, uint64_t nth, int code) {
  const std::lock_guard lock(Machine::instance().mutex);
  fail_call_later(name, {}, nth, code);
}

void skip_call(std::string_view name, uint64_t nth) {
  const std::lock_guard lock(Machine::instance().mutex);
  fail_call_later(name, std::this_thread::get_id(), nth, 0);
}

void skip_call(std::string_view name, int device, uint64_t nth) {
  const std::lock_guard lock(Machine::instance().mutex);
  fail_call_later(name, device, nth, 0);
}

void drop_waits(void* stream) { mark(stream, &Stream::drops_waits, true); }

void drop_records(void* stream) { mark(stream, &Stream::drops_records, true); }

void fail_device(int device, int code) {
  Machine& machine = Machine::instance();
  const std::lock_guard lock(machine.mutex);
  for (const auto& context : machine.contexts)
    if (context->device == device) context->sticky = code;
}

void fail_rank(int rank, int code) {
  const std::lock_guard lock(Machine::instance().mutex);
  each_of_rank(rank, [code](Communicator* communicator) {
    communicator->async_error = code;
    communicator->last_error = "told to by the test";
  });
}

void stall_rank(int rank) {
  const std::lock_guard lock(Machine::instance().mutex);
  each_of_rank(rank, [](Communicator* communicator) { communicator->is_stalled = true; });
}

void set_nccl_version(int version) { nccl_version() = version == 0 ? kNcclVersion : version; }

uint64_t calls(std::string_view name) {
  const std::lock_guard lock(Machine::instance().mutex);
  return calls_of(name, {});
}

uint64_t calls(std::string_view name, int device) {
  const std::lock_guard lock(Machine::instance().mutex);
  return calls_of(name, device);
}

std::vector<void*> urgent_streams(int device) {
  Machine& machine = Machine::instance();
  const std::lock_guard lock(machine.mutex);
  std::vector<void*> found;
  std::vector<size_t> ages;
  for (const auto& [handle, stream] : machine.stream_handles) {
    if (stream->context->device != device || stream->priority != kGreatestPriority) continue;
    const auto younger = std::upper_bound(ages.begin(), ages.end(), stream->clock_id);
    found.insert(found.begin() + (younger - ages.begin()), reinterpret_cast<void*>(handle));
    ages.insert(younger, stream->clock_id);
  }
  return found;
}

}  // namespace noria::standin
