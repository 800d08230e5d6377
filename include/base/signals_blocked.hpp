// SignalsBlocked: while it lives, a thread that is created takes no signals.
//
// Signals are the application's business: a process-wide one must reach a thread that the
// application made, which may wait for it in sigwait(2) or have a system call to be interrupted.
//
// Threads: affects the calling thread only, and those it creates meanwhile.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace noria {

class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);  // fails only for arguments that are none
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace noria
