#include "verbs/soft/held_answers.hpp"

#include <algorithm>

#include "verbs/soft/device_copy.hpp"
#include "verbs/soft/engine.hpp"
#include "verbs/soft/gather.hpp"
#include "verbs/soft/queue_pair.hpp"

namespace noria::soft {
namespace {

constexpr uint64_t kMost = 64 << 10;

auto find(const Qp& qp, uint64_t number) {
  return std::find_if(qp.held.all.begin(), qp.held.all.end(),
                      [number](const HeldAnswer& each) { return each.number == number; });
}

bool is_under_way(const HeldAnswer& answer) { return !answer.has_landed; }

void land(Qp& qp, HeldAnswer& answer) {
  Wqe& wqe = qp.wqe(answer.number);
  wqe.flags &= ~Wqe::kIsHeld;
  answer.has_landed = true;
  Pieces local;
  // Looked up again: the region may be gone, or its memory.
  if (!gather(qp, wqe, {0, wqe.bytes}, &local) || !is_mapped(local, true)) {
    answer.status = IBV_WC_LOC_PROT_ERR;
    return;
  }
  const uint8_t* from = answer.bytes.data();
  for (size_t i = 0; i < local.count; ++i) {
    auto* to = static_cast<uint8_t*>(local.at[i].iov_base);
    const uint64_t bytes = local.at[i].iov_len;
    if ((local.posted >> i & 1) != 0)
      qp.engine.posted_writes().add(device_of(qp.pd_number), to, from, bytes);
    else
      device_copy(to, from, bytes);
    from += bytes;
  }
  answer.status = IBV_WC_SUCCESS;
}

}  // namespace

bool begin_late(Qp& qp, Wqe& wqe) {
  if (qp.moved + qp.asked != 0 || (wqe.flags & Wqe::kIsHeld) != 0) return true;
  const auto count = std::count_if(qp.held.all.begin(), qp.held.all.end(), is_under_way);
  if ((wqe.flags & IBV_SEND_FENCE) != 0 && count > 0) return false;
  if (!wqe.is_answered()) return true;
  if (count >= qp.attr.max_rd_atomic) return false;
  Pieces local;
  if (wqe.bytes == 0 || !gather(qp, wqe, {0, wqe.bytes}, &local)) return true;
  if (wqe.bytes > kMost && local.posted == 0) return true;
  qp.held.all.push_back({.number = qp.executed, .bytes = std::vector<uint8_t>(wqe.bytes)});
  wqe.flags |= Wqe::kIsHeld;
  return true;
}

uint8_t* newest_bytes(const Qp& qp) {
  return const_cast<uint8_t*>(qp.held.all.back().bytes.data());
}

void land_one(Qp& qp) {
  HeldAnswer* chosen = nullptr;
  for (HeldAnswer& each : qp.held.all)
    if (is_under_way(each) && each.number < qp.executed &&
        (chosen == nullptr || qp.held.coin.flip()))
      chosen = &each;
  if (chosen != nullptr) land(qp, *chosen);
}

void land_all(Qp& qp) {
  for (HeldAnswer& each : qp.held.all)
    if (is_under_way(each) && each.number < qp.executed) land(qp, each);
}

bool has_landed(const Qp& qp, uint64_t number) {
  const auto answer = find(qp, number);
  return answer == qp.held.all.end() || answer->has_landed;
}

ibv_wc_status release_answer(Qp& qp, uint64_t number) {
  const auto answer = find(qp, number);
  if (answer == qp.held.all.end()) return IBV_WC_SUCCESS;
  const ibv_wc_status status = answer->status;
  qp.held.all.erase(answer);
  return status;
}

}  // namespace noria::soft
