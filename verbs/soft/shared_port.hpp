// The schedule of a port, and how processes that name the same host come to share it.
//
// It lies in a memfd. Where a device belongs to a named host, the first process that opens it also
// listens on an abstract socket named after user, host and device; who comes later is handed the
// memory *and the listening socket*. So the name lives exactly as long as anybody has the port
// open, whoever of them dies first, and there is nothing to take over and nothing left behind.
//
// Threads: join() by who opens the device; hand_over() by the service thread.
#pragma once

#include <string>

#include "base/result.hpp"
#include "verbs/soft/segment.hpp"
#include "verbs/soft/shaper.hpp"

namespace noria::soft {

struct SharedPort {
  Fd memory;
  Fd listener;  // not open: the port is this process's own
  Mapping<PortSchedule> schedule;
};

// `key` names the port among this user's, "host/device"; empty: one of our own. Waits at most two
// seconds for those who have it; a failure is one line for people.
Result<SharedPort, std::string> join_port(const std::string& key);

// Gives what `port` is to one process that asks for it; nothing if nobody does. Does not block.
// False: no descriptor for who asks, who waits and would wake us without end.
bool hand_over(const SharedPort& port);

}  // namespace noria::soft
