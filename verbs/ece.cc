#include "verbs/ece.hpp"

namespace noria::verbs {

Ece query_ece(const Api& api, ibv_qp* qp) {
  ibv_ece ece{};
  const bool is_known = api.probe<&Symbols::query_ece>(qp->context, qp, &ece).is_ok();
  // A form of it that came after this one.
  if (!is_known || ece.comp_mask != 0) return {};
  return {.vendor = ece.vendor_id, .options = ece.options};
}

bool set_ece(const Api& api, ibv_qp* qp, const Ece& peer) {
  ibv_ece ece{.vendor_id = peer.vendor, .options = peer.options};
  return api.probe<&Symbols::set_ece>(qp->context, qp, &ece).is_ok();
}

}  // namespace noria::verbs
