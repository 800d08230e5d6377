#include "tests/support/spy_verbs.hpp"

#include <dlfcn.h>

#include <mutex>

namespace noria::test {
namespace {

std::mutex mutex;
std::vector<ibv_qp_attr> seen;

// The device's own function of this name.
template <class Function>
Function* real(const char* name) {
  static void* const device = dlopen(NORIA_SPIED_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<Function*>(dlvsym(device, name, "IBVERBS_1.1"));
}

}  // namespace

std::vector<ibv_qp_attr> spied_qps() {
  const std::lock_guard lock(mutex);
  return seen;
}

void forget_spied_qps() {
  const std::lock_guard lock(mutex);
  seen.clear();
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
