// Memory of another device: registered by its descriptor, and flushed.

#include <array>
#include <cstdlib>
#include <string_view>

#include "base/units.hpp"
#include "tests/support/exported.hpp"
#include "tests/support/transport_pair.hpp"
#include "verbs/device.hpp"

namespace noria::transport {
namespace {

using test::Connected;
using test::Exported;

class TransportMemory : public test::TransportPair {
 protected:
  Region registered(Domain& domain, const Exported& memory) {
    auto region = domain.register_region(
        DeviceMemory{.base = memory.data(), .bytes = memory.bytes(), .dmabuf_fd = memory.fd()});
    EXPECT_TRUE(region.is_ok());
    return region.is_ok() ? std::move(*region) : Region();
  }
  void carry(Connected& link, const Region& from, const Region& to, uint64_t offset,
             uint64_t bytes) {
    Request* const received = link.recv->try_recv(to, offset, bytes);
    ASSERT_NE(received, nullptr);
    Request* sent = nullptr;
    ASSERT_TRUE(poll_until([&] {
      if (sent == nullptr) sent = link.send->try_send(from, 0, bytes);
      return sent != nullptr && sent->is_done() && received->is_done();
    }));
    EXPECT_TRUE(received->status().is_ok()) << link.recv->describe();
    link.send->release(sent);
    link.recv->release(received);
  }
  void flush(Connected& link, std::span<const FlushPoint> points) {
    Request* const flushed = link.recv->try_flush(points);
    ASSERT_NE(flushed, nullptr) << link.recv->describe();
    ASSERT_TRUE(poll_until([&] { return flushed->is_done(); }));
    EXPECT_TRUE(flushed->status().is_ok()) << link.recv->describe();
    link.recv->release(flushed);
  }
};

// The software HCA, where payload is placed late: what arrives by descriptor is kept back.
bool is_kept_back() {
  const char* const place = std::getenv("NORIA_SOFT_PLACE");
  return place != nullptr && std::string_view(place) == "late";
}

TEST_F(TransportMemory, What_arrived_in_device_memory_is_seen_once_it_was_flushed) {
  Connected link = connect();
  ASSERT_NE(link.recv, nullptr);
  // Several queue pairs and rails carry a part each.
  std::vector<std::byte> source(1_MiB);
  const Region from = over(*a_, source);
  const Exported one(source.size()), other(source.size());
  const Region to_one = registered(*b_, one), to_other = registered(*b_, other);
  EXPECT_TRUE(to_one.is_of_device());
  EXPECT_FALSE(from.is_of_device());
  for (uint64_t seed = 1; seed < 8; ++seed) {
    for (const uint64_t bytes : {uint64_t{8}, uint64_t{4096}, uint64_t{source.size()}}) {
      test::paint(source.data(), bytes, seed);
      ASSERT_NO_FATAL_FAILURE(carry(link, from, to_one, 0, bytes));
      ASSERT_NO_FATAL_FAILURE(carry(link, from, to_other, 0, bytes));
      EXPECT_NE(one.sees(0, bytes, seed), is_kept_back());
      // Expect: whichever byte is read, all that came before it is there.
      const std::array points{FlushPoint{.region = &to_one, .offset = bytes - 1},
                              FlushPoint{.region = &to_other}};
      ASSERT_NO_FATAL_FAILURE(flush(link, points));
      EXPECT_TRUE(one.sees(0, bytes, seed));
      EXPECT_TRUE(other.sees(0, bytes, seed));
    }
  }
}

// The software HCA gives up all that it keeps back at the first read, where a host with several
// GPUs would not: so its count of bytes is asked.
TEST_F(TransportMemory, A_flush_reads_each_memory_through_every_rail) {
  const auto stats_of = provider_->api().symbols().noria_stats;
  if (stats_of == nullptr) GTEST_SKIP() << "the device has no counters";
  Connected link = connect();
  ASSERT_NE(link.recv, nullptr);
  const Exported one(4096), other(4096);
  const Region to_one = registered(*b_, one), to_other = registered(*b_, other);
  const std::array points{FlushPoint{.region = &to_one}, FlushPoint{.region = &to_other}};
  ASSERT_NO_FATAL_FAILURE(flush(link, points));
  std::vector<verbs::OpenPort> ports;
  for (const verbs::PortInfo& info : provider_->ports())
    ports.push_back(*verbs::open_port(*provider_, info));
  ASSERT_NO_FATAL_FAILURE(flush(link, points));
  for (const verbs::OpenPort& port : ports) {
    VerbsStats stats;
    ASSERT_EQ(stats_of(port.context.get(), &stats), 0);
    EXPECT_EQ(stats.received_bytes, points.size()) << port.info.name();
  }
}

TEST_F(TransportMemory, A_message_is_sent_from_device_memory) {
  Connected link = connect();
  ASSERT_NE(link.recv, nullptr);
  const Exported source(64_KiB);
  std::vector<std::byte> target(source.bytes());
  const Region from = registered(*a_, source), to = over(*b_, target);
  test::paint(source.data(), source.bytes(), 5);
  ASSERT_NO_FATAL_FAILURE(carry(link, from, to, 0, source.bytes()));
  EXPECT_EQ(test::first_wrong(target.data(), target.size(), 5), target.size());
}

TEST_F(TransportMemory, Flushes_are_bounded_and_go_round) {
  Connected link = connect();
  ASSERT_NE(link.recv, nullptr);
  const Exported memory(4096);
  const Region region = registered(*b_, memory);
  const std::array<FlushPoint, kMaxFlushPoints> points = [&] {
    std::array<FlushPoint, kMaxFlushPoints> made;
    made.fill({.region = &region});
    return made;
  }();
  for (int lap = 0; lap < 3; ++lap) {
    std::vector<Request*> under_way;
    while (Request* const request = link.recv->try_flush(points)) under_way.push_back(request);
    // Expect: so many as NCCL may have requests, and the connection is well.
    EXPECT_EQ(under_way.size(), 32u);
    EXPECT_TRUE(link.recv->status().is_ok());
    for (Request* const request : under_way) {
      ASSERT_TRUE(poll_until([&] { return request->is_done(); }));
      link.recv->release(request);
    }
  }
}

TEST_F(TransportMemory, A_range_that_is_registered_twice_is_one_until_the_second_ends) {
  std::vector<std::byte> memory(64_KiB);
  const int64_t before = provider_->api().live_objects();
  {
    const Region first = over(*b_, memory);
    const int64_t with_one = provider_->api().live_objects();
    {
      const Region second = over(*b_, memory);
      // Expect: no more registrations, and the same keys.
      EXPECT_EQ(provider_->api().live_objects(), with_one);
      EXPECT_EQ(second.remote().rkeys, first.remote().rkeys);
    }
    EXPECT_EQ(provider_->api().live_objects(), with_one);
  }
  EXPECT_EQ(provider_->api().live_objects(), before);
}

}  // namespace
}  // namespace noria::transport
