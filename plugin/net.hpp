// The net plugin in its newest words; tables.cc says them in those of each version.
//
// Nothing here waits for a peer: connect() and accept() answer null until they are done, isend()
// and irecv() until there is room, and close_*() drops what is in flight. A failure is told once,
// in NCCL's log, by the connection's own words. README.md has the contract, sentence by sentence.
//
// Threads: set_up functions any thread, for one object one at a time; isend(), irecv(), iflush()
// and test() the thread that drives the connection, beside which registering its memory is safe.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/check.hpp"
#include "plugin/abi/net.hpp"
#include "plugin/registry.hpp"

namespace noria::plugin {

// A traffic class that is negative was not given; connect()'s wins over that of the context.
abi::Result init(void** context, uint64_t communicator, int traffic_class, abi::Logger logger);
abi::Result init_shared(abi::Logger logger);  // of versions without contexts
abi::Result finalize(void* context);
abi::Result devices(int* count);
// Null and a line in the log when there is no such device.
const Device* find_device(const Setup* setup, int index);
// Gives the number of a device made of `count` others, 1 to `room` of them.
abi::Result make_virtual(int* index, const int* parts, int count, size_t room);

abi::Result listen(void* context, int device, void* handle, void** listen_comm);
abi::Result connect(void* context, int device, int traffic_class, const void* handle,
                    void** send_comm);
abi::Result accept(void* listen_comm, void** recv_comm);
abi::Result reg_mr(void* comm, void* data, size_t bytes, int type, void** memory);
abi::Result reg_mr_dma_buf(void* comm, void* data, size_t bytes, int type, uint64_t offset, int fd,
                           void** memory);
abi::Result dereg_mr(void* comm, void* memory);

NORIA_HOT abi::Result isend(void* send_comm, void* data, size_t bytes, int tag, void* memory,
                            void** request);
NORIA_HOT abi::Result irecv(void* recv_comm, int count, void* const* data, const size_t* bytes,
                            const int* tags, void* const* memories, void** request);
abi::Result iflush(void* recv_comm, int count, void* const* data, const int* bytes,
                   void* const* memories, void** request);
NORIA_HOT abi::Result test(void* request, int* is_done, int* bytes);

abi::Result close_send(void* send_comm);
abi::Result close_recv(void* recv_comm);
abi::Result close_listen(void* listen_comm);

}  // namespace noria::plugin
