// Names for people: what verbs enumerators are called, and what to try when a completion fails.
//
// All strings are static. Unknown values answer "unknown ...", never null.
//
// Threads: any thread.
#pragma once

#include <infiniband/verbs.h>

namespace noria::verbs {

const char* to_string(ibv_wc_status status);
const char* to_string(ibv_port_state state);
const char* to_string(ibv_event_type event);

// What a failed completion suggests to look at: "is the peer alive? ...".
const char* advice(ibv_wc_status status);

}  // namespace noria::verbs
