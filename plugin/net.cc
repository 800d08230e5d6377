#include "plugin/net.hpp"

#include <array>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "verbs/transport/limits.hpp"
#include "verbs/transport/wire.hpp"

namespace noria::plugin {
namespace {

using abi::Result;

// What both sides must agree on above the transport: that they are this plugin, its version, and by
// what the tuner chooses.
constexpr uint64_t kFingerprint = 0x6e63'636c'6e65'7401;  // "ncclnet", 1

// NCCL says a negative one where the user gave none.
bool is_traffic_class(int given) { return given <= UINT8_MAX; }
constexpr const char* kForeignMemory =
    "memory that was deregistered, or registered on another device: regMr() it with a comm of "
    "this one";
constexpr const char* kBadTrafficClass = "the communicator's traffic class is over 255";

// What NCCL waits for an acknowledgement: about 4 s, and half a minute with 7 retries.
constexpr uint8_t kAckTimeout = 20;

transport::ConnectOptions connect_options(const Setup& setup, int traffic_class) {
  // The peer's rank may compute for minutes before it accepts: NCCL knows when to give up.
  transport::ConnectOptions options{.fingerprint = kFingerprint ^ setup.tuning.fingerprint,
                                    .peer_name = "the peer",
                                    .ack_timeout = kAckTimeout,
                                    .waits_for_ever = true,
                                    .has_kept_regions = true};
  if (traffic_class >= 0) options.traffic_class = static_cast<uint8_t>(traffic_class);
  return options;
}

Result result_of(Status status) {
  switch (status.code()) {
    case Code::ok: return Result::success;
    case Code::bad_argument: return Result::invalid_usage;  // a send longer than its receive
    case Code::mismatch: return Result::invalid_usage;
    case Code::timed_out:
    case Code::stranger:
    case Code::peer_lost:
    case Code::connection_lost: return Result::remote_error;
    case Code::no_memory:
    case Code::unsupported:
    case Code::port_down:
    case Code::device_lost: return Result::system_error;
    case Code::bad_state:
    case Code::aborted:
    case Code::internal: return Result::internal_error;
  }
  return Result::internal_error;
}

// What an operator looks for first. Why noria is off was said when that was found out.
void say_communicator(const char* name) {
  const auto setup = registry().setup();
  if (setup == nullptr || setup->provider == nullptr) return;
  log(LogLevel::info,
      "noria " NORIA_PLUGIN_VERSION ", wire %u, %s: each connection has %" PRIu64
      " queue pairs a rail of %s, by %s",
      unsigned{transport::wire::kVersion}, name, setup->params.qps_per_connection,
      setup->device_names().c_str(), setup->provider->library_path().c_str());
}

NORIA_COLD Result refuse(const char* function, const char* what) {
  log(LogLevel::warn, "noria: %s: %s", function, what);
  return Result::invalid_argument;
}

NORIA_COLD Result fail(Status status, const std::string& text) {
  std::string advice;
  if (status.code() == Code::no_memory)
    advice = advice_on(status, transport::Limits::of_this_process());
  if (transport::are_fingerprints_unlike(status))
    advice =
        "tables of nodes with unlike GPUs or NICs are unlike too: there set NORIA_TUNER=0 on "
        "all ranks";
  log(LogLevel::warn, "noria: %s (%s)%s%s", text.c_str(), to_string(status.code()),
      advice.empty() ? "" : ": ", advice.c_str());
  return result_of(status);
}

NORIA_COLD Result fail(Connection& connection, Status status, const std::string& text) {
  return connection.is_news() ? fail(status, text) : result_of(status);
}

// A domain on the device, or what is wrong.
noria::Result<std::unique_ptr<transport::Domain>, Result> open_domain(const char* function,
                                                                      void* context, int index,
                                                                      const Setup* setup) {
  if (setup == nullptr || !registry().has(static_cast<Context*>(context)))
    return refuse(function, "no context of ours: init() comes first");
  const Device* const device = find_device(setup, index);
  if (device == nullptr) return Result::invalid_argument;
  std::vector<std::shared_ptr<transport::Port>> ports;
  for (const verbs::PortInfo& info : device->ports) {
    auto port = setup->ports->open(info);
    if (!port) return fail(port.failure(), "cannot open " + info.device + " of " + device->name);
    ports.push_back(std::move(*port));
  }
  auto domain = transport::Domain::create_for_one(ports, setup->params);
  if (!domain) return fail(domain.failure(), "no completion queue on " + device->name);
  return std::move(*domain);
}

std::string text_of(const Sending& sending) { return sending.connection->describe(); }
std::string text_of(const Receiving& receiving) { return receiving.connection->describe(); }

// Nothing could be posted: there is no room, or the connection failed.
template <class Side>
NORIA_COLD Result on_no_request(Side& side) {
  // Nobody tests when nothing is in flight, and the peer may be gone.
  side.domain().poll();
  const Status status = side.connection->status();
  return status.is_ok() ? Result::success : fail(side, status, text_of(side));
}

NORIA_HOT void release(Connection& connection, transport::Request* request) {
  if (connection.kind() == Kind::sending)
    static_cast<Sending&>(connection).connection->release(request);
  else
    static_cast<Receiving&>(connection).connection->release(request);
}

NORIA_COLD Result on_failed(Connection& connection, transport::Request* request, Status status) {
  const bool is_sending = connection.kind() == Kind::sending;
  const std::string text =
      status.code() == Code::bad_argument
          ? std::string(is_sending ? "isend: more bytes than the peer's receive has room for, or "
                                   : "irecv: ") +
                "a range outside of the registered memory"
      : is_sending ? text_of(static_cast<Sending&>(connection))
                   : text_of(static_cast<Receiving&>(connection));
  release(connection, request);
  return fail(connection, status, text);
}

// Objects of ours are aligned, and NCCL's own marks are not.
template <class T>
T* as(void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % alignof(T) == 0 ? static_cast<T*>(pointer)
                                                                : nullptr;
}

template <class Side>
Side* side_of(void* comm, Kind kind) {
  Side* const side = as<Side>(comm);
  return side != nullptr && side->kind() == kind ? side : nullptr;
}

// What to do about a registration that was refused for what it is.
std::string advice_on_kind(Status refusal, const transport::DeviceMemory& memory, int type) {
  if (refusal.code() == Code::no_memory) return "";
  if (memory.dmabuf_fd >= 0)
    return ": set NCCL_DMABUF_ENABLE=0 to go by address, NCCL_NET_GDR_LEVEL=LOC to go through the "
           "host";
  if (type == abi::kPointerCuda)
    return ": load nvidia_peermem, or let NCCL go by dmabuf (NCCL_DMABUF_ENABLE=1)";
  return ": is all of it mapped, for writing too?";
}

Result register_memory(const char* function, void* comm, const transport::DeviceMemory& what,
                       int type, void** memory) {
  if (memory == nullptr) return refuse(function, "mhandle is NULL");
  *memory = nullptr;
  if (type != abi::kPointerHost && type != abi::kPointerCuda)
    return refuse(function, "only host memory (type 1) and CUDA memory (type 2) are taken");
  if (what.base == nullptr && what.bytes != 0) return refuse(function, "data is NULL");
  Object* const object = registry().find(comm);
  if (object == nullptr || object->kind() == Kind::listening)
    return refuse(function, "not a connection of ours that is open");
  transport::Domain& domain = static_cast<Connection&>(*object).domain();
  const bool is_host = type == abi::kPointerHost && what.dmabuf_fd < 0;
  auto region =
      is_host ? domain.register_region(what.base, what.bytes) : domain.register_region(what);
  if (!region)
    return fail(region.failure(), std::string(function) + ": the device refused " +
                                      std::to_string(what.bytes) +
                                      (is_host ? " bytes of host memory" : " bytes of GPU memory") +
                                      ", errno " + std::to_string(region.failure().raw()) +
                                      advice_on_kind(region.failure(), what, type));
  *memory = registry().keep(
      std::make_unique<Memory>(std::move(*region), domain.ports(), object->context()));
  return Result::success;
}

Result close(const char* function, void* comm, Kind kind) {
  if (registry().take(comm, kind) == nullptr)
    return refuse(function, "not open, or not of this kind");
  return Result::success;
}

}  // namespace

// ---- communicators ------------------------------------------------------------------------------

Result init(void** context, uint64_t communicator, int traffic_class, abi::Logger logger) {
  send_log_to(logger);
  if (context == nullptr) return refuse("init", "context is NULL");
  if (!is_traffic_class(traffic_class)) return refuse("init", kBadTrafficClass);
  *context = registry().open(communicator, traffic_class);
  char name[32];
  std::snprintf(name, sizeof name, "communicator 0x%" PRIx64, communicator);
  say_communicator(name);
  return Result::success;
}

Result init_shared(abi::Logger logger) {
  send_log_to(logger);
  registry().open_shared();
  say_communicator("communicators of this process");
  return Result::success;
}

Result finalize(void* context) {
  if (!registry().close(static_cast<Context*>(context)))
    return refuse("finalize", "no context of ours");
  return Result::success;
}

Result devices(int* count) {
  if (count == nullptr) return refuse("devices", "count is NULL");
  const auto setup = registry().setup();
  *count = setup != nullptr ? setup->devices->count() : 0;
  return Result::success;
}

const Device* find_device(const Setup* setup, int index) {
  const Device* const device = setup != nullptr ? setup->devices->find(index) : nullptr;
  if (device == nullptr)
    log(LogLevel::warn, "noria: there is no device %d: there are %d, counted from 0", index,
        setup != nullptr ? setup->devices->count() : 0);
  return device;
}

Result make_virtual(int* index, const int* parts, int count, size_t room) {
  if (index == nullptr || parts == nullptr) return refuse("makeVDevice", "an argument is NULL");
  const auto setup = registry().setup();
  if (setup == nullptr) return refuse("makeVDevice", "init() comes first");
  // What NCCL counts is not bounded by the room that its struct has.
  if (count < 1 || static_cast<size_t>(count) > room)
    return refuse("makeVDevice", (std::to_string(count) + " parts: a device is made of 1 to " +
                                  std::to_string(room))
                                     .c_str());
  const auto made = setup->devices->fuse({parts, static_cast<size_t>(count)});
  if (!made) return refuse("makeVDevice", made.failure().c_str());
  *index = *made;
  const Device& device = *setup->devices->find(*made);
  log(LogLevel::info, "noria: device %d is %s, %u Gb/s over %zu ports", *made, device.name.c_str(),
      device.speed_mbps() / 1000, device.ports.size());
  return Result::success;
}

// ---- connections --------------------------------------------------------------------------------

Result listen(void* context, int device, void* handle, void** listen_comm) {
  if (handle == nullptr || listen_comm == nullptr) return refuse("listen", "an argument is NULL");
  *listen_comm = nullptr;
  const auto setup = registry().setup();
  auto domain = open_domain("listen", context, device, setup.get());
  if (!domain) return domain.failure();
  auto object = std::make_unique<Listening>(static_cast<Context*>(context));
  object->domain = std::move(*domain);
  object->flushing = find_device(setup.get(), device)->flushing;
  auto listener = transport::Listener::open(
      *object->domain, setup->host, connect_options(*setup, object->context()->traffic_class));
  if (!listener) return fail(listener.failure(), "cannot listen on " + setup->host);
  object->listener = std::move(*listener);
  static_assert(sizeof(transport::Handle) == abi::kHandleBytes);
  std::memcpy(handle, object->listener->handle().bytes.data(), abi::kHandleBytes);
  *listen_comm = registry().keep(std::move(object));
  return Result::success;
}

Result connect(void* context, int device, int traffic_class, const void* handle, void** send_comm) {
  if (handle == nullptr || send_comm == nullptr) return refuse("connect", "an argument is NULL");
  *send_comm = nullptr;
  if (!is_traffic_class(traffic_class)) return refuse("connect", kBadTrafficClass);
  auto* const owner = static_cast<Context*>(context);
  transport::Handle called;
  std::memcpy(called.bytes.data(), handle, abi::kHandleBytes);

  std::unique_ptr<Connecting> way = registry().resume(owner, called.bytes);
  if (way == nullptr) {
    const auto setup = registry().setup();
    auto domain = open_domain("connect", context, device, setup.get());
    if (!domain) return domain.failure();
    way = std::make_unique<Connecting>();
    way->domain = std::move(*domain);
    auto connector = transport::Connector::start(
        *way->domain, called,
        connect_options(*setup, traffic_class >= 0 ? traffic_class : owner->traffic_class));
    if (!connector)
      return fail(connector.failure(),
                  "cannot connect: the handle is none of ours, or the device gives no queue pair");
    way->connector = std::move(*connector);
  }
  auto made = way->connector->try_finish();
  if (!made) return fail(made.failure(), way->connector->describe());
  if (*made == nullptr) {
    registry().suspend(owner, called.bytes, std::move(way));
    return Result::success;
  }
  way->connector.reset();
  *send_comm =
      registry().keep(std::make_unique<Sending>(owner, std::move(way->domain), std::move(*made)));
  return Result::success;
}

Result accept(void* listen_comm, void** recv_comm) {
  if (recv_comm == nullptr) return refuse("accept", "recv_comm is NULL");
  *recv_comm = nullptr;
  Object* const object = registry().find(listen_comm);
  if (object == nullptr || object->kind() != Kind::listening)
    return refuse("accept", "not a listener of ours that is open");
  auto& listening = static_cast<Listening&>(*object);
  if (listening.listener == nullptr)
    return refuse("accept", "this listener has accepted its one connection already");
  auto made = listening.listener->try_accept();
  if (!made) return fail(made.failure(), listening.listener->describe());
  if (*made == nullptr) return Result::success;
  listening.listener.reset();
  auto receiving = std::make_unique<Receiving>(listening.context(), std::move(listening.domain),
                                               std::move(*made));
  receiving->flushing = listening.flushing;
  *recv_comm = registry().keep(std::move(receiving));
  return Result::success;
}

Result close_send(void* send_comm) { return close("closeSend", send_comm, Kind::sending); }
Result close_recv(void* recv_comm) { return close("closeRecv", recv_comm, Kind::receiving); }
Result close_listen(void* listen_comm) {
  return close("closeListen", listen_comm, Kind::listening);
}

// ---- memory -------------------------------------------------------------------------------------

Result reg_mr(void* comm, void* data, size_t bytes, int type, void** memory) {
  return register_memory("regMr", comm, {.base = data, .bytes = bytes}, type, memory);
}

Result reg_mr_dma_buf(void* comm, void* data, size_t bytes, int type, uint64_t offset, int fd,
                      void** memory) {
  if (fd < 0) return refuse("regMrDmaBuf", "not a descriptor");
  return register_memory("regMrDmaBuf", comm,
                         {.base = data, .bytes = bytes, .dmabuf_fd = fd, .dmabuf_offset = offset},
                         type, memory);
}

Result dereg_mr(void* comm, void* memory) {
  const Object* const object = registry().find(comm);
  if (object == nullptr || object->kind() == Kind::listening)
    return refuse("deregMr", "not a connection of ours that is open");
  if (registry().take_memory(memory) == nullptr) return refuse("deregMr", "not registered");
  return Result::success;
}

// ---- the data path ------------------------------------------------------------------------------

Result isend(void* send_comm, void* data, size_t bytes, int tag, void* memory, void** request) {
  if (request == nullptr) [[unlikely]]
    return refuse("isend", "request is NULL");
  *request = nullptr;  // NCCL leaves what was there from the lap before
  auto* const side = side_of<Sending>(send_comm, Kind::sending);
  if (side == nullptr || (memory == nullptr && bytes != 0)) [[unlikely]]
    return refuse("isend", "not a send comm, or memory that is not registered");
  const Memory& from = side->memory_of(memory);
  if (!side->takes(from)) [[unlikely]]
    return refuse("isend", kForeignMemory);
  *request = side->connection->try_send(from.region, from.offset_of(data), bytes,
                                        static_cast<uint32_t>(tag));
  return *request != nullptr ? Result::success : on_no_request(*side);
}

namespace {

static_assert(abi::kMostReceives == int{transport::kMaxGroup});

// Out of line: one receive, the common case, does without.
[[gnu::noinline]] NORIA_HOT Result receive_group(Receiving& side, int count, void* const* data,
                                                 const size_t* bytes, const int* tags,
                                                 void* const* memories, void** request) {
  if (count < 1 || count > abi::kMostReceives) [[unlikely]]
    return refuse("irecv", "1 to 8 receives are taken");
  std::array<transport::RecvPart, size_t{abi::kMostReceives}> parts;
  const auto members = static_cast<size_t>(count);
  for (size_t i = 0; i < members; ++i) {
    if (memories[i] == nullptr && bytes[i] != 0) [[unlikely]]
      return refuse("irecv", "memory that is not registered");
    const Memory& memory = side.memory_of(memories[i]);
    if (!side.takes(memory)) [[unlikely]]
      return refuse("irecv", kForeignMemory);
    parts[i] = {.region = &memory.region,
                .offset = memory.offset_of(data[i]),
                .bytes = bytes[i],
                .tag = static_cast<uint32_t>(tags[i])};
  }
  *request = side.connection->try_recv_group({parts.data(), members});
  return *request != nullptr ? Result::success : on_no_request(side);
}

[[gnu::noinline]] NORIA_HOT void tell_sizes(const transport::RecvConnection& receiving,
                                            const transport::Request& group, int* bytes) {
  if (bytes == nullptr || !group.status().is_ok()) return;
  for (uint32_t i = 0; i < group.messages(); ++i)
    bytes[i] = static_cast<int>(receiving.part_bytes(&group, i));
}

}  // namespace

Result irecv(void* recv_comm, int count, void* const* data, const size_t* bytes, const int* tags,
             void* const* memories, void** request) {
  if (request == nullptr) [[unlikely]]
    return refuse("irecv", "request is NULL");
  *request = nullptr;  // also where NCCL would do without a completion: every receive has one
  auto* const side = side_of<Receiving>(recv_comm, Kind::receiving);
  if (side == nullptr) [[unlikely]]
    return refuse("irecv", "not a recv comm");
  if (data == nullptr || bytes == nullptr || tags == nullptr || memories == nullptr) [[unlikely]]
    return refuse("irecv", "none of the arrays may be NULL");
  if (count != 1) [[unlikely]]
    return receive_group(*side, count, data, bytes, tags, memories, request);
  if (*memories == nullptr && *bytes != 0) [[unlikely]]
    return refuse("irecv", "memory that is not registered");
  const Memory& to = side->memory_of(*memories);
  if (!side->takes(to)) [[unlikely]]
    return refuse("irecv", kForeignMemory);
  *request = side->connection->try_recv(to.region, to.offset_of(*data), *bytes,
                                        static_cast<uint32_t>(*tags));
  return *request != nullptr ? Result::success : on_no_request(*side);
}

Result iflush(void* recv_comm, int count, void* const* data, const int* bytes,
              void* const* memories, void** request) {
  if (request == nullptr) return refuse("iflush", "request is NULL");
  *request = nullptr;  // done
  auto* const side = side_of<Receiving>(recv_comm, Kind::receiving);
  if (side == nullptr || count < 1 || count > int{transport::kMaxFlushPoints} || data == nullptr ||
      bytes == nullptr || memories == nullptr)
    return refuse("iflush", "not a recv comm, or not 1 to 8 receives");
  std::array<transport::FlushPoint, transport::kMaxFlushPoints> points;
  size_t used = 0;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    const Memory& memory = side->memory_of(memories[i]);
    if (!side->takes(memory)) return refuse("iflush", kForeignMemory);
    if (needs_flush(side->flushing, memory.region.is_of_device(), static_cast<uint64_t>(bytes[i])))
      points[used++] = {.region = &memory.region, .offset = memory.offset_of(data[i])};
  }
  if (used == 0) return Result::success;
  // Null would say that it is done.
  transport::Request* const flushed = side->connection->try_flush(std::span(points).first(used));
  if (flushed == nullptr) {
    const Status status = side->connection->status();
    return status.is_ok() ? refuse("iflush", "more requests are under way than NCCL may have")
                          : fail(*side, status, text_of(*side));
  }
  *request = flushed;
  return Result::success;
}

// Apart from test(), because most tests find nothing.
[[gnu::noinline]] NORIA_HOT static Result finish(transport::Request* request, int* is_done,
                                                 int* bytes) {
  Connection& connection = *static_cast<Connection*>(request->owner());
  if (request->messages() != 1) [[unlikely]]
    tell_sizes(*static_cast<Receiving&>(connection).connection, *request, bytes);
  else if (bytes != nullptr)
    *bytes = static_cast<int>(request->bytes());
  if (!request->status().is_ok()) [[unlikely]] {
    *is_done = 0;
    return on_failed(connection, request, request->status());
  }
  *is_done = 1;
  release(connection, request);
  return Result::success;
}

Result test(void* request, int* is_done, int* bytes) {
  auto* const wire = as<transport::Request>(request);
  if (wire == nullptr || wire->is_free() || is_done == nullptr) [[unlikely]]
    return refuse("test", "not a request under way, or done is NULL");
  if (!wire->is_done()) {
    static_cast<Connection*>(wire->owner())->domain().poll();
    if (!wire->is_done()) return *is_done = 0, Result::success;
  }
  return finish(wire, is_done, bytes);
}

}  // namespace noria::plugin
