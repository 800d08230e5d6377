#include "tests/support/spy_verbs.hpp"

#include <dlfcn.h>

#include <mutex>

namespace noria::test {
namespace {

std::mutex mutex;
std::vector<ibv_qp_attr> seen;
std::vector<unsigned> accesses;

// The device's own function of this name.
template <class Function>
Function* real(const char* name, const char* version = "IBVERBS_1.1") {
  static void* const device = dlopen(NORIA_SPIED_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<Function*>(dlvsym(device, name, version));
}

}  // namespace

std::vector<ibv_qp_attr> spied_qps() {
  const std::lock_guard lock(mutex);
  return seen;
}

std::vector<unsigned> spied_accesses() {
  const std::lock_guard lock(mutex);
  return accesses;
}

void forget_spied_qps() {
  const std::lock_guard lock(mutex);
  seen.clear();
  accesses.clear();
}

}  // namespace noria::test

extern "C" [[gnu::visibility("default")]] int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attr,
                                                            int mask) {
  using namespace noria::test;  // NOLINT: the body of a C function
  const int failure = real<decltype(ibv_modify_qp)>("ibv_modify_qp")(qp, attr, mask);
  if (failure != 0 || attr->qp_state != IBV_QPS_RTS) return failure;
  ibv_qp_attr answer{};
  ibv_qp_init_attr unused{};
  if (real<decltype(ibv_query_qp)>("ibv_query_qp")(qp, &answer, ~0, &unused) == 0) {
    const std::lock_guard lock(mutex);
    seen.push_back(answer);
  }
  return 0;
}

extern "C" [[gnu::visibility("default")]] ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address,
                                                                   size_t length, uint64_t iova,
                                                                   unsigned access) {
  using namespace noria::test;  // NOLINT: the body of a C function
  {
    const std::lock_guard lock(mutex);
    accesses.push_back(access);
  }
  return real<decltype(ibv_reg_mr_iova2)>("ibv_reg_mr_iova2", "IBVERBS_1.8")(pd, address, length,
                                                                             iova, access);
}
