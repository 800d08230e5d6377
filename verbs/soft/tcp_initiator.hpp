// The initiator's side of a TCP connection: requests are sent part by part, and answered.
//
// One part is under way for each queue pair. The answer brings the bytes of a READ, and says that
// what was sent is where it belongs: so a request completes as on hardware, when the far end has
// it. While none comes the request waits for as long as the queue pair's timeout and retries say,
// counted from when the connection ended or the other host became silent; a process that is stopped
// is neither.
//
// Threads: under Qp::exec but for on_answer() and take_target(), which the pump calls.
#pragma once

#include "verbs/soft/queue_pair.hpp"
#include "verbs/soft/step.hpp"
#include "verbs/soft/tcp_network.hpp"

namespace noria::soft {

// Sends the next part of a request, of at most tcp::kMaxPayload.
Outcome ask_over_tcp(Qp& qp, Wqe& wqe, const Cut& cut);
// A part is under way or was answered. `moved`: nothing keeps the request from going on.
Outcome follow_over_tcp(Qp& qp, Wqe& wqe);
// Whether the target's process has ended or its host is silent. Asks the kernel now and then.
bool is_host_gone(Qp& qp);

// Tells the target that this life of ours talks to that one of it.
void bind_over_tcp(Qp& qp);
// The same as the words of an initiator in shared memory.
void want_over_tcp(const Qp& qp, uint64_t number);
void fault_over_tcp(const Qp& qp);

// What the other side says of a queue pair of its own. False: it cannot be.
bool take_target(SharedSegment& mirror, const tcp::Target& told);
void on_answer(Qp& qp, const Peer& from, const tcp::Answer& answer, const TcpStream::Frame& frame);

}  // namespace noria::soft
