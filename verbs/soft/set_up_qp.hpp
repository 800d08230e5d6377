// Life of a queue pair: creation, state transitions, destruction.
//
// Transitions follow the specification's table: a missing attribute, an attribute that does not
// belong, or a state that cannot be reached from here is EINVAL and changes nothing. RESET, ERR and
// destruction return after the fence: no byte lands afterwards.
//
// Threads: any thread; one at a time for one queue pair.
#pragma once

#include <infiniband/verbs.h>

#include "verbs/soft/engine.hpp"

namespace noria::soft {

// Null with errno set.
Qp* create_qp(Engine& engine, ibv_pd* pd, uint32_t pd_number, ibv_qp_init_attr* init);
// 0, or an errno value.
int modify_qp(Qp& qp, const ibv_qp_attr& attr, int mask);
int destroy_qp(Qp& qp);
void query_qp(const Qp& qp, ibv_qp_attr* attr, ibv_qp_init_attr* init);
// Enhanced connection establishment, of a device that has it; its options mean nothing here. What
// the peer can is taken in INIT alone; from RTR on the queue pair tells what both can, or nothing
// where nothing was taken. RESET forgets it.
int set_ece(Qp& qp, const ibv_ece& peer);
int query_ece(const Qp& qp, ibv_ece* out);
// Publishes anew whether peers reach it, after its port went down or came up.
void show_port_state(Qp& qp);

}  // namespace noria::soft
