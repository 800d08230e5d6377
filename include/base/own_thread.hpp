// OwnThread: a thread of noria's own, which takes no signals.
//
// Where the system has no thread to give, start() says so: std::thread would throw, and so end the
// process that noria lives in.
//
// Threads: one at a time; it is joined by its owner, or detached, before it is destroyed.
#pragma once

#include <pthread.h>

#include <functional>
#include <memory>
#include <utility>

#include "base/signals_blocked.hpp"

namespace noria {

class OwnThread {
 public:
  OwnThread() = default;
  OwnThread(const OwnThread&) = delete;
  OwnThread& operator=(const OwnThread&) = delete;

  // 0, or an errno value: EAGAIN where a user or a container has all the threads it may have.
  [[nodiscard]] int start(std::function<void()> body) {
    auto given = std::make_unique<std::function<void()>>(std::move(body));
    const SignalsBlocked blocked;
    const int error = pthread_create(&thread_, nullptr, &OwnThread::run, given.get());
    if (error != 0) return error;
    static_cast<void>(given.release());  // the thread has it
    is_joinable_ = true;
    return 0;
  }
  bool is_joinable() const { return is_joinable_; }
  void join() {
    pthread_join(thread_, nullptr);
    is_joinable_ = false;
  }
  void detach() {
    pthread_detach(thread_);
    is_joinable_ = false;
  }

 private:
  static void* run(void* given) {
    const std::unique_ptr<std::function<void()>> body(static_cast<std::function<void()>*>(given));
    (*body)();
    return nullptr;
  }

  pthread_t thread_{};
  bool is_joinable_ = false;
};

}  // namespace noria
