// Verbs that this device does not have: each says so the way its kind reports failure.
#include <errno.h>
#include <infiniband/verbs.h>

#include "verbs/soft/export.hpp"

namespace {
template <class T>
T* no_object() {
  errno = EOPNOTSUPP;
  return nullptr;
}
int no_call() {
  errno = EOPNOTSUPP;
  return -1;
}
}  // namespace

NORIA_EXPORT ibv_ah* ibv_create_ah(ibv_pd*, ibv_ah_attr*) { return no_object<ibv_ah>(); }
NORIA_EXPORT ibv_ah* ibv_create_ah_from_wc(ibv_pd*, ibv_wc*, ibv_grh*, uint8_t) {
  return no_object<ibv_ah>();
}
NORIA_EXPORT int ibv_init_ah_from_wc(ibv_context*, uint8_t, ibv_wc*, ibv_grh*, ibv_ah_attr*) {
  return no_call();
}
NORIA_EXPORT int ibv_destroy_ah(ibv_ah*) { return EOPNOTSUPP; }
NORIA_EXPORT int ibv_resolve_eth_l2_from_gid(ibv_context*, ibv_ah_attr*, uint8_t*, uint16_t*) {
  return no_call();
}

NORIA_EXPORT int ibv_attach_mcast(ibv_qp*, const ibv_gid*, uint16_t) { return EOPNOTSUPP; }
NORIA_EXPORT int ibv_detach_mcast(ibv_qp*, const ibv_gid*, uint16_t) { return EOPNOTSUPP; }

NORIA_EXPORT int ibv_rereg_mr(ibv_mr*, int, ibv_pd*, void*, size_t, int) {
  errno = EOPNOTSUPP;
  return IBV_REREG_MR_ERR_INPUT;  // the old region stays valid
}

NORIA_EXPORT ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp*) { return nullptr; }

NORIA_EXPORT ibv_context* ibv_import_device(int) { return no_object<ibv_context>(); }
NORIA_EXPORT ibv_pd* ibv_import_pd(ibv_context*, uint32_t) { return no_object<ibv_pd>(); }
NORIA_EXPORT void ibv_unimport_pd(ibv_pd*) {}
NORIA_EXPORT ibv_mr* ibv_import_mr(ibv_pd*, uint32_t) { return no_object<ibv_mr>(); }
NORIA_EXPORT void ibv_unimport_mr(ibv_mr*) {}
NORIA_EXPORT ibv_dm* ibv_import_dm(ibv_context*, uint32_t) { return no_object<ibv_dm>(); }
NORIA_EXPORT void ibv_unimport_dm(ibv_dm*) {}
