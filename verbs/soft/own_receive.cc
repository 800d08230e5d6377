#include "verbs/soft/own_receive.hpp"

#include <algorithm>

#include "verbs/soft/device_copy.hpp"
#include "verbs/soft/engine.hpp"

namespace noria::soft {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;  // published by rq_tail

std::optional<Range> range_of(const Qp& qp, const SharedSge& sge, uint64_t bytes) {
  return find_range(qp.engine.shared(), sge.key.load(kRelaxed), qp.pd_number,
                    IBV_ACCESS_LOCAL_WRITE, sge.address.load(kRelaxed), bytes);
}

uint64_t count_of(const SharedRecv& receive) {
  return std::min<uint64_t>(receive.sge_count.load(kRelaxed), kMaxSge);
}

}  // namespace

OwnReceive find_own_receive(const Qp& qp, uint64_t number) {
  const SharedRecv& receive = qp.shared_recv(number);
  OwnReceive found{0, true};
  for (uint64_t i = 0; i < count_of(receive); ++i) {
    const uint64_t bytes = receive.sge[i].length.load(kRelaxed);
    found.is_good = found.is_good && (bytes == 0 || range_of(qp, receive.sge[i], bytes));
    found.room += bytes;
  }
  return found;
}

bool place_in_receive(const Qp& qp, uint64_t number, uint64_t offset, const uint8_t* from,
                      uint64_t bytes) {
  const SharedRecv& receive = qp.shared_recv(number);
  for (uint64_t i = 0; i < count_of(receive) && bytes > 0; ++i) {
    const SharedSge& sge = receive.sge[i];
    const uint64_t length = sge.length.load(kRelaxed);
    const uint64_t skipped = std::min(offset, length);
    const uint64_t part = std::min(bytes, length - skipped);
    offset -= skipped;
    if (part == 0) continue;
    const auto range = range_of(qp, sge, skipped + part);
    if (!range) return false;
    uint8_t* const to = reinterpret_cast<uint8_t*>(range->address) + skipped;
    if (range->is_posted != 0)
      qp.engine.posted_writes().add(device_of(qp.pd_number), to, from, part);
    else
      device_copy(to, from, part);
    from += part;
    bytes -= part;
  }
  return bytes == 0;
}

}  // namespace noria::soft
