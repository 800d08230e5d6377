// The test's side of the stand-in for CUDA's driver and NCCL: libnoria-cuda-standin.so.
//
// A test links it and names it by NORIA_CUDA and NORIA_NCCL, so that libnoria finds the very same
// devices. There are eight of them. Ranks are threads of the process, each with a device of its
// own, or of several processes, each of which is alone with its own orders, seeds and failures.
// What it takes of a real driver's freedom it uses up: operations run as late, as early and in
// as strange an order as streams and events allow, and each read or write of memory that nothing
// orders is a violation, in words.
//
// Host threads are told apart only by what they asked for: what a thread waited for all threads
// know, what it saw by a query it knows alone until it hands that over.
//
// Threads: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace noria::standin {

struct Range {
  uint64_t address = 0;
  size_t bytes = 0;
};

#pragma GCC visibility push(default)

// ---- between tests ------------------------------------------------------------------------------

// Lets go of what is held or stalled, ends what hangs, and forgets violations, counts, failures and
// who touched what. Objects stay as they are. A seed that 3 divides plays eagerly, others do only
// what they must; odd ones give stream handles out again.
void reset(uint64_t seed);
// What was found since the last time, one sentence each. Everything that can run has run then.
std::vector<std::string> violations();
// Streams, events and allocations that nobody has destroyed or freed.
size_t objects_alive();

// ---- work of the test's own ---------------------------------------------------------------------

// A kernel that reads and writes what it says. `act` runs on a thread of the device and reaches
// device memory through memory_of().
void launch(void* stream, std::string_view name, const std::vector<Range>& reads,
            const std::vector<Range>& writes, std::function<void()> act);
// The bytes behind a device address, now, and without the checker.
void* memory_of(uint64_t address);
// The test's own look at memory that the host may touch, or a write to it: pinned memory, or device
// memory by memory_of().
void host_reads(std::string_view name, Range range);
void host_writes(std::string_view name, Range range);
// `after` waits for what `before` has been told so far, without a call that counts.
void order(void* before, void* after);
// What this thread has seen by queries other threads may count on from here.
void hand_over();

// ---- when things run ----------------------------------------------------------------------------

// Nothing of the stream begins until it is released.
void hold(void* stream);
void release(void* stream);
// The same of all streams of all devices, whoever made them.
void hold_all();
void release_all();
// The stream runs only when no other can.
void make_slow(void* stream);
// Runs all that can run. Whether everything has.
bool finish();
// Whether the stream has nothing left to do, which the host does not learn by it.
bool is_idle(void* stream);

// ---- what goes wrong ----------------------------------------------------------------------------

// The nth call of an entry point from here on does nothing but answer `code`. With or without _v2.
void fail_call(std::string_view name, uint64_t nth, int code);
// Every call on the device answers `code`, as after an error of a kernel; 0: no more.
void fail_device(int device, int code);
// The nth call of this thread from here on does nothing, and says that it did: threads of
// libnoria's own ask and record when they like, and are not meant.
void skip_call(std::string_view name, uint64_t nth);
// The same of calls with the device's context current: of one rank.
void skip_call(std::string_view name, int device, uint64_t nth);
// So does every wait that the stream is told, or every record in it, until reset.
void drop_waits(void* stream);
void drop_records(void* stream);
// What ncclCommGetAsyncError() tells the rank of every communicator there is.
void fail_rank(int rank, int code);
// Collectives of the rank in every communicator there is never begin, until reset or abort.
void stall_rank(int rank);
// What ncclGetVersion() tells from now on; 0: as at first.
void set_nccl_version(int version);

// ---- what was called ----------------------------------------------------------------------------

uint64_t calls(std::string_view name);
uint64_t calls(std::string_view name, int device);
// The device's streams of the greatest priority, in the order of their making: libnoria's.
std::vector<void*> urgent_streams(int device);

#pragma GCC visibility pop

// Device memory as elements.
template <class T>
T* memory_as(uint64_t address) {
  return static_cast<T*>(memory_of(address));
}

}  // namespace noria::standin
