// NCCL's side of a net plugin: the table of any version, called in the newest words.
//
// For an older table it says them as NCCL's own adapters do, and leaves out what that version does
// not have. A size that the version cannot say is invalid_argument, and nothing is called. The
// tools and the tests drive plugins with it; no product library uses it.
//
// Threads: as the plugin's own functions.
#pragma once

#include <algorithm>
#include <array>
#include <climits>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <type_traits>

#include "plugin/abi/net.hpp"

namespace noria::plugin::abi {

inline constexpr int kOldestVersion = 6;
inline constexpr int kNewestVersion = 12;

class Caller {
 public:
  virtual ~Caller() = default;
  virtual std::string name() const = 0;
  // Of the functions that may be absent, those that are there.
  virtual std::string optional_functions() const = 0;
  virtual bool has_finalize() const = 0;

  // Of the communicator, where the version has room for it; negative: not given.
  int traffic_class = -1;
  // Where the version has room for them; null: NCCL does not profile. One for each receive.
  ProfilerCallback profiler = nullptr;
  void** phandles = nullptr;

  virtual Result init(void** context, Logger logger) = 0;
  virtual Result finalize(void* context) = 0;
  virtual Result set_attributes(void* context, Attributes* attributes) = 0;  // where there is one
  virtual Result devices(int* count) = 0;
  // The plugin is given memory full of `paint`, as NCCL hands over memory that holds anything.
  // `raw`, where it is not empty, gets what the plugin left there, from the first byte on.
  virtual Result get_properties(int device, std::byte paint, PropertiesV12* newest,
                                std::span<std::byte> raw) = 0;
  // Of versions that have makeVDevice; `count` is passed on as it is.
  virtual Result make_virtual(int* device, const int* parts, int count) = 0;
  virtual Result listen(void* context, int device, void* handle, void** comm) = 0;
  virtual Result connect(void* context, int device, void* handle, void** comm) = 0;
  virtual Result accept(void* listen_comm, void** comm) = 0;
  virtual Result reg_mr(void* comm, void* data, size_t bytes, int type, void** memory) = 0;
  // Only where optional_functions() has it.
  virtual Result reg_mr_dma_buf(void* comm, void* data, size_t bytes, int type, uint64_t offset,
                                int fd, void** memory) = 0;
  virtual Result dereg_mr(void* comm, void* memory) = 0;
  virtual Result isend(void* comm, void* data, size_t bytes, int tag, void* memory,
                       void** request) = 0;
  virtual Result irecv(void* comm, int count, void** data, size_t* bytes, int* tags,
                       void** memories, void** request) = 0;
  virtual Result iflush(void* comm, int count, void** data, int* bytes, void** memories,
                        void** request) = 0;
  virtual Result test(void* request, int* is_done, int* bytes) = 0;
  virtual Result close_send(void* comm) = 0;
  virtual Result close_recv(void* comm) = 0;
  virtual Result close_listen(void* comm) = 0;
};

template <class Table>
class TableCaller : public Caller {
 public:
  explicit TableCaller(const Table& table) : t_(table) {}

  std::string name() const override { return t_.name; }
  bool has_finalize() const override {
    if constexpr (requires(const Table& t) { t.finalize; }) return t_.finalize != nullptr;
    return false;
  }
  std::string optional_functions() const override {
    std::string there;
    if (t_.reg_mr_dma_buf != nullptr) there += " regMrDmaBuf";
    if constexpr (requires(const Table& t) { t.get_device_mr; }) {
      if (t_.get_device_mr != nullptr) there += " getDeviceMr";
      if (t_.irecv_consumed != nullptr) there += " irecvConsumed";
    }
    if constexpr (requires(const Table& t) { t.make_virtual; })
      if (t_.make_virtual != nullptr) there += " makeVDevice";
    return there;
  }

  Result init(void** context, Logger logger) override {
    if constexpr (has<decltype(t_.init), void**, uint64_t, Config*, Logger, ProfilerCallback>) {
      Config config{.traffic_class = traffic_class};
      return t_.init(context, kCommunicator, &config, logger, profiler);
    } else if constexpr (has<decltype(t_.init), Logger, ProfilerCallback>) {
      return t_.init(logger, profiler);
    } else {
      return t_.init(logger);
    }
  }
  Result finalize([[maybe_unused]] void* context) override {
    if constexpr (requires(const Table& t) { t.finalize; }) return t_.finalize(context);
    return Result::success;
  }
  Result set_attributes([[maybe_unused]] void* context,
                        [[maybe_unused]] Attributes* attributes) override {
    if constexpr (requires(const Table& t) { t.set_attributes; })
      return t_.set_attributes(context, attributes);
    return Result::success;
  }
  Result devices(int* count) override { return t_.devices(count); }
  Result get_properties(int device, std::byte paint, PropertiesV12* newest,
                        std::span<std::byte> raw) override {
    return ask(t_.get_properties, device, paint, newest, raw);
  }

  Result make_virtual([[maybe_unused]] int* device, [[maybe_unused]] const int* parts,
                      [[maybe_unused]] int count) override {
    if constexpr (requires(const Table& t) { t.make_virtual; })
      return ask_virtual(t_.make_virtual, device, parts, count);
    return Result::invalid_argument;
  }

  Result listen([[maybe_unused]] void* context, int device, void* handle, void** comm) override {
    if constexpr (has<decltype(t_.listen), void*, int, void*, void**>)
      return t_.listen(context, device, handle, comm);
    else
      return t_.listen(device, handle, comm);
  }
  Result connect([[maybe_unused]] void* context, int device, void* handle, void** comm) override {
    [[maybe_unused]] DeviceHandle* none = nullptr;
    [[maybe_unused]] Config config{.traffic_class = traffic_class};
    using Connect = decltype(t_.connect);
    if constexpr (has<Connect, void*, int, void*, void**, DeviceHandle**>)
      return t_.connect(context, device, handle, comm, &none);
    else if constexpr (has<Connect, int, Config*, void*, void**, DeviceHandle**>)
      return t_.connect(device, &config, handle, comm, &none);
    else if constexpr (has<Connect, int, void*, void**, DeviceHandle**>)
      return t_.connect(device, handle, comm, &none);
    else
      return t_.connect(device, handle, comm);
  }
  Result accept(void* listen_comm, void** comm) override {
    [[maybe_unused]] DeviceHandle* none = nullptr;
    if constexpr (has<decltype(t_.accept), void*, void**, DeviceHandle**>)
      return t_.accept(listen_comm, comm, &none);
    else
      return t_.accept(listen_comm, comm);
  }

  Result reg_mr(void* comm, void* data, size_t bytes, int type, void** memory) override {
    if constexpr (has<decltype(t_.reg_mr), void*, void*, int, int, void**>) {
      if (!is_said(bytes)) return Result::invalid_argument;
      return t_.reg_mr(comm, data, static_cast<int>(bytes), type, memory);
    } else {
      return t_.reg_mr(comm, data, bytes, type, memory);
    }
  }
  Result reg_mr_dma_buf(void* comm, void* data, size_t bytes, int type, uint64_t offset, int fd,
                        void** memory) override {
    return t_.reg_mr_dma_buf(comm, data, bytes, type, offset, fd, memory);
  }
  Result dereg_mr(void* comm, void* memory) override { return t_.dereg_mr(comm, memory); }

  Result isend(void* comm, void* data, size_t bytes, int tag, void* memory,
               void** request) override {
    using Isend = decltype(t_.isend);
    if constexpr (has<Isend, void*, void*, size_t, int, void*, void*, void**>) {
      void* const phandle = phandles != nullptr ? *phandles : nullptr;
      return t_.isend(comm, data, bytes, tag, memory, phandle, request);
    } else if constexpr (has<Isend, void*, void*, size_t, int, void*, void**>) {
      return t_.isend(comm, data, bytes, tag, memory, request);
    } else {
      if (!is_said(bytes)) return Result::invalid_argument;
      return t_.isend(comm, data, static_cast<int>(bytes), tag, memory, request);
    }
  }
  Result irecv(void* comm, int count, void** data, size_t* bytes, int* tags, void** memories,
               void** request) override {
    using Irecv = decltype(t_.irecv);
    if constexpr (has<Irecv, void*, int, void**, size_t*, int*, void**, void**, void**>) {
      return t_.irecv(comm, count, data, bytes, tags, memories, phandles, request);
    } else if constexpr (has<Irecv, void*, int, void**, size_t*, int*, void**, void**>) {
      return t_.irecv(comm, count, data, bytes, tags, memories, request);
    } else {
      std::array<int, kMostReceives> sizes{};
      for (int i = 0; bytes != nullptr && i < std::min(count, kMostReceives); ++i) {
        if (!is_said(bytes[i])) return Result::invalid_argument;
        sizes[static_cast<size_t>(i)] = static_cast<int>(bytes[i]);
      }
      return t_.irecv(comm, count, data, bytes != nullptr ? sizes.data() : nullptr, tags, memories,
                      request);
    }
  }
  Result iflush(void* comm, int count, void** data, int* bytes, void** memories,
                void** request) override {
    return t_.iflush(comm, count, data, bytes, memories, request);
  }
  Result test(void* request, int* is_done, int* bytes) override {
    return t_.test(request, is_done, bytes);
  }
  Result close_send(void* comm) override { return t_.close_send(comm); }
  Result close_recv(void* comm) override { return t_.close_recv(comm); }
  Result close_listen(void* comm) override { return t_.close_listen(comm); }

 private:
  static constexpr uint64_t kCommunicator = 0x123456789abcdef;  // as NCCL's hash of one
  template <class Function, class... Args>
  static constexpr bool has = std::is_same_v<Function, Result (*)(Args...)>;
  static bool is_said(size_t bytes) { return bytes <= size_t{INT_MAX}; }

  template <class Virtual>
  static Result ask_virtual(Result (*make)(int*, Virtual*), int* device, const int* parts,
                            int count) {
    if (parts == nullptr) return make(device, nullptr);
    Virtual told{.count = count, .devices = {}};
    std::copy_n(parts, std::clamp<int>(count, 0, std::size(told.devices)), told.devices);
    return make(device, &told);
  }

  template <class Properties>
  static Result ask(Result (*get)(int, Properties*), int device, std::byte paint,
                    PropertiesV12* newest, std::span<std::byte> raw) {
    Properties told;
    std::memset(static_cast<void*>(&told), static_cast<int>(paint), sizeof told);
    const Result result = get(device, &told);
    if (result != Result::success) return result;
    if (!raw.empty()) std::memcpy(raw.data(), &told, std::min(raw.size(), sizeof told));
    *newest = {.name = told.name,
               .pci_path = told.pci_path,
               .guid = told.guid,
               .pointers = told.pointers,
               .speed_mbps = told.speed_mbps,
               .port = told.port,
               .latency_us = told.latency_us,
               .max_connections = told.max_connections,
               .max_receives = told.max_receives,
               .device_type = kDeviceHost,
               .parts = {.count = 1, .devices = {device}},
               .max_message_bytes = size_t{INT_MAX},
               .max_collective_bytes = size_t{INT_MAX},
               .max_requests_in_one = 1,
               .rail = -1,
               .plane = -1};
    if constexpr (requires { told.device_type; }) {
      newest->device_type = told.device_type;
      newest->device_version = told.device_version;
    }
    if constexpr (requires { told.is_registration_global; })
      newest->is_registration_global = told.is_registration_global;
    if constexpr (requires { told.parts; }) {
      newest->needs_flush = told.needs_flush;
      newest->parts.count = told.parts.count;
      std::copy(std::begin(told.parts.devices), std::end(told.parts.devices),
                std::begin(newest->parts.devices));
      newest->max_message_bytes = told.max_message_bytes;
      newest->max_collective_bytes = told.max_collective_bytes;
    }
    if constexpr (requires { told.max_requests_in_one; })
      newest->max_requests_in_one = told.max_requests_in_one;
    if constexpr (requires { told.rail; }) {
      newest->rail = told.rail;
      newest->plane = told.plane;
    }
    return result;
  }

  const Table& t_;
};

inline std::string table_symbol(int version) { return "ncclNetPlugin_v" + std::to_string(version); }

// Over what the library has under table_symbol(version); null for a version that is not known.
inline std::unique_ptr<Caller> make_caller(int version, const void* table) {
  const auto over = [table]<class Table>(const Table*) -> std::unique_ptr<Caller> {
    return std::make_unique<TableCaller<Table>>(*static_cast<const Table*>(table));
  };
  switch (version) {
    case 6: return over(static_cast<const NetV6*>(nullptr));
    case 7: return over(static_cast<const NetV7*>(nullptr));
    case 8: return over(static_cast<const NetV8*>(nullptr));
    case 9: return over(static_cast<const NetV9*>(nullptr));
    case 10: return over(static_cast<const NetV10*>(nullptr));
    case 11: return over(static_cast<const NetV11*>(nullptr));
    case 12: return over(static_cast<const NetV12*>(nullptr));
    default: return nullptr;
  }
}

}  // namespace noria::plugin::abi
