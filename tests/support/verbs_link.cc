#include "tests/support/verbs_link.hpp"

#include <poll.h>

namespace noria::test {

Link::Link(Post& post, const LinkSpec& link_spec)
    : spec(link_spec),
      channel(spec.sleeps ? hca.make_channel() : nullptr),
      cq(hca.make_cq(1024, channel.get())),
      qp(hca.make_qp(cq.get(), spec.qp)),
      buffer(hca.make_buffer(spec.bytes, spec.memory, spec.access)),
      wire(post.peer) {
  hca.connect(qp.get(), wire, spec.connect);
  remote = wire.exchange(Region{buffer->address(), buffer->rkey()});
}

void Link::reconnect() {
  ASSERT_EQ(to_state(qp.get(), IBV_QPS_RESET), 0);
  EXPECT_TRUE(is_empty(cq.get()));
  wire.meet();
  hca.connect(qp.get(), wire, spec.connect);
}

ibv_qp_state Link::state() const {
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  EXPECT_EQ(verbs().query_qp(qp.get(), &attr, IBV_QP_STATE, &init), 0);
  return attr.qp_state;
}

bool Link::has_event(int timeout_ms) const {
  pollfd p{.fd = channel->fd, .events = POLLIN, .revents = 0};
  return ::poll(&p, 1, timeout_ms) == 1;
}

void Link::take_event() const {
  ASSERT_TRUE(has_event(20000)) << "the sleeper was not woken";
  ibv_cq* which = nullptr;
  void* context = nullptr;
  ASSERT_EQ(verbs().get_cq_event(channel.get(), &which, &context), 0);
  EXPECT_EQ(which, cq.get());
  verbs().ack_cq_events(which, 1);
}

ibv_wc Link::sleep_for_completion() const {
  ibv_wc wc{};
  for (int turn = 0; turn < 1000; ++turn) {
    if (ibv_poll_cq(cq.get(), 1, &wc) == 1) return wc;
    EXPECT_EQ(ibv_req_notify_cq(cq.get(), 0), 0);
    if (ibv_poll_cq(cq.get(), 1, &wc) == 1) return wc;
    take_event();
    if (testing::Test::HasFailure()) break;
  }
  ADD_FAILURE() << "events came, completions did not";
  wc.status = IBV_WC_GENERAL_ERR;
  return wc;
}

}  // namespace noria::test
