#include "verbs/soft/pace.hpp"

#include <algorithm>

#include "verbs/soft/engine.hpp"
#include "verbs/soft/queue_pair.hpp"

namespace noria::soft {

bool is_delivered(Qp& qp, const Wqe& wqe, Nanoseconds now) {
  Pace& pace = qp.pace;
  if (!pace.is_booked || (qp.moved == pace.booked && pace.booked < wqe.bytes)) {
    const uint32_t device = device_of(qp.pd_number);
    const Shaper& shaper = qp.engine.shaper(device);
    const uint64_t bytes = Shaper::chunk(wqe.bytes - pace.booked);
    const Nanoseconds ready = std::max(wqe.posted, pace.not_before);
    PortSchedule& ours = qp.engine.port(device);
    PortSchedule& theirs = *qp.target_port;
    pace.arrival = wqe.is_answered() ? shaper.read(theirs, ours, ready, bytes)
                                     : shaper.send(ours, theirs, ready, bytes);
    pace.booked += bytes;
    pace.is_booked = true;
  }
  return now >= pace.arrival;
}

Nanoseconds known_at(const Qp& qp, const Wqe& wqe) {
  // A read is known where its bytes arrive; everything else is acknowledged from the far end.
  const Shaper& shaper = qp.engine.shaper(device_of(qp.pd_number));
  return wqe.is_answered() ? qp.pace.arrival : shaper.acknowledged(qp.pace.arrival);
}

}  // namespace noria::soft
