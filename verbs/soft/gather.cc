#include "verbs/soft/gather.hpp"

#include <algorithm>

#include "verbs/soft/device_copy.hpp"
#include "verbs/soft/engine.hpp"
#include "verbs/soft/own_pages.hpp"

namespace noria::soft {
namespace {

bool add_piece(const Qp& qp, const ibv_sge& sge, uint32_t access, const Cut& part, Pieces* out) {
  const auto range =
      find_range(qp.engine.shared(), sge.lkey, qp.pd_number, access, sge.addr, sge.length);
  if (!range) return false;
  if (range->is_posted != 0) {
    out->posted |= 1u << out->count;
    // A device that reads this memory pushes on what it wrote there.
    if (access == 0) qp.engine.posted_writes().publish(device_of(qp.pd_number));
  }
  if (part.bytes > 0)
    out->at[out->count++] = {reinterpret_cast<void*>(range->address + part.offset), part.bytes};
  return true;
}

}  // namespace

NORIA_HOT bool gather(const Qp& qp, Wqe& wqe, const Cut& cut, Pieces* out) {
  if ((wqe.flags & (IBV_SEND_INLINE | Wqe::kIsHeld)) != 0) {
    uint8_t* bytes = (wqe.flags & Wqe::kIsHeld) != 0 ? newest_bytes(qp) : wqe.inline_data();
    if (cut.bytes > 0) out->at[out->count++] = {bytes + cut.offset, cut.bytes};
    return true;
  }
  const uint32_t access = wqe.is_answered() ? IBV_ACCESS_LOCAL_WRITE : 0;
  uint64_t skip = cut.offset, bytes = cut.bytes;
  for (uint32_t i = 0; i < wqe.sge_count; ++i) {
    const ibv_sge& sge = wqe.sges()[i];
    const uint64_t skipped = std::min<uint64_t>(skip, sge.length);
    const uint64_t take = std::min<uint64_t>(bytes, sge.length - skipped);
    if (sge.length > 0 && !add_piece(qp, sge, access, {skipped, take}, out)) return false;
    skip -= skipped;
    bytes -= take;
  }
  return true;
}

bool is_mapped(const Pieces& pieces, bool for_writing) {
  const auto all = pieces.all();
  return std::all_of(all.begin(), all.end(), [for_writing](const iovec& piece) {
    return has_pages(reinterpret_cast<uintptr_t>(piece.iov_base), piece.iov_len, for_writing);
  });
}

void scatter(const Pieces& to, const uint8_t* from) {
  for (const iovec& piece : to.all()) {
    device_copy(piece.iov_base, from, piece.iov_len);
    from += piece.iov_len;
  }
}

Pieces take_front(Pieces* from, uint64_t bytes) {
  Pieces taken;
  size_t i = 0;
  for (; i < from->count && bytes > 0; ++i) {
    iovec& piece = from->at[i];
    const uint64_t part = std::min<uint64_t>(bytes, piece.iov_len);
    taken.at[taken.count++] = {piece.iov_base, part};
    bytes -= part;
    piece = {static_cast<uint8_t*>(piece.iov_base) + part, piece.iov_len - part};
    if (piece.iov_len > 0) break;
  }
  std::copy(from->at + i, from->at + from->count, from->at);
  from->count -= i;
  return taken;
}

}  // namespace noria::soft
