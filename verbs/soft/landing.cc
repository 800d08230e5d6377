#include "verbs/soft/landing.hpp"

#include <algorithm>

namespace noria::soft {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;  // ordered by the target's rq_tail and state

Range behind(const Range& range, uint64_t offset) {
  Range moved = range;
  moved.address += offset;
  moved.iova += offset;
  moved.allocation_offset += offset;
  return moved;
}

}  // namespace

void Landing::add(const Peer& peer, const std::optional<Range>& range, uint64_t length) {
  bytes[count] = length;
  room += length;
  if (length > 0) {
    is_valid = is_valid && range.has_value();
    if (range) at[count] = *range;
    is_posted = is_posted || (range && range->is_posted != 0);
    is_direct = is_direct && range && !is_posted && direct_address(peer, *range, length) != nullptr;
  }
  ++count;
}

NORIA_HOT Landing find_remote_range(const Qp& qp, const Wqe& wqe) {
  Landing landing;
  if (wqe.bytes == 0) return landing;  // touches no memory, so that the key need not be good
  const uint32_t access = wqe.is_atomic()                  ? IBV_ACCESS_REMOTE_ATOMIC
                          : wqe.opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_REMOTE_READ
                                                           : IBV_ACCESS_REMOTE_WRITE;
  if ((qp.target->access.load(kRelaxed) & access) == 0) {
    landing.is_valid = false;
    return landing;
  }
  landing.add(*qp.target_peer,
              find_range(qp.target_peer->shared(), wqe.rkey, qp.target->pd.load(kRelaxed), access,
                         wqe.remote_address, wqe.bytes),
              wqe.bytes);
  return landing;
}

NORIA_HOT Landing find_receive(const Qp& qp) {
  const SharedSegment& theirs = qp.target_peer->shared();
  const SharedQp& target = *qp.target;
  Landing landing;
  // The target wrote these words: follow them only inside its segment.
  const uint64_t slot = qp.receives_taken & qp.ring_mask;
  const uint64_t offset = target.rq_offset.load(kRelaxed);
  const uint64_t stride = target.rq_stride.load(kRelaxed);
  const uint64_t room = stride - sizeof(uint64_t);  // of its entries
  if (stride < sizeof(uint64_t) || stride % alignof(SharedRecv) != 0 ||
      offset % alignof(SharedRecv) != 0 || offset > kRingArenaBytes ||
      (slot + 1) * stride > kRingArenaBytes - offset) {
    landing.is_valid = false;
    return landing;
  }
  const auto& receive = *reinterpret_cast<const SharedRecv*>(theirs.rings + offset + slot * stride);
  const uint32_t pd = target.pd.load(kRelaxed);
  const auto count = std::min(
      {receive.sge_count.load(kRelaxed), uint64_t{kMaxSge}, uint64_t{room / sizeof(SharedSge)}});
  for (uint64_t i = 0; i < count; ++i) {
    const SharedSge& sge = receive.sge[i];
    const uint64_t length = sge.length.load(kRelaxed);
    landing.add(*qp.target_peer,
                find_range(theirs, sge.key.load(kRelaxed), pd, IBV_ACCESS_LOCAL_WRITE,
                           sge.address.load(kRelaxed), length),
                length);
  }
  return landing;
}

Range one_range(const Landing& landing, Cut* cut, bool from_end) {
  const uint64_t wanted = from_end ? cut->offset + cut->bytes - 1 : cut->offset;
  uint64_t start = 0;
  size_t i = 0;
  while (i + 1 < landing.count && wanted >= start + landing.bytes[i]) start += landing.bytes[i++];
  const uint64_t first = std::max(cut->offset, start);
  const uint64_t last = std::min(cut->offset + cut->bytes, start + landing.bytes[i]);
  *cut = {first, last - first};
  return behind(landing.at[i], first - start);
}

NORIA_HOT CopyResult transfer(const Peer& peer, Direction direction, const Landing& landing,
                              const Pieces& local, Cut cut) {
  if (landing.count == 1)
    return copy(peer, direction, local.all(), behind(landing.at[0], cut.offset), cut.bytes);
  Pieces rest = local;
  while (cut.bytes > 0) {
    Cut part = cut;
    const Range range = one_range(landing, &part, false);
    const Pieces front = take_front(&rest, part.bytes);
    const CopyResult result = copy(peer, direction, front.all(), range, part.bytes);
    if (result != CopyResult::done) return result;
    cut = {cut.offset + part.bytes, cut.bytes - part.bytes};
  }
  return CopyResult::done;
}

}  // namespace noria::soft
