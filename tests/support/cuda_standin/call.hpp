// The beginning of every entry point: it is counted, it may be told to fail, and it has what it
// needs.
//
// Threads: a Call holds the machine for as long as it lives.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <variant>

#include "tests/support/cuda_standin/machine.hpp"

namespace noria::standin {

enum class Needs { nothing, device, context };  // each more than the one before

class Call {
 public:
  // `name` as it is exported.
  Call(const char* name, Needs needs);

  bool is_over() const { return is_skipped_ || code_ != 0; }  // and answers code()
  int code() const { return code_; }
  std::unique_lock<std::mutex>* lock() { return &lock_; }
  Machine& machine() const { return machine_; }

 private:
  Machine& machine_;
  std::unique_lock<std::mutex> lock_;
  bool is_skipped_ = false;
  int code_;
};

// Whose calls: anybody's, those with the device's context current, or the thread's.
using Caller = std::variant<std::monostate, int, std::thread::id>;
// How often each was called, and which call fails next, or, with code 0, does nothing.
void fail_call_later(std::string_view name, Caller of, uint64_t nth, int code);
uint64_t calls_of(std::string_view name, Caller of);
void forget_calls();

}  // namespace noria::standin
