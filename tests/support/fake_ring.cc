#include "tests/support/fake_ring.hpp"

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>

namespace noria::transport {

class DomainState {};

Domain::Domain(std::unique_ptr<DomainState> state) : state_(std::move(state)) {}
Domain::~Domain() = default;
Result<std::unique_ptr<Domain>> Domain::create(const std::shared_ptr<const verbs::Provider>&,
                                               const Params&, unsigned) {
  return std::unique_ptr<Domain>(new Domain(std::make_unique<DomainState>()));
}

Status Domain::arm_and_wait(Nanoseconds deadline, int wake_fd) {
  test::FakeRing& ring = test::fake_ring();
  ring.sleeps.fetch_add(1);
  ring.device.prepare();
  if (!ring.has_news.load(std::memory_order_acquire)) {
    pollfd fds[2] = {{ring.device.fd(), POLLIN, 0}, {wake_fd, POLLIN, 0}};
    const bool is_for_ever = deadline == kNever || ring.sleeps_until_woken;
    const Nanoseconds left = is_for_ever ? 60_s : std::max<Nanoseconds>(deadline - now_ns(), 0);
    ::poll(fds, 2, static_cast<int>(left / 1'000'000));
  }
  ring.device.finish();
  return Status();
}

}  // namespace noria::transport

namespace noria::bucketing {

class Ring::State {};

Ring::Ring(std::unique_ptr<State> state) : state_(std::move(state)) {}
Ring::~Ring() = default;
Outcome<std::unique_ptr<Ring>> Ring::connect(transport::Domain&, ControlPlane&, const Params&,
                                             const std::string&, Nanoseconds) {
  return std::unique_ptr<Ring>(new Ring(std::make_unique<State>()));
}
Outcome<Ok> Ring::exchange_parts(Collective&, Nanoseconds) { return Ok{}; }

void Ring::start(Collective& collective) {
  test::FakeRing& ring = test::fake_ring();
  EXPECT_EQ(ring.current, nullptr);
  ring.current = &collective;
  ring.done_steps = 0;
}

Ring::Progress Ring::advance() {
  test::FakeRing& ring = test::fake_ring();
  ring.note_driver();
  ring.advances.fetch_add(1, std::memory_order_relaxed);
  EXPECT_FALSE(ring.is_closed);
  ring.has_news.exchange(false, std::memory_order_acq_rel);
  if (ring.must_fail) {
    ring.failure = {NORIA_E_NET, "the wire broke"};
    return Progress::failed;
  }
  if (ring.is_endless) return Progress::some;
  const Collective& collective = *ring.current;
  const uint64_t steps = collective.pending ? collective.segments.size() : test::FakeRing::kSteps;
  if (ring.done_steps < steps) {
    const auto* pending = collective.pending;
    if (pending != nullptr && pending[ring.done_steps].load(std::memory_order_acquire) != 0)
      return Progress::none;
    if (ring.granted.load(std::memory_order_acquire) <= 0) return Progress::none;
    ring.granted.fetch_sub(1, std::memory_order_acq_rel);
    if (++ring.done_steps < steps) return Progress::some;
  }
  ring.current = nullptr;
  return Progress::finished;
}

const Failure& Ring::failure() const { return test::fake_ring().failure; }
void Ring::close() { test::fake_ring().is_closed = true; }
std::string Ring::waiting_for() const { return "segment 3 of 12 from rank 7"; }
RingFetch Ring::fetch() const { return RingFetch::read; }

}  // namespace noria::bucketing

namespace noria::test {
namespace {
std::unique_ptr<FakeRing> the_ring;
}

FakeRing& fake_ring() { return *the_ring; }

std::unique_ptr<bucketing::Engine> make_fake_engine(Nanoseconds timeout,
                                                    bucketing::ControlPlane* control) {
  the_ring = std::make_unique<FakeRing>();
  auto domain = transport::Domain::create(nullptr, Params{});
  auto alone = bucketing::ControlPlane::join({});
  auto ring = bucketing::Ring::connect(**domain, **alone, Params{}, "", 0);
  auto engine =
      bucketing::Engine::create(std::move(*domain), std::move(*ring), control, timeout, nullptr);
  EXPECT_TRUE(engine.is_ok());
  return std::move(*engine);
}

}  // namespace noria::test
