// Failure: a noria_status with the text that people read.
//
// Used everywhere in bucketing off the hot path. The text names the object, the peer, the cause and
// what to try. Whoever first names the failure writes the text; callers pass it up as it is.
//
// Threads: a value; any thread.
#pragma once

#include <noria/noria.h>

#include <cstring>
#include <string>
#include <utility>

#include "base/result.hpp"

namespace noria::bucketing {

struct Failure {
  noria_status code = NORIA_E_INTERNAL;
  std::string text;
};

template <class T>
using Outcome = Result<T, Failure>;

// Translates a Code of the machine room to what the C API says.
constexpr noria_status to_noria_status(Code code) {
  switch (code) {
    case Code::ok: return NORIA_OK;
    case Code::bad_argument: return NORIA_E_ARG;
    case Code::bad_state: return NORIA_E_STATE;
    case Code::unsupported: return NORIA_E_UNSUPPORTED;
    case Code::no_memory: return NORIA_E_NOMEM;
    case Code::timed_out: return NORIA_E_TIMEOUT;
    case Code::aborted: return NORIA_E_ABORTED;
    case Code::mismatch: return NORIA_E_MISMATCH;
    case Code::stranger: return NORIA_E_NET;
    case Code::peer_lost: return NORIA_E_PEER;
    case Code::connection_lost: return NORIA_E_NET;
    case Code::port_down: return NORIA_E_NET;
    case Code::device_lost: return NORIA_E_DEVICE;
    case Code::internal: return NORIA_E_INTERNAL;
  }
  return NORIA_E_INTERNAL;
}

// Why, in the system's own words where it said so.
inline std::string cause_of(const Status& status) {
  const bool is_of_system = status.origin() == Origin::sys_errno && status.raw() != 0;
  return is_of_system ? std::strerror(status.raw()) : to_string(status.code());
}

// What the system denied to `user`, a part of ours.
inline Failure no_descriptor(const std::string& user) {
  return {NORIA_E_NOMEM, "no descriptor for " + user + ": raise the limit of open files"};
}
inline Failure no_thread(const std::string& user, int error) {
  return {NORIA_E_NOMEM, "no thread for " + user + ": " + std::strerror(error) +
                             "; raise the limit of processes (ulimit -u), or the container's"};
}

}  // namespace noria::bucketing
