// The function table of a net plugin, in the layout of each version.
//
// A table is a data object that NCCL finds by its name, ncclNetPlugin_v6 to _v12. The order of the
// members and their types are the ABI; a member that may be null says so.
//
// Threads: plain values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plugin/abi/properties.hpp"
#include "plugin/abi/result.hpp"

namespace noria::plugin::abi {

inline constexpr size_t kHandleBytes = 128;
inline constexpr int kMostRequests = 32;  // of one communicator that NCCL may have under way

struct DeviceHandle;  // of plugins with a part on the GPU; always null here

// Of a communicator.
struct Config {
  int traffic_class;  // -1: not given
};

// What NCCL expects of a communicator's peers and operations; advice.
struct Attributes {
  struct Side {
    int32_t most_peers;
    int32_t least_peers;
    int32_t most_flows;
    int32_t least_flows;
  };
  Side send;
  Side receive;
  uint32_t operations;
  uint32_t algorithms;
  uint32_t protocols;
};
static_assert(sizeof(Attributes) == 44);

struct NetV6 {
  const char* name;
  Result (*init)(Logger);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, PropertiesV6*);
  Result (*listen)(int device, void* handle, void** listen_comm);
  Result (*connect)(int device, void* handle, void** send_comm);
  Result (*accept)(void* listen_comm, void** recv_comm);
  Result (*reg_mr)(void* comm, void* data, int bytes, int type, void** memory);
  Result (*reg_mr_dma_buf)(void* comm, void* data, size_t bytes, int type, uint64_t offset, int fd,
                           void** memory);  // may be null
  Result (*dereg_mr)(void* comm, void* memory);
  Result (*isend)(void* send_comm, void* data, int bytes, int tag, void* memory, void** request);
  Result (*irecv)(void* recv_comm, int count, void** data, int* bytes, int* tags, void** memories,
                  void** request);
  Result (*iflush)(void* recv_comm, int count, void** data, int* bytes, void** memories,
                   void** request);
  Result (*test)(void* request, int* is_done, int* bytes);
  Result (*close_send)(void* send_comm);
  Result (*close_recv)(void* recv_comm);
  Result (*close_listen)(void* listen_comm);
};
static_assert(sizeof(NetV6) == 136);

// v8 is v7 with other properties, and a registration may have more than 2 GiB.
template <class Properties, class RegisteredBytes>
struct NetV7ToV8 {
  const char* name;
  Result (*init)(Logger);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, Properties*);
  Result (*listen)(int device, void* handle, void** listen_comm);
  Result (*connect)(int device, void* handle, void** send_comm, DeviceHandle**);
  Result (*accept)(void* listen_comm, void** recv_comm, DeviceHandle**);
  Result (*reg_mr)(void* comm, void* data, RegisteredBytes bytes, int type, void** memory);
  Result (*reg_mr_dma_buf)(void* comm, void* data, size_t bytes, int type, uint64_t offset, int fd,
                           void** memory);  // may be null
  Result (*dereg_mr)(void* comm, void* memory);
  Result (*isend)(void* send_comm, void* data, int bytes, int tag, void* memory, void** request);
  Result (*irecv)(void* recv_comm, int count, void** data, int* bytes, int* tags, void** memories,
                  void** request);
  Result (*iflush)(void* recv_comm, int count, void** data, int* bytes, void** memories,
                   void** request);
  Result (*test)(void* request, int* is_done, int* bytes);
  Result (*close_send)(void* send_comm);
  Result (*close_recv)(void* recv_comm);
  Result (*close_listen)(void* listen_comm);
  Result (*get_device_mr)(void* comm, void* memory, void** pointer);    // may be null
  Result (*irecv_consumed)(void* recv_comm, int count, void* request);  // may be null
};
using NetV7 = NetV7ToV8<PropertiesV7, int>;
using NetV8 = NetV7ToV8<PropertiesV8, size_t>;
static_assert(sizeof(NetV7) == 152 && sizeof(NetV8) == 152);

struct NetV9 {
  const char* name;
  Result (*init)(Logger);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, PropertiesV9*);
  Result (*listen)(int device, void* handle, void** listen_comm);
  Result (*connect)(int device, void* handle, void** send_comm, DeviceHandle**);
  Result (*accept)(void* listen_comm, void** recv_comm, DeviceHandle**);
  Result (*reg_mr)(void* comm, void* data, size_t bytes, int type, void** memory);
  Result (*reg_mr_dma_buf)(void* comm, void* data, size_t bytes, int type, uint64_t offset, int fd,
                           void** memory);  // may be null
  Result (*dereg_mr)(void* comm, void* memory);
  Result (*isend)(void* send_comm, void* data, size_t bytes, int tag, void* memory, void** request);
  Result (*irecv)(void* recv_comm, int count, void** data, size_t* bytes, int* tags,
                  void** memories, void** request);
  Result (*iflush)(void* recv_comm, int count, void** data, int* bytes, void** memories,
                   void** request);
  Result (*test)(void* request, int* is_done, int* bytes);
  Result (*close_send)(void* send_comm);
  Result (*close_recv)(void* recv_comm);
  Result (*close_listen)(void* listen_comm);
  Result (*get_device_mr)(void* comm, void* memory, void** pointer);    // may be null
  Result (*irecv_consumed)(void* recv_comm, int count, void* request);  // may be null
  Result (*make_virtual)(int* device, VirtualDevicesV9*);               // may be null
};
static_assert(sizeof(NetV9) == 160);

struct NetV10 {
  const char* name;
  Result (*init)(Logger, ProfilerCallback);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, PropertiesV9*);
  Result (*listen)(int device, void* handle, void** listen_comm);
  Result (*connect)(int device, Config*, void* handle, void** send_comm, DeviceHandle**);
  Result (*accept)(void* listen_comm, void** recv_comm, DeviceHandle**);
  Result (*reg_mr)(void* comm, void* data, size_t bytes, int type, void** memory);
  Result (*reg_mr_dma_buf)(void* comm, void* data, size_t bytes, int type, uint64_t offset, int fd,
                           void** memory);  // may be null
  Result (*dereg_mr)(void* comm, void* memory);
  Result (*isend)(void* send_comm, void* data, size_t bytes, int tag, void* memory, void* profiled,
                  void** request);
  Result (*irecv)(void* recv_comm, int count, void** data, size_t* bytes, int* tags,
                  void** memories, void** profiled, void** request);
  Result (*iflush)(void* recv_comm, int count, void** data, int* bytes, void** memories,
                   void** request);
  Result (*test)(void* request, int* is_done, int* bytes);
  Result (*close_send)(void* send_comm);
  Result (*close_recv)(void* recv_comm);
  Result (*close_listen)(void* listen_comm);
  Result (*get_device_mr)(void* comm, void* memory, void** pointer);    // may be null
  Result (*irecv_consumed)(void* recv_comm, int count, void* request);  // may be null
  Result (*make_virtual)(int* device, VirtualDevicesV9*);               // may be null
};
static_assert(sizeof(NetV10) == 160);

// A context for each communicator, and an end of it.
template <class Properties, class Virtual>
struct NetV11ToV12 {
  const char* name;
  Result (*init)(void** context, uint64_t communicator, Config*, Logger, ProfilerCallback);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, Properties*);
  Result (*listen)(void* context, int device, void* handle, void** listen_comm);
  Result (*connect)(void* context, int device, void* handle, void** send_comm, DeviceHandle**);
  Result (*accept)(void* listen_comm, void** recv_comm, DeviceHandle**);
  Result (*reg_mr)(void* comm, void* data, size_t bytes, int type, void** memory);
  Result (*reg_mr_dma_buf)(void* comm, void* data, size_t bytes, int type, uint64_t offset, int fd,
                           void** memory);  // may be null
  Result (*dereg_mr)(void* comm, void* memory);
  Result (*isend)(void* send_comm, void* data, size_t bytes, int tag, void* memory, void* profiled,
                  void** request);
  Result (*irecv)(void* recv_comm, int count, void** data, size_t* bytes, int* tags,
                  void** memories, void** profiled, void** request);
  Result (*iflush)(void* recv_comm, int count, void** data, int* bytes, void** memories,
                   void** request);
  Result (*test)(void* request, int* is_done, int* bytes);
  Result (*close_send)(void* send_comm);
  Result (*close_recv)(void* recv_comm);
  Result (*close_listen)(void* listen_comm);
  Result (*get_device_mr)(void* comm, void* memory, void** pointer);    // may be null
  Result (*irecv_consumed)(void* recv_comm, int count, void* request);  // may be null
  Result (*make_virtual)(int* device, Virtual*);                        // may be null
  Result (*finalize)(void* context);
  Result (*set_attributes)(void* context, Attributes*);
};
using NetV11 = NetV11ToV12<PropertiesV11, VirtualDevicesV9>;
using NetV12 = NetV11ToV12<PropertiesV12, VirtualDevicesV12>;
static_assert(sizeof(NetV11) == 176 && sizeof(NetV12) == 176);

}  // namespace noria::plugin::abi
