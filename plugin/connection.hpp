// What NCCL holds by a void pointer: a listener, the two ends of a connection, and registered
// memory. A request is the transport's own, and its connection is the owner that it names.
//
// Each connection has a domain of its own, because nobody can know which thread will drive it: the
// one that set it up hands it over to the one that sends, receives and tests. Memory belongs to no
// connection: it was registered with the device, and serves all that are made over it. A pointer to
// what was closed is found out by what stands there: see kept_storage.hpp.
//
// Threads: one at a time for an object; memory is immutable.
#pragma once

#include <memory>
#include <utility>

#include "base/check.hpp"
#include "plugin/gpu_memory.hpp"
#include "verbs/transport/connection.hpp"
#include "verbs/transport/domain.hpp"
#include "verbs/transport/kept_storage.hpp"
#include "verbs/transport/listener.hpp"

namespace noria::plugin {

struct Context;  // of a communicator

enum class Kind : uint32_t { listening = 0x6c697374, sending = 0x73656e64, receiving = 0x72656376 };

class Object : public transport::InKeptStorage {
 public:
  Object(Kind kind, const Context* context) : kind_(kind), context_(context) {}
  virtual ~Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;

  Kind kind() const { return kind_; }
  const Context* context() const { return context_; }

 private:
  Kind kind_;  // cleared storage is of none
  const Context* context_;
};

// Accepts one connection, which takes the domain with it.
struct Listening : Object {
  explicit Listening(const Context* context) : Object(Kind::listening, context) {}

  std::unique_ptr<transport::Domain> domain;
  std::unique_ptr<transport::Listener> listener;  // null once it has accepted
  Flushing flushing = Flushing::never;            // of its device
};

// A connection under way; NCCL does not hold it, but calls again with the same handle.
struct Connecting {
  std::unique_ptr<transport::Domain> domain;
  std::unique_ptr<transport::Connector> connector;
};

struct Memory : transport::InKeptStorage {
  Memory(transport::Region registered, uint64_t ports_of, const Context* of)
      : region(std::move(registered)),
        base(reinterpret_cast<uintptr_t>(region.base())),
        ports(ports_of),
        context(of) {}
  NORIA_HOT uint64_t offset_of(const void* data) const {
    return reinterpret_cast<uintptr_t>(data) - base;
  }

  const transport::Region region;
  const uintptr_t base;
  const uint64_t ports;  // that it is registered on: transport::Domain::ports()
  const Context* const context;
};

class Connection : public Object {
 public:
  Connection(Kind kind, const Context* context, std::unique_ptr<transport::Domain> domain)
      : Object(kind, context),
        domain_(std::move(domain)),
        no_memory_(transport::Region(), domain_->ports(), context) {}

  // What NCCL calls an mhandle; none at all for null, as it passes with messages of no bytes.
  NORIA_HOT const Memory& memory_of(const void* memory) const {
    return memory != nullptr ? *static_cast<const Memory*>(memory) : no_memory_;
  }
  // Whether it is registered on our device.
  NORIA_HOT bool takes(const Memory& memory) const { return memory.ports == no_memory_.ports; }
  transport::Domain& domain() { return *domain_; }
  // True the first time: a failure is told once.
  bool is_news() { return !std::exchange(was_told_, true); }

 private:
  std::unique_ptr<transport::Domain> domain_;
  const Memory no_memory_;
  bool was_told_ = false;
};

// The connections go before the domain that is in the base.
struct Sending : Connection {
  Sending(const Context* context, std::unique_ptr<transport::Domain> domain,
          std::unique_ptr<transport::SendConnection> made)
      : Connection(Kind::sending, context, std::move(domain)), connection(std::move(made)) {
    connection->set_owner(static_cast<Connection*>(this));
  }

  std::unique_ptr<transport::SendConnection> connection;
};

struct Receiving : Connection {
  Receiving(const Context* context, std::unique_ptr<transport::Domain> domain,
            std::unique_ptr<transport::RecvConnection> made)
      : Connection(Kind::receiving, context, std::move(domain)), connection(std::move(made)) {
    connection->set_owner(static_cast<Connection*>(this));
  }

  std::unique_ptr<transport::RecvConnection> connection;
  Flushing flushing = Flushing::never;
};

}  // namespace noria::plugin
