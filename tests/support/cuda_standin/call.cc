#include "tests/support/cuda_standin/call.hpp"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>

#include "tests/support/cuda_standin/driver_numbers.hpp"
#include "tests/support/cuda_standin/say.hpp"

namespace noria::standin {

namespace {

struct Calls {
  uint64_t made = 0;
  uint64_t fails_at = 0;  // 0: never
  int code = 0;
};

using Key = std::pair<std::string, Caller>;  // by name

std::map<Key, Calls>& calls() {
  static auto& all = *new std::map<Key, Calls>;
  return all;
}

// cuMemAlloc and cuMemAlloc_v2 are one.
std::string plain(std::string_view name) {
  if (name.ends_with("_v2")) name.remove_suffix(3);
  return std::string(name);
}

// What it is told to answer now; none: nothing.
std::optional<int> count(const std::string& name, Caller caller) {
  Calls& of = calls()[{name, caller}];
  ++of.made;
  if (of.made != of.fails_at) return {};
  of.fails_at = 0;
  return of.code;
}

int missing(const Machine& machine, const char* name, Needs needs) {
  if (needs == Needs::nothing) return kSuccess;
  if (machine.process == 0) return kNotInitialized;
  if (needs == Needs::device) return kSuccess;
  const Context* const context = machine.current();
  if (context == nullptr) return kInvalidContext;
  if (!context->is_alive) {
    Machine::instance().violation(
        say("%s with the context of device %d, which is gone", name, context->device));
    return kContextIsDestroyed;
  }
  return context->sticky;
}

// The machine of the process that initialised it. A child has its threads no more, and its mutex in
// whatever state it was: as with CUDA, none of it is of use there. Before cuInit a child is free.
Machine& machine_here(const char* name) {
  Machine& machine = Machine::instance();
  const pid_t process = machine.process;
  if (process == 0 || process == ::getpid()) return machine;
  std::fprintf(stderr, "%s in a child of the process that called cuInit\n", name);
  std::_Exit(EXIT_FAILURE);
}

}  // namespace

Call::Call(const char* name, Needs needs)
    : machine_(machine_here(name)), lock_(machine_.mutex), code_(0) {
  std::optional<int> told = count(plain(name), {});
  if (const std::optional<int> of_thread = count(plain(name), std::this_thread::get_id()))
    told = of_thread;
  if (const Context* const context = machine_.current())
    if (const std::optional<int> of_device = count(plain(name), context->device)) told = of_device;
  code_ = told && *told != 0 ? *told : missing(machine_, name, needs);
  is_skipped_ = told && *told == 0;
}

void fail_call_later(std::string_view name, Caller caller, uint64_t nth, int code) {
  Calls& of = calls()[{plain(name), caller}];
  of.fails_at = of.made + nth;
  of.code = code;
}

uint64_t calls_of(std::string_view name, Caller caller) {
  const auto found = calls().find({plain(name), caller});
  return found == calls().end() ? 0 : found->second.made;
}

void forget_calls() { calls().clear(); }

}  // namespace noria::standin
