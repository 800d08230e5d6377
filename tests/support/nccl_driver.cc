#include "tests/support/nccl_driver.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <mutex>
#include <type_traits>

#include "base/clock.hpp"

namespace noria::test {
namespace {

using namespace plugin;  // NOLINT: a test's own words beside NCCL's

constexpr Nanoseconds kPatience = 30_s;

std::mutex log_mutex;
std::vector<std::string> log_lines;

// Bytes of a version's properties that belong to no field.
template <class Properties>
constexpr size_t kPadding = 0;
template <>
constexpr size_t kPadding<abi::PropertiesV8> = 4;
template <>
constexpr size_t kPadding<abi::PropertiesV9> = 4;
template <>
constexpr size_t kPadding<abi::PropertiesV11> = 8;
template <>
constexpr size_t kPadding<abi::PropertiesV12> = 4;

// Asks twice, over two kinds of paint: what differs was not written.
template <class Properties>
Result ask_properties(Result (*ask)(int, Properties*), int device, SeenDevice* seen) {
  Properties one;
  Properties other;
  std::memset(static_cast<void*>(&one), 0xa5, sizeof one);
  std::memset(static_cast<void*>(&other), 0x5a, sizeof other);
  const Result result = ask(device, &one);
  if (result != Result::success || ask(device, &other) != result) return result;
  const auto* a = reinterpret_cast<const uint8_t*>(&one);
  const auto* b = reinterpret_cast<const uint8_t*>(&other);
  size_t differ = 0;
  for (size_t i = 0; i < sizeof one; ++i) differ += a[i] != b[i] ? 1 : 0;
  *seen = {.name = one.name,
           .pci_path = one.pci_path != nullptr ? one.pci_path : "",
           .guid = one.guid,
           .pointers = one.pointers,
           .speed_mbps = one.speed_mbps,
           .port = one.port,
           .max_receives = one.max_receives,
           .unwritten = differ - std::min(differ, kPadding<Properties>)};
  if constexpr (requires { one.parts; }) {
    EXPECT_EQ(one.parts.count, 1);
    EXPECT_EQ(one.parts.devices[0], device);
    EXPECT_GE(one.max_message_bytes, size_t{1} << 30);
    EXPECT_LE(one.max_message_bytes, size_t{1} << 40);
    EXPECT_GT(one.max_collective_bytes, 0u);
  }
  if constexpr (requires { one.rail; }) {
    EXPECT_EQ(one.rail, -1);
    EXPECT_EQ(one.plane, -1);
  }
  return result;
}

template <class Table>
class TableNet : public Net {
 public:
  explicit TableNet(const Table* table) : t_(*table) {}

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

  Result init(void** context) override {
    if constexpr (has<decltype(t_.init), void**, uint64_t, abi::Config*, abi::Logger,
                      abi::ProfilerCallback>) {
      abi::Config config{.traffic_class = -1};
      return t_.init(context, 0x123456789abcdef, &config, log_line, nullptr);
    } else if constexpr (has<decltype(t_.init), abi::Logger, abi::ProfilerCallback>) {
      return t_.init(log_line, nullptr);
    } else {
      return t_.init(log_line);
    }
  }
  Result finalize([[maybe_unused]] void* context) override {
    if constexpr (requires(const Table& t) { t.finalize; }) return t_.finalize(context);
    return Result::success;
  }
  Result devices(int* count) override { return t_.devices(count); }
  Result get_properties(int device, SeenDevice* seen) override {
    return ask_properties(t_.get_properties, device, seen);
  }

  Result listen([[maybe_unused]] void* context, int device, void* handle, void** comm) override {
    if constexpr (has<decltype(t_.listen), void*, int, void*, void**>)
      return t_.listen(context, device, handle, comm);
    else
      return t_.listen(device, handle, comm);
  }
  Result connect([[maybe_unused]] void* context, int device, void* handle, void** comm) override {
    [[maybe_unused]] abi::DeviceHandle* none = nullptr;
    [[maybe_unused]] abi::Config config{.traffic_class = -1};
    using Connect = decltype(t_.connect);
    if constexpr (has<Connect, void*, int, void*, void**, abi::DeviceHandle**>)
      return t_.connect(context, device, handle, comm, &none);
    else if constexpr (has<Connect, int, abi::Config*, void*, void**, abi::DeviceHandle**>)
      return t_.connect(device, &config, handle, comm, &none);
    else if constexpr (has<Connect, int, void*, void**, abi::DeviceHandle**>)
      return t_.connect(device, handle, comm, &none);
    else
      return t_.connect(device, handle, comm);
  }
  Result accept(void* listen_comm, void** comm) override {
    [[maybe_unused]] abi::DeviceHandle* none = nullptr;
    if constexpr (has<decltype(t_.accept), void*, void**, abi::DeviceHandle**>)
      return t_.accept(listen_comm, comm, &none);
    else
      return t_.accept(listen_comm, comm);
  }
  Result reg_mr(void* comm, void* data, size_t bytes, int type, void** memory) override {
    if constexpr (std::is_same_v<Table, abi::NetV6> || std::is_same_v<Table, abi::NetV7>)
      return t_.reg_mr(comm, data, static_cast<int>(bytes), type, memory);
    else
      return t_.reg_mr(comm, data, bytes, type, memory);
  }
  Result dereg_mr(void* comm, void* memory) override { return t_.dereg_mr(comm, memory); }

  Result isend(void* comm, void* data, size_t bytes, void* memory, void** request) override {
    using Isend = decltype(t_.isend);
    if constexpr (has<Isend, void*, void*, size_t, int, void*, void*, void**>)
      return t_.isend(comm, data, bytes, kTag, memory, nullptr, request);
    else if constexpr (std::is_same_v<Table, abi::NetV9>)
      return t_.isend(comm, data, bytes, kTag, memory, request);
    else
      return t_.isend(comm, data, static_cast<int>(bytes), kTag, memory, request);
  }
  Result irecv(void* comm, void* data, size_t bytes, void* memory, void** request) override {
    int tag = kTag;
    using Irecv = decltype(t_.irecv);
    if constexpr (has<Irecv, void*, int, void**, size_t*, int*, void**, void**, void**>) {
      return t_.irecv(comm, 1, &data, &bytes, &tag, &memory, nullptr, request);
    } else if constexpr (std::is_same_v<Table, abi::NetV9>) {
      return t_.irecv(comm, 1, &data, &bytes, &tag, &memory, request);
    } else {
      int size = static_cast<int>(bytes);
      return t_.irecv(comm, 1, &data, &size, &tag, &memory, request);
    }
  }
  Result iflush(void* comm, void* data, int bytes, void* memory, void** request) override {
    return t_.iflush(comm, 1, &data, &bytes, &memory, request);
  }
  Result test(void* request, int* is_done, int* bytes) override {
    return t_.test(request, is_done, bytes);
  }
  Result close_send(void* comm) override { return t_.close_send(comm); }
  Result close_recv(void* comm) override { return t_.close_recv(comm); }
  Result close_listen(void* comm) override { return t_.close_listen(comm); }

 private:
  static constexpr int kTag = 3;
  template <class Function, class... Args>
  static constexpr bool has = std::is_same_v<Function, Result (*)(Args...)>;

  const Table& t_;
};

template <class Table>
std::unique_ptr<Net> make_net(const void* table) {
  return std::make_unique<TableNet<Table>>(static_cast<const Table*>(table));
}

}  // namespace

std::vector<std::string> logged_lines() {
  const std::lock_guard lock(log_mutex);
  return log_lines;
}
void forget_logged_lines() {
  const std::lock_guard lock(log_mutex);
  log_lines.clear();
}
std::string last_warning() {
  const std::vector<std::string> lines = logged_lines();
  for (auto line = lines.rbegin(); line != lines.rend(); ++line)
    if (line->starts_with("WARN ")) return line->substr(5);
  return "";
}

void log_line(abi::LogLevel level, unsigned long, const char*, int, const char* format, ...) {
  char text[2048];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  const std::lock_guard lock(log_mutex);
  log_lines.push_back((level == abi::LogLevel::warn ? "WARN " : "INFO ") + std::string(text));
}

NetLibrary::NetLibrary() : handle_(dlopen(NORIA_NET_PLUGIN_FILE, RTLD_NOW | RTLD_LOCAL)) {
  EXPECT_NE(handle_, nullptr) << dlerror();
}
NetLibrary::~NetLibrary() {
  if (handle_ != nullptr) dlclose(handle_);
}

std::unique_ptr<Net> NetLibrary::net(int version) const {
  const void* const table = dlsym(handle_, ("ncclNetPlugin_v" + std::to_string(version)).c_str());
  if (table == nullptr) return nullptr;
  switch (version) {
    case 6: return make_net<abi::NetV6>(table);
    case 7: return make_net<abi::NetV7>(table);
    case 8: return make_net<abi::NetV8>(table);
    case 9: return make_net<abi::NetV9>(table);
    case 10: return make_net<abi::NetV10>(table);
    case 11: return make_net<abi::NetV11>(table);
    case 12: return make_net<abi::NetV12>(table);
    default: return nullptr;
  }
}

bool NetLibrary::is_mapped() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (line.find("libnccl-net-noria") != std::string::npos) return true;
  return false;
}

Communicator::Communicator(int version) : net(library.net(version)) {
  if (net == nullptr) {
    ADD_FAILURE() << "no table of version " << version;
    return;
  }
  EXPECT_EQ(net->init(&context), Result::success);
}
Communicator::~Communicator() {
  if (net == nullptr) return;
  EXPECT_EQ(net->finalize(context), Result::success);
}

void* connect(Net& net, void* context, NetHandle* handle) {
  const Nanoseconds deadline = now_ns() + kPatience;
  void* comm = nullptr;
  while (comm == nullptr && now_ns() < deadline) {
    comm = kStale;
    if (net.connect(context, 0, handle->data(), &comm) != Result::success) {
      ADD_FAILURE() << "connect: " << last_warning();
      return nullptr;
    }
  }
  EXPECT_NE(comm, kStale);
  return comm;
}

void* accept(Net& net, void* listen_comm) {
  const Nanoseconds deadline = now_ns() + kPatience;
  void* comm = nullptr;
  while (comm == nullptr && now_ns() < deadline) {
    comm = kStale;
    if (net.accept(listen_comm, &comm) != Result::success) {
      ADD_FAILURE() << "accept: " << last_warning();
      return nullptr;
    }
  }
  EXPECT_NE(comm, kStale);
  return comm;
}

int finish(Net& net, void* request) {
  const Nanoseconds deadline = now_ns() + kPatience;
  while (now_ns() < deadline) {
    int is_done = -1;
    int bytes = -1;
    if (net.test(request, &is_done, &bytes) != Result::success) return -1;
    if (is_done != 0) return bytes;
  }
  ADD_FAILURE() << "a request is not done after 30 s";
  return -1;
}

}  // namespace noria::test
