// All devices of the process: contexts, streams, events, and the one thread that plays the devices.
//
// An operation runs when that thread picks it, by chance, among those at the head of a stream whose
// waits are over. Whether it looks at once, or only when somebody waits or asks, the seed says too.
// So whatever stream order and events allow happens, sooner or later.
//
// Threads: everything behind `mutex`, which entry points hold (Call) and the player drops while it
// moves bytes.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/cuda_standin/checker.hpp"
#include "tests/support/cuda_standin/memory.hpp"
#include "tests/support/cuda_standin/vector_clock.hpp"

namespace noria::standin {

inline constexpr int kDevices = 8;

struct Stream;
struct CollectiveLaunch;

struct Operation {
  uint64_t number = 0;
  Stream* stream = nullptr;
  std::shared_ptr<const std::string> name;
  std::vector<std::shared_ptr<Operation>> after;  // of other streams
  VectorClock issued;                             // what the host knew
  std::function<std::vector<Access>()> touches;   // asked when it runs
  std::function<void()> act;
  std::shared_ptr<CollectiveLaunch> collective;  // in place of `act`
  bool is_done = false;
  VectorClock clock;  // from when it began
  std::chrono::steady_clock::time_point ended;
};
using OperationRef = std::shared_ptr<Operation>;

struct Context {
  int device = 0;
  bool is_primary = false;
  int retained = 0;
  bool is_alive = false;
  int sticky = 0;  // what every call answers from now on
  Stream* legacy = nullptr;
  std::map<std::thread::id, Stream*> per_thread;
};

struct Stream {
  size_t clock_id = 0;
  Context* context = nullptr;
  bool is_blocking = true;  // in order with the legacy default stream
  int priority = 0;
  bool is_destroyed = false;
  bool is_held = false;
  bool is_slow = false;
  bool drops_waits = false;
  bool drops_records = false;
  std::string name;
  std::deque<OperationRef> queue;
  OperationRef last;
  VectorClock clock;
};

struct Event {
  Context* context = nullptr;
  bool is_timed = true;
  OperationRef record;  // null: never recorded
};

// What a call of the host knows of the devices.
struct HostThread {
  std::vector<Context*> contexts;  // the last one is current
  VectorClock seen;                // by its queries; what was waited for, all threads know
  uint64_t generation = 0;         // of the history that `seen` is of
};
HostThread& host_thread();

class Machine {
 public:
  static Machine& instance();

  // ---- for those who hold `mutex` ----
  Context* current() const;  // null: none
  // The stream of a handle, the default ones of the current context among them; null: no such.
  Stream* stream(void* handle);
  void* add_stream(Context* context, bool is_blocking, int priority);
  void destroy_stream(void* handle);
  Event* event(void* handle);
  void* add_event(Context* context, bool is_timed);
  void destroy_event(void* handle);
  void end_context(Context* context);

  OperationRef enqueue(Stream* stream, const std::string& name);
  OperationRef enqueue(Stream* stream, const std::string& name,
                       std::function<std::vector<Access>()> touches, std::function<void()> act);
  OperationRef enqueue(Stream* stream, OperationRef operation);
  // Until it is done; false after a minute.
  bool wait(const OperationRef& operation, std::unique_lock<std::mutex>* lock);
  bool wait_all(std::unique_lock<std::mutex>* lock);  // all that can run
  // Whether it is done; the player goes on by a few steps where it is not.
  bool query(const OperationRef& operation);
  void host_touch(const std::string& name, const Access& access);
  void hand_over();
  void violation(std::string text) { violations.push_back(std::move(text)); }
  // Those of an operation, and whether they are allowed to it.
  bool check(const Operation& operation, const std::vector<Access>& accesses);
  void poke();            // what the player waits for may have changed
  void forget_history();  // nothing is under way, or what is hangs
  void seed(uint64_t value);
  void start();

  std::mutex mutex;
  std::condition_variable changed;  // an operation is done, a communicator came on
  // The process that called cuInit, which alone has the machine from then on. 0: none yet.
  std::atomic<pid_t> process{0};
  Memory memory;
  Checker checker;
  std::vector<std::string> violations;
  std::vector<std::unique_ptr<Context>> contexts;  // the first kDevices are primary
  std::vector<std::unique_ptr<Stream>> streams;    // ever made
  std::map<uint64_t, Stream*> stream_handles;
  std::map<uint64_t, Event> events;
  std::mt19937_64 random;
  bool holds_all = false;

 private:
  Machine();
  Stream* new_stream(Context* context, bool is_blocking, int priority, const char* kind);
  VectorClock& seen();
  VectorClock host_clock();
  void play();
  OperationRef pick();
  bool is_ready(const Stream& stream) const;
  bool may_play() const;
  void begin(Operation* operation);
  void run(const OperationRef& operation, std::unique_lock<std::mutex>* lock);
  void finish(const OperationRef& operation);

  std::condition_variable work_;
  bool is_started_ = false;
  bool is_playing_ = false;
  bool is_lazy_ = false;
  bool reuses_handles_ = false;
  uint64_t steps_ = 0;  // that a lazy player may make
  int waiting_ = 0;
  uint64_t operations_ = 0;
  uint64_t next_stream_ = 0x7000000010;
  uint64_t next_event_ = 0x7100000010;
  size_t next_clock_id_ = 1;
  uint64_t generation_ = 0;
  std::vector<uint64_t> free_stream_handles_;
  VectorClock host_;  // the part of what the host knows that all its threads do
  uint64_t host_time_ = 0;
};

}  // namespace noria::standin
