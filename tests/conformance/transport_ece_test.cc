// Enhanced connection establishment: both ends of a connection learn what both devices can, and do
// without where one of them can nothing, or refuses.

#include <cerrno>
#include <cstdlib>

#include "tests/support/transport_pair.hpp"

namespace noria::transport {
namespace {

using verbs::Symbols;

int refuse_to_query(ibv_qp*, ibv_ece*) { return EOPNOTSUPP; }
int refuse_to_set(ibv_qp*, ibv_ece*) { return EINVAL; }
int query_a_newer_form(ibv_qp*, ibv_ece* ece) {
  *ece = {.vendor_id = 1, .options = 1, .comp_mask = 1};
  return 0;
}

class TransportEce : public test::TransportPair {
 protected:
  static void SetUpTestSuite() {
    setenv("NORIA_SOFT_DEVICES", "name=can7,ece=0x7;name=can5,ece=0x5;name=cannot", 1);
  }
  // What the ends of a connection from one device to the other say of it.
  void expect(const std::string& from, const std::string& to, const std::string& agreed) {
    const auto over_device = [&](const std::string& device) {
      Params params = params_;
      params.hca = "=" + device;
      return test::make_domain(verbs::make_provider(api_, "the same", "", params), params);
    };
    a_ = over_device(from);
    b_ = over_device(to);
    ASSERT_NE(a_, nullptr);
    ASSERT_NE(b_, nullptr);
    test::Connected link = connect();
    ASSERT_NE(link.recv, nullptr);
    for (const std::string& text : {link.send->describe(), link.recv->describe()})
      EXPECT_EQ(text.substr(std::min(text.size(), text.find(", ECE "))), agreed) << text;

    const Region source = allocate(*a_, 4096), target = allocate(*b_, 4096);
    Request* const received = post_receive(link, target, 0, 4096);
    Request* sent = nullptr;
    ASSERT_TRUE(poll_until([&] {
      if (sent == nullptr) sent = link.send->try_send(source, 0, 4096);
      return sent != nullptr && sent->is_done() && received->is_done();
    }));
    EXPECT_TRUE(received->status().is_ok());
    link.send->release(sent);
    link.recv->release(received);
  }
  void replace(void (*change)(Symbols&)) {
    Symbols symbols = provider_->api().symbols();
    change(symbols);
    api_ = verbs::Api::from_symbols(symbols);
  }
  void SetUp() override {
    test::TransportPair::SetUp();
    replace([](Symbols&) {});
  }
  void TearDown() override {
    a_.reset();
    b_.reset();
    EXPECT_EQ(api_->live_objects(), 0);
    test::TransportPair::TearDown();
  }

  std::shared_ptr<const verbs::Api> api_;
};

constexpr const char* kFive = ", ECE 0x5 of vendor 0x6e6f72";

TEST_F(TransportEce, Both_ends_have_what_both_devices_can) {
  expect("can7", "can5", kFive);
  expect("can5", "can7", kFive);
  expect("can7", "can7", ", ECE 0x7 of vendor 0x6e6f72");
}

TEST_F(TransportEce, A_device_without_it_connects_with_one_that_has_it) {
  expect("can7", "cannot", "");
  expect("cannot", "can7", "");
  expect("cannot", "cannot", "");
}

TEST_F(TransportEce, Is_left_out_where_it_is_switched_off) {
  params_.ece = false;
  expect("can7", "can7", "");
}

TEST_F(TransportEce, A_library_or_firmware_that_refuses_goes_on_without) {
  replace([](Symbols& symbols) { symbols.query_ece = nullptr, symbols.set_ece = nullptr; });
  expect("can7", "can5", "");
  replace([](Symbols& symbols) { symbols.query_ece = &refuse_to_query; });
  expect("can7", "can5", "");
  replace([](Symbols& symbols) { symbols.set_ece = &refuse_to_set; });
  expect("can7", "can5", "");
  replace([](Symbols& symbols) { symbols.query_ece = &query_a_newer_form; });
  expect("can7", "can5", "");
}

}  // namespace
}  // namespace noria::transport
