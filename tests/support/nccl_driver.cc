#include "tests/support/nccl_driver.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdarg>
#include <cstring>
#include <fstream>
#include <mutex>

#include "base/clock.hpp"
#include "plugin/abi/log_text.hpp"

namespace noria::test {
namespace {

using namespace plugin;  // NOLINT: a test's own words beside NCCL's

constexpr Nanoseconds kPatience = 30_s;

std::mutex log_mutex;
std::vector<std::string> log_lines;

// Bytes of a version's properties that belong to no field.
size_t padding_of(int version) {
  switch (version) {
    case 6:
    case 7: return 0;
    case 11: return 8;
    default: return 4;
  }
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
  va_list args;
  va_start(args, format);
  const std::string text = abi::log_text(format, args);
  va_end(args);
  const std::lock_guard lock(log_mutex);
  log_lines.push_back((level == abi::LogLevel::warn ? "WARN " : "INFO ") + text);
}

// Asks twice, over two kinds of paint: what differs was not written.
Result Net::get_properties(int device, SeenDevice* seen) {
  std::array<std::byte, sizeof(abi::PropertiesV12)> raw{}, other_raw{};
  abi::PropertiesV12 one, other;
  const Result result = caller_->get_properties(device, std::byte{0xa5}, &one, raw);
  if (result != Result::success ||
      caller_->get_properties(device, std::byte{0x5a}, &other, other_raw) != result)
    return result;
  size_t differ = 0;
  for (size_t i = 0; i < raw.size(); ++i) differ += raw[i] != other_raw[i] ? 1 : 0;
  *seen = {.name = one.name,
           .pci_path = one.pci_path != nullptr ? one.pci_path : "",
           .guid = one.guid,
           .pointers = one.pointers,
           .speed_mbps = one.speed_mbps,
           .port = one.port,
           .max_receives = one.max_receives,
           .is_registration_global = one.is_registration_global,
           .needs_flush = one.needs_flush,
           .parts = {one.parts.devices, one.parts.devices + one.parts.count},
           .rail = one.rail,
           .plane = one.plane,
           .unwritten = differ - std::min(differ, padding_of(version_))};
  EXPECT_GE(one.max_message_bytes, size_t{1} << 30);
  EXPECT_LE(one.max_message_bytes, size_t{1} << 40);
  EXPECT_GT(one.max_collective_bytes, 0u);
  return result;
}

NetLibrary::NetLibrary() : handle_(dlopen(NORIA_NET_PLUGIN_FILE, RTLD_NOW | RTLD_LOCAL)) {
  EXPECT_NE(handle_, nullptr) << dlerror();
}
NetLibrary::~NetLibrary() {
  if (handle_ != nullptr) dlclose(handle_);
}

std::unique_ptr<Net> NetLibrary::net(int version) const {
  const void* const table = dlsym(handle_, abi::table_symbol(version).c_str());
  auto caller = table != nullptr ? abi::make_caller(version, table) : nullptr;
  return caller != nullptr ? std::make_unique<Net>(version, std::move(caller)) : nullptr;
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

void* send_when_ready(Net& net, void* comm, void* data, size_t bytes, void* memory) {
  const Nanoseconds deadline = now_ns() + kPatience;
  while (now_ns() < deadline) {
    void* request = nullptr;
    if (net.isend(comm, data, bytes, memory, &request) != Result::success) {
      ADD_FAILURE() << "isend: " << last_warning();
      return nullptr;
    }
    if (request != nullptr) return request;
  }
  ADD_FAILURE() << "no credit after 30 s";
  return nullptr;
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
