// The tuner: what NCCL asks of it, in the newest words; tuner_tables.cc has the older ones.
//
// Every call answers success: an error would end the operation. What cannot be used is left as NCCL
// gave it. Where noria is off, there are no rows and NCCL's own choices stand.
//
// - LL128 is ignored over a device that may place a line of 128 bytes in parts.
// - get_choice() makes the row's algorithm and protocol the cheapest, and never one that NCCL or
//   the user ignores. Channels stay 0, NCCL's own, unless the row says a number.
// - get_chunk() changes the chunk where a row of this algorithm and protocol has one for the bytes
//   that NCCL names then, which are those of one channel's part.
//
// A choice costs no allocation, no lock and no system call.
//
// Threads: init() and finalize() any thread; the rest any thread, one at a time a communicator.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/check.hpp"
#include "plugin/abi/tuner.hpp"

namespace noria::plugin {

void init_tuner(void** context, uint64_t communicator, size_t ranks, size_t nodes, abi::Logger,
                abi::TunerConstants* constants);
void finalize_tuner(void* context);

NORIA_HOT void get_choice(void* context, int collective, size_t bytes, float* costs, int algorithms,
                          int protocols, int* channels);
// Of version 2, which has no costs: NCCL chooses itself where the outputs keep their values.
void get_choice_without_costs(void* context, int collective, size_t bytes, bool has_nvls,
                              int* algorithm, int* protocol, int* channels);
void get_chunk(void* context, int collective, size_t bytes, int algorithm, int protocol,
               size_t* chunk_bytes);

}  // namespace noria::plugin
