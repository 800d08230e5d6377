// Two domains of one process and connections between them, for tests of the transport.
//
// The provider and its parameters come from the environment of the test, so that one suite runs
// over every placement, copy path, number of queue pairs and of rails: all that the provider shows.
//
// Threads: one.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/params.hpp"
#include "base/units.hpp"
#include "tests/support/pattern.hpp"
#include "verbs/api.hpp"
#include "verbs/device.hpp"
#include "verbs/provider.hpp"
#include "verbs/transport/domain.hpp"
#include "verbs/transport/listener.hpp"

extern char** environ;

namespace noria::test {

inline constexpr Nanoseconds kPatience = 30_s;  // far beyond what a loaded machine needs

inline Params params_from_environment() {
  auto params = load_params(environ);
  EXPECT_TRUE(params.is_ok()) << params.failure();
  return params.is_ok() ? *params : Params{};
}

inline std::shared_ptr<const verbs::Provider> provider_from_environment() {
  auto provider = verbs::open_provider(params_from_environment(), verbs::Use::collective);
  EXPECT_TRUE(provider.is_ok()) << provider.failure();
  return provider.is_ok() ? *provider : nullptr;
}

inline std::unique_ptr<transport::Domain> make_domain(
    const std::shared_ptr<const verbs::Provider>& provider, const Params& params,
    unsigned rails = transport::kMaxRails) {
  auto domain = transport::Domain::create(provider, params, rails);
  EXPECT_TRUE(domain.is_ok()) << to_string(domain.failure().code());
  return domain.is_ok() ? std::move(*domain) : nullptr;
}

// 64 MiB; or, where a port takes less in one work request, three of these and a piece of a fourth.
inline uint64_t long_message(const verbs::Provider& provider) {
  uint64_t bytes = 64_MiB;
  for (const verbs::PortInfo& info : provider.ports()) {
    if (!info.is_active) continue;
    const auto port = verbs::open_port(provider, info);
    EXPECT_TRUE(port.is_ok());
    if (port.is_ok()) bytes = std::min(bytes, 3 * uint64_t{port->attr.max_msg_sz} + 77);
  }
  return bytes;
}

struct Connected {
  std::unique_ptr<transport::SendConnection> send;
  std::unique_ptr<transport::RecvConnection> recv;
};

class TransportPair : public testing::Test {
 protected:
  void SetUp() override {
    params_ = params_from_environment();
    provider_ = provider_from_environment();
    ASSERT_NE(provider_, nullptr);
    a_ = make_domain(provider_, params_);
    b_ = make_domain(provider_, params_);
    ASSERT_NE(a_, nullptr);
    ASSERT_NE(b_, nullptr);
  }
  void TearDown() override {
    a_.reset();
    b_.reset();
    if (provider_ != nullptr) {
      EXPECT_EQ(provider_->api().live_objects(), 0) << "something was not given back";
      EXPECT_EQ(provider_->api().failed_closes(), 0u) << "something was closed out of order";
    }
  }

  // Polls both domains until `is_true`; false when patience ends.
  bool poll_until(const std::function<bool()>& is_true) {
    const Nanoseconds deadline = now_ns() + kPatience;
    while (!is_true()) {
      a_->poll();
      b_->poll();
      if (now_ns() > deadline) return false;
    }
    return true;
  }

  // A connection from `a_` to `b_`.
  Connected connect(const transport::ConnectOptions& options = {}) {
    Connected made;
    auto listener = transport::Listener::open(*b_, "127.0.0.1", options);
    EXPECT_TRUE(listener.is_ok());
    if (!listener.is_ok()) return made;
    auto connector = transport::Connector::start(*a_, (*listener)->handle(), options);
    EXPECT_TRUE(connector.is_ok());
    if (!connector.is_ok()) return made;
    const bool is_connected = poll_until([&] {
      if (made.send == nullptr) {
        auto sent = (*connector)->try_finish();
        if (!sent.is_ok()) return true;
        made.send = std::move(*sent);
      }
      if (made.recv == nullptr) {
        auto received = (*listener)->try_accept();
        if (!received.is_ok()) return true;
        made.recv = std::move(*received);
      }
      return made.send != nullptr && made.recv != nullptr;
    });
    EXPECT_TRUE(is_connected && made.send != nullptr && made.recv != nullptr)
        << (*connector)->describe() << " / " << (*listener)->describe();
    return made;
  }

  // A receive on `b_` as soon as there is room for its credit; null when patience ends.
  transport::Request* post_receive(Connected& link, const transport::Region& to, uint64_t offset,
                                   uint64_t bytes) {
    transport::Request* request = nullptr;
    EXPECT_TRUE(
        poll_until([&] { return (request = link.recv->try_recv(to, offset, bytes)) != nullptr; }));
    return request;
  }

  transport::Region allocate(transport::Domain& domain, uint64_t bytes) {
    auto region = domain.allocate(bytes);
    EXPECT_TRUE(region.is_ok());
    return region.is_ok() ? std::move(*region) : transport::Region();
  }
  transport::Region over(transport::Domain& domain, std::vector<std::byte>& memory) {
    auto region = domain.register_region(memory.data(), memory.size());
    EXPECT_TRUE(region.is_ok());
    return region.is_ok() ? std::move(*region) : transport::Region();
  }

  Params params_;
  std::shared_ptr<const verbs::Provider> provider_;
  std::unique_ptr<transport::Domain> a_, b_;
};

}  // namespace noria::test
