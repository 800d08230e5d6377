// Device memory where something fails: descriptors that are not taken, flushes that cannot be.

#include <cerrno>

#include "base/log.hpp"
#include "tests/support/exported.hpp"
#include "tests/support/transport_pair.hpp"
#include "verbs/transport/port.hpp"

namespace noria::transport {
namespace {

using test::Exported;
using verbs::Symbols;

int lines_logged = 0;
void count_lines(LogLevel, const char*) { ++lines_logged; }

ibv_mr* take_no_dmabuf(ibv_pd*, uint64_t, size_t, uint64_t, int, int) {
  errno = EOPNOTSUPP;
  return nullptr;
}
decltype(&ibv_create_qp) real_create_qp = nullptr;
bool is_refusing = false;
ibv_qp* create_or_refuse(ibv_pd* pd, ibv_qp_init_attr* attr) {
  if (!is_refusing) return real_create_qp(pd, attr);
  errno = ENOMEM;
  return nullptr;
}

// As TransportPair, over the library's own functions but for some.
class TransportMemoryFault : public test::TransportPair {
 protected:
  void SetUp() override {
    is_refusing = false;
    lines_logged = 0;
    test::TransportPair::SetUp();
  }
  void TearDown() override {
    set_log_sink(&detail::write_to_stderr);
    test::TransportPair::TearDown();
  }
  // What a_ and b_ are made over from now on.
  void replace(void (*change)(Symbols&)) {
    Symbols symbols = provider_->api().symbols();
    change(symbols);
    library_ = provider_;
    a_.reset();
    b_.reset();
    provider_ = verbs::make_provider(verbs::Api::from_symbols(symbols), "changed", "", params_);
    a_ = test::make_domain(provider_, params_);
    b_ = test::make_domain(provider_, params_);
  }

  std::shared_ptr<const verbs::Provider> library_;
};

TEST_F(TransportMemoryFault, A_descriptor_that_no_device_takes_is_registered_by_its_address) {
  replace([](Symbols& symbols) { symbols.reg_dmabuf_mr = &take_no_dmabuf; });
  auto port = Port::open(provider_, provider_->ports().front());
  ASSERT_TRUE(port.is_ok());
  EXPECT_FALSE((*port)->registers_dmabuf());
  port->reset();
  set_log_sink(&count_lines);
  set_log_level(LogLevel::info);
  const Exported memory(4096);
  const DeviceMemory exported{.base = memory.data(), .bytes = 4096, .dmabuf_fd = memory.fd()};
  for (int i = 0; i < 3; ++i) {
    const auto region = b_->register_region(exported);
    ASSERT_TRUE(region.is_ok());
    EXPECT_TRUE(region->is_of_device());
  }
  // Expect: said once.
  EXPECT_EQ(lines_logged, 1);
  // Where its address is not known either.  Expect: a failure.
  void* const far = reinterpret_cast<void*>(0x7e0000000000);
  EXPECT_EQ(b_->register_region(DeviceMemory{.base = far, .bytes = 4096, .dmabuf_fd = memory.fd()})
                .failure()
                .code(),
            Code::bad_argument);
  set_log_level(LogLevel::warn);
}

TEST_F(TransportMemoryFault, A_library_without_the_function_takes_no_descriptors) {
  replace([](Symbols& symbols) { symbols.reg_dmabuf_mr = nullptr; });
  auto port = Port::open(provider_, provider_->ports().front());
  ASSERT_TRUE(port.is_ok());
  EXPECT_FALSE((*port)->registers_dmabuf());
}

TEST_F(TransportMemoryFault, A_flush_that_gets_no_queue_pair_ends_the_connection_and_says_why) {
  real_create_qp = provider_->api().symbols().create_qp;
  replace([](Symbols& symbols) { symbols.create_qp = &create_or_refuse; });
  test::Connected link = connect();
  ASSERT_NE(link.recv, nullptr);
  std::vector<std::byte> memory(4096);
  const Region region = over(*b_, memory);
  set_log_sink(&count_lines);
  is_refusing = true;
  const FlushPoint point{.region = &region};
  EXPECT_EQ(link.recv->try_flush(std::span(&point, 1)), nullptr);
  EXPECT_EQ(link.recv->status().code(), Code::no_memory);
  EXPECT_NE(link.recv->describe().find("flush"), std::string::npos) << link.recv->describe();
  // Expect: the same again, and no more.
  EXPECT_EQ(link.recv->try_flush(std::span(&point, 1)), nullptr);
}

TEST_F(TransportMemoryFault, Memory_that_is_gone_fails_its_flush_and_the_connection) {
  test::Connected link = connect();
  ASSERT_NE(link.recv, nullptr);
  std::vector<std::byte> memory(4096);
  const Region region = over(*b_, memory);
  // Behind its end is nothing that is registered.
  const FlushPoint point{.region = &region, .offset = 4096};
  Request* const flushed = link.recv->try_flush(std::span(&point, 1));
  ASSERT_NE(flushed, nullptr);
  ASSERT_TRUE(poll_until([&] { return flushed->is_done(); }));
  EXPECT_EQ(flushed->status().code(), Code::connection_lost);
  EXPECT_NE(link.recv->describe().find("device memory"), std::string::npos)
      << link.recv->describe();
  link.recv->release(flushed);
}

}  // namespace
}  // namespace noria::transport
