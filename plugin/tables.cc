// What NCCL finds: one table for each version, made of one function for each signature.
#include <algorithm>
#include <array>
#include <iterator>

#include "plugin/net.hpp"

#define NORIA_EXPORT extern "C" [[gnu::visibility("default"), gnu::used]] const

namespace noria::plugin {
namespace {

using abi::Config;
using abi::DeviceHandle;
using abi::Logger;
using abi::ProfilerCallback;
using abi::Result;

constexpr char kName[] = "noria";

// ---- communicators ------------------------------------------------------------------------------

constexpr int kNotGiven = -1;
int traffic_class_of(const Config* config) {
  return config != nullptr ? config->traffic_class : kNotGiven;
}

Result init_v10(Logger logger, ProfilerCallback) { return init_shared(logger); }

Result init_v11(void** context, uint64_t communicator, Config* config, Logger logger,
                ProfilerCallback) {
  return init(context, communicator, traffic_class_of(config), logger);
}

template <class Properties>
Result get_properties(int index, Properties* out) {
  const auto setup = registry().setup();
  const Device* const device = find_device(setup.get(), index);
  if (device == nullptr || out == nullptr) return Result::invalid_argument;
  describe(*device, out);
  return Result::success;
}

template <class Parts>
Result make_virtual_of(int* index, Parts* parts) {
  if (parts == nullptr) return make_virtual(index, nullptr, 0, 0);
  return make_virtual(index, parts->devices, parts->count, std::size(parts->devices));
}

// Advice on peers and flows: every connection is set up alike.
Result set_attributes(void*, abi::Attributes*) { return Result::success; }

// ---- connections --------------------------------------------------------------------------------

Result listen_v10(int device, void* handle, void** listen_comm) {
  return listen(registry().shared(), device, handle, listen_comm);
}

Result connect_v6(int device, void* handle, void** send_comm) {
  return connect(registry().shared(), device, kNotGiven, handle, send_comm);
}
Result connect_v9(int device, void* handle, void** send_comm, DeviceHandle**) {
  return connect_v6(device, handle, send_comm);
}
Result connect_v10(int device, Config* config, void* handle, void** send_comm, DeviceHandle**) {
  return connect(registry().shared(), device, traffic_class_of(config), handle, send_comm);
}
Result connect_v11(void* context, int device, void* handle, void** send_comm, DeviceHandle**) {
  return connect(context, device, kNotGiven, handle, send_comm);
}

Result accept_v7(void* listen_comm, void** recv_comm, DeviceHandle**) {
  return accept(listen_comm, recv_comm);
}

// A size that is negative as an int is one that no memory has.
size_t size_of(int bytes) { return bytes >= 0 ? static_cast<size_t>(bytes) : SIZE_MAX; }

Result reg_mr_v7(void* comm, void* data, int bytes, int type, void** memory) {
  return reg_mr(comm, data, size_of(bytes), type, memory);
}

// ---- the data path ------------------------------------------------------------------------------

Result isend_v8(void* send_comm, void* data, int bytes, int tag, void* memory, void** request) {
  return isend(send_comm, data, size_of(bytes), tag, memory, request);
}
Result isend_v9(void* send_comm, void* data, size_t bytes, int tag, void* memory, void** request) {
  return isend(send_comm, data, bytes, tag, memory, request);
}
Result isend_v10(void* send_comm, void* data, size_t bytes, int tag, void* memory, void*,
                 void** request) {
  return isend(send_comm, data, bytes, tag, memory, request);
}

Result irecv_v8(void* recv_comm, int count, void** data, int* bytes, int* tags, void** memories,
                void** request) {
  std::array<size_t, size_t{abi::kMostReceives}> sizes{};
  const int known = bytes != nullptr ? std::min(count, abi::kMostReceives) : 0;
  for (int i = 0; i < known; ++i) sizes[static_cast<size_t>(i)] = size_of(bytes[i]);
  return irecv(recv_comm, count, data, bytes != nullptr ? sizes.data() : nullptr, tags, memories,
               request);
}
Result irecv_v9(void* recv_comm, int count, void** data, size_t* bytes, int* tags, void** memories,
                void** request) {
  return irecv(recv_comm, count, data, bytes, tags, memories, request);
}
Result irecv_v10(void* recv_comm, int count, void** data, size_t* bytes, int* tags, void** memories,
                 void**, void** request) {
  return irecv(recv_comm, count, data, bytes, tags, memories, request);
}

Result iflush_all(void* recv_comm, int count, void** data, int* bytes, void** memories,
                  void** request) {
  return iflush(recv_comm, count, data, bytes, memories, request);
}

// ---- tables -------------------------------------------------------------------------------------

template <class Properties, class RegisteredBytes>
consteval abi::NetV7ToV8<Properties, RegisteredBytes> table_v7_to_v8(Result (*reg)(void*, void*,
                                                                                   RegisteredBytes,
                                                                                   int, void**)) {
  return {.name = kName,
          .init = init_shared,
          .devices = devices,
          .get_properties = get_properties<Properties>,
          .listen = listen_v10,
          .connect = connect_v9,
          .accept = accept_v7,
          .reg_mr = reg,
          .reg_mr_dma_buf = reg_mr_dma_buf,
          .dereg_mr = dereg_mr,
          .isend = isend_v8,
          .irecv = irecv_v8,
          .iflush = iflush_all,
          .test = test,
          .close_send = close_send,
          .close_recv = close_recv,
          .close_listen = close_listen};
}

template <class Properties, class Virtual>
consteval abi::NetV11ToV12<Properties, Virtual> table_v11_to_v12() {
  return {.name = kName,
          .init = init_v11,
          .devices = devices,
          .get_properties = get_properties<Properties>,
          .listen = listen,
          .connect = connect_v11,
          .accept = accept_v7,
          .reg_mr = reg_mr,
          .reg_mr_dma_buf = reg_mr_dma_buf,
          .dereg_mr = dereg_mr,
          .isend = isend_v10,
          .irecv = irecv_v10,
          .iflush = iflush_all,
          .test = test,
          .close_send = close_send,
          .close_recv = close_recv,
          .close_listen = close_listen,
          .make_virtual = make_virtual_of<Virtual>,
          .finalize = finalize,
          .set_attributes = set_attributes};
}

}  // namespace
}  // namespace noria::plugin

namespace plugin = noria::plugin;
namespace abi = noria::plugin::abi;

NORIA_EXPORT abi::NetV6 ncclNetPlugin_v6{
    .name = plugin::kName,
    .init = plugin::init_shared,
    .devices = plugin::devices,
    .get_properties = plugin::get_properties<abi::PropertiesV6>,
    .listen = plugin::listen_v10,
    .connect = plugin::connect_v6,
    .accept = plugin::accept,
    .reg_mr = plugin::reg_mr_v7,
    .reg_mr_dma_buf = plugin::reg_mr_dma_buf,
    .dereg_mr = plugin::dereg_mr,
    .isend = plugin::isend_v8,
    .irecv = plugin::irecv_v8,
    .iflush = plugin::iflush_all,
    .test = plugin::test,
    .close_send = plugin::close_send,
    .close_recv = plugin::close_recv,
    .close_listen = plugin::close_listen};

NORIA_EXPORT abi::NetV7 ncclNetPlugin_v7 =
    plugin::table_v7_to_v8<abi::PropertiesV7, int>(plugin::reg_mr_v7);
NORIA_EXPORT abi::NetV8 ncclNetPlugin_v8 =
    plugin::table_v7_to_v8<abi::PropertiesV8, size_t>(plugin::reg_mr);

NORIA_EXPORT abi::NetV9 ncclNetPlugin_v9{
    .name = plugin::kName,
    .init = plugin::init_shared,
    .devices = plugin::devices,
    .get_properties = plugin::get_properties<abi::PropertiesV9>,
    .listen = plugin::listen_v10,
    .connect = plugin::connect_v9,
    .accept = plugin::accept_v7,
    .reg_mr = plugin::reg_mr,
    .reg_mr_dma_buf = plugin::reg_mr_dma_buf,
    .dereg_mr = plugin::dereg_mr,
    .isend = plugin::isend_v9,
    .irecv = plugin::irecv_v9,
    .iflush = plugin::iflush_all,
    .test = plugin::test,
    .close_send = plugin::close_send,
    .close_recv = plugin::close_recv,
    .close_listen = plugin::close_listen,
    .make_virtual = plugin::make_virtual_of<abi::VirtualDevicesV9>};

NORIA_EXPORT abi::NetV10 ncclNetPlugin_v10{
    .name = plugin::kName,
    .init = plugin::init_v10,
    .devices = plugin::devices,
    .get_properties = plugin::get_properties<abi::PropertiesV9>,
    .listen = plugin::listen_v10,
    .connect = plugin::connect_v10,
    .accept = plugin::accept_v7,
    .reg_mr = plugin::reg_mr,
    .reg_mr_dma_buf = plugin::reg_mr_dma_buf,
    .dereg_mr = plugin::dereg_mr,
    .isend = plugin::isend_v10,
    .irecv = plugin::irecv_v10,
    .iflush = plugin::iflush_all,
    .test = plugin::test,
    .close_send = plugin::close_send,
    .close_recv = plugin::close_recv,
    .close_listen = plugin::close_listen,
    .make_virtual = plugin::make_virtual_of<abi::VirtualDevicesV9>};

NORIA_EXPORT abi::NetV11 ncclNetPlugin_v11 =
    plugin::table_v11_to_v12<abi::PropertiesV11, abi::VirtualDevicesV9>();
NORIA_EXPORT abi::NetV12 ncclNetPlugin_v12 =
    plugin::table_v11_to_v12<abi::PropertiesV12, abi::VirtualDevicesV12>();
