// What queue pairs were told, as the device answers it.
//
// libnoria-spyverbs.so is the software HCA with one function more in front: each queue pair that
// becomes ready to send is asked by ibv_query_qp() for its attributes, which are kept, as is what
// registrations ask for. A test links it, and names it by NORIA_IBVERBS.
//
// Threads: any thread.
#pragma once

#include <infiniband/verbs.h>

#include <vector>

namespace noria::test {

// In the order in which they became ready.
[[gnu::visibility("default")]] std::vector<ibv_qp_attr> spied_qps();
[[gnu::visibility("default")]] void forget_spied_qps();

// The access that ibv_reg_mr_iova2() was asked for, call by call.
[[gnu::visibility("default")]] std::vector<unsigned> spied_accesses();

}  // namespace noria::test
