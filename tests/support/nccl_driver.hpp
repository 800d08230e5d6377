// Drives a net plugin as NCCL does: the built library, loaded with dlopen(), through the table of
// any of its versions.
//
// Net is plugin/abi/caller.hpp with one receive a request. It is meaner than NCCL where the
// contract allows it: out pointers hold rubbish, structs are painted.
//
// Threads: as the plugin's own functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plugin/abi/caller.hpp"

namespace noria::test {

using plugin::abi::Result;

// What a stale pointer looks like; nothing of the plugin's may be left as it.
inline void* const kStale = reinterpret_cast<void*>(0xdead0);
// What NCCL puts where it could do without a completion.
inline void* const kOptional = reinterpret_cast<void*>(0x1);

// Lines that the plugin wrote to NCCL's log, as "WARN text" and "INFO text".
std::vector<std::string> logged_lines();
void forget_logged_lines();
std::string last_warning();
void log_line(plugin::abi::LogLevel level, unsigned long subsystems, const char* file, int line,
              const char* format, ...);

// Fields that all versions have, or their defaults; `unwritten` counts bytes that kept their paint
// though they belong to a field.
struct SeenDevice {
  std::string name;
  std::string pci_path;
  uint64_t guid = 0;
  int pointers = 0;
  int speed_mbps = 0;
  int port = 0;
  int max_receives = 0;
  int is_registration_global = 0;
  int needs_flush = 0;
  std::vector<int> parts;
  int rail = -1, plane = -1;
  size_t unwritten = 0;
};

class Net {
 public:
  static constexpr int kTag = 3;  // of messages whose tag is of no interest

  Net(int version, std::unique_ptr<plugin::abi::Caller> caller)
      : version_(version), caller_(std::move(caller)) {}

  std::string name() const { return caller_->name(); }
  // Of the functions that may be absent, those that are there.
  std::string optional_functions() const { return caller_->optional_functions(); }
  bool has_finalize() const { return caller_->has_finalize(); }

  // Of the communicator that init() makes; negative: not given.
  void set_traffic_class(int traffic_class) { caller_->traffic_class = traffic_class; }
  Result init(void** context) { return caller_->init(context, log_line); }
  Result finalize(void* context) { return caller_->finalize(context); }
  Result set_attributes(void* context, plugin::abi::Attributes* attributes) {
    return caller_->set_attributes(context, attributes);
  }
  // One for each receive, from now on; and what init() is given to write events with.
  void set_profiler(void** phandles, plugin::abi::ProfilerCallback profiler) {
    caller_->phandles = phandles;
    caller_->profiler = profiler;
  }
  Result devices(int* count) { return caller_->devices(count); }
  Result get_properties(int device, SeenDevice* seen);
  Result make_virtual(int* device, const int* parts, int count) {
    return caller_->make_virtual(device, parts, count);
  }
  Result listen(void* context, int device, void* handle, void** comm) {
    return caller_->listen(context, device, handle, comm);
  }
  Result connect(void* context, int device, void* handle, void** comm) {
    return caller_->connect(context, device, handle, comm);
  }
  Result accept(void* listen_comm, void** comm) { return caller_->accept(listen_comm, comm); }
  Result reg_mr(void* comm, void* data, size_t bytes, int type, void** memory) {
    return caller_->reg_mr(comm, data, bytes, type, memory);
  }
  Result reg_mr_dma_buf(void* comm, void* data, size_t bytes, int type, uint64_t offset, int fd,
                        void** memory) {
    return caller_->reg_mr_dma_buf(comm, data, bytes, type, offset, fd, memory);
  }
  Result dereg_mr(void* comm, void* memory) { return caller_->dereg_mr(comm, memory); }
  Result isend(void* comm, void* data, size_t bytes, void* memory, void** request, int tag = kTag) {
    return caller_->isend(comm, data, bytes, tag, memory, request);
  }
  Result irecv_group(void* comm, int count, void** data, size_t* bytes, int* tags, void** memories,
                     void** request) {
    return caller_->irecv(comm, count, data, bytes, tags, memories, request);
  }
  Result iflush_group(void* comm, int count, void** data, int* bytes, void** memories,
                      void** request) {
    return caller_->iflush(comm, count, data, bytes, memories, request);
  }
  Result irecv(void* comm, void* data, size_t bytes, void* memory, void** request) {
    int tag = kTag;
    return caller_->irecv(comm, 1, &data, &bytes, &tag, &memory, request);
  }
  Result iflush(void* comm, void* data, int bytes, void* memory, void** request) {
    return caller_->iflush(comm, 1, &data, &bytes, &memory, request);
  }
  Result test(void* request, int* is_done, int* bytes) {
    return caller_->test(request, is_done, bytes);
  }
  Result close_send(void* comm) { return caller_->close_send(comm); }
  Result close_recv(void* comm) { return caller_->close_recv(comm); }
  Result close_listen(void* comm) { return caller_->close_listen(comm); }

 private:
  int version_;
  std::unique_ptr<plugin::abi::Caller> caller_;
};

using plugin::abi::kNewestVersion;
using plugin::abi::kOldestVersion;

// The library, for as long as the object lives.
class NetLibrary {
 public:
  NetLibrary();
  ~NetLibrary();
  NetLibrary(const NetLibrary&) = delete;
  NetLibrary& operator=(const NetLibrary&) = delete;

  // Null when the library has no such table.
  std::unique_ptr<Net> net(int version) const;
  static bool is_mapped();  // by /proc/self/maps

 private:
  void* handle_ = nullptr;
};

// A communicator of one process: the library, a table, a context.
struct Communicator {
  explicit Communicator(int version);
  ~Communicator();

  NetLibrary library;
  std::unique_ptr<Net> net;
  void* context = nullptr;
};

using NetHandle = std::array<std::byte, plugin::abi::kHandleBytes>;

// Calls until a comm is there, an error or patience ends; null then. No call may take part of the
// peer's time: each is counted, and the counts are for a test to look at.
void* connect(Net& net, void* context, NetHandle* handle);
void* accept(Net& net, void* listen_comm);
// A send whose receive is posted, as soon as its credit has come; null after an error.
void* send_when_ready(Net& net, void* comm, void* data, size_t bytes, void* memory);
// Until the request is done; the bytes, or -1 after an error.
int finish(Net& net, void* request);

}  // namespace noria::test
