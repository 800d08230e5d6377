#include "verbs/soft/tcp_stream.hpp"

#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <vector>

#include "tests/support/pattern.hpp"
#include "verbs/soft/tcp_socket.hpp"

namespace noria::soft {
namespace {

using Event = TcpStream::Event;
using Offer = TcpStream::Offer;

// Two streams, or one and a stranger: any stream socket will do.
struct TcpStreamTest : testing::Test {
  TcpStreamTest() {
    int fds[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    ours = std::make_unique<TcpStream>(Fd(fds[0]));
    their_fd = Fd(fds[1]);
  }

  void say(const void* bytes, size_t count) const {
    ASSERT_EQ(::send(their_fd.get(), bytes, count, MSG_NOSIGNAL), static_cast<ssize_t>(count));
  }
  TcpStream& theirs() {
    if (other == nullptr) other = std::make_unique<TcpStream>(std::move(their_fd));
    return *other;
  }
  // As two processes that know each other.
  void admit_both() {
    ours->admit();
    theirs().admit();
  }

  std::unique_ptr<TcpStream> ours, other;
  Fd their_fd;
  TcpStream::Frame frame{};
};

TEST_F(TcpStreamTest, A_frame_arrives_with_its_body_and_its_payload) {
  admit_both();
  std::vector<uint8_t> bytes(100);
  test::paint(bytes.data(), bytes.size(), 1);
  const iovec pieces[] = {{bytes.data(), 60}, {bytes.data() + 60, 40}};
  ASSERT_TRUE(theirs().send(tcp::Answer{.number = 7}, pieces));
  ASSERT_EQ(ours->receive(&frame), Event::frame);
  tcp::Answer answer;
  ASSERT_TRUE(frame.is(&answer));
  EXPECT_EQ(answer.number, 7U);
  ASSERT_EQ(frame.header.payload_bytes, 100U);
  EXPECT_EQ(test::first_wrong(frame.payload, 100, 1), 100U);
  tcp::Watch watch;
  EXPECT_FALSE(frame.is(&watch)) << "of another kind";
  EXPECT_EQ(ours->receive(&frame), Event::nothing);
}

TEST_F(TcpStreamTest, A_frame_that_comes_byte_by_byte_is_one_when_it_is_whole) {
  ours->admit();
  const struct {
    tcp::Header header{tcp::Kind::watch, sizeof(tcp::Watch), 0};
    tcp::Watch body{.qpn = 5};
  } sent;
  const auto* bytes = reinterpret_cast<const uint8_t*>(&sent);
  for (size_t i = 0; i < sizeof sent; ++i) {
    EXPECT_EQ(ours->receive(&frame), Event::nothing);
    say(bytes + i, 1);
  }
  ASSERT_EQ(ours->receive(&frame), Event::frame);
  tcp::Watch watch;
  ASSERT_TRUE(frame.is(&watch));
  EXPECT_EQ(watch.qpn, 5U);
}

TEST_F(TcpStreamTest, What_the_kernel_does_not_take_is_kept_in_order_and_goes_later) {
  admit_both();
  std::vector<uint8_t> bytes(tcp::kMaxPayload);
  uint64_t sent = 0, received = 0;
  // Until there is enough that nobody has read.
  while (theirs().can_send()) {
    test::paint(bytes.data(), bytes.size(), sent);
    const iovec piece{bytes.data(), bytes.size()};
    ASSERT_TRUE(theirs().send(tcp::Answer{.number = sent++}, {&piece, 1}));
  }
  EXPECT_TRUE(theirs().has_unsent());
  while (received < sent) {
    const Event event = ours->receive(&frame);
    if (event == Event::nothing) {
      ASSERT_TRUE(theirs().flush());
      continue;
    }
    ASSERT_EQ(event, Event::frame);
    tcp::Answer answer;
    ASSERT_TRUE(frame.is(&answer));
    EXPECT_EQ(answer.number, received);
    EXPECT_EQ(test::first_wrong(frame.payload, tcp::kMaxPayload, received), tcp::kMaxPayload);
    ++received;
  }
  EXPECT_TRUE(theirs().can_send());
}

TEST_F(TcpStreamTest, Who_takes_nothing_for_too_long_breaks_the_stream_and_no_more_is_kept) {
  admit_both();
  int frames = 0;
  while (frames < 1'000'000 && theirs().send(tcp::Watch{})) ++frames;
  EXPECT_LT(frames, 1'000'000) << "what is unsent has no bound";
  EXPECT_FALSE(theirs().send(tcp::Watch{}));
  EXPECT_FALSE(theirs().flush());
}

TEST_F(TcpStreamTest, Who_offers_payload_while_enough_is_unsent_is_sent_away_and_breaks_nothing) {
  admit_both();
  std::vector<uint8_t> bytes(tcp::kMaxPayload);
  const iovec piece{bytes.data(), bytes.size()};
  uint64_t taken = 0;
  while (theirs().offer(tcp::Answer{.number = taken}, {&piece, 1}) == Offer::taken) ++taken;
  // As many as may come at once, none of whom has seen can_send() change.
  for (int i = 0; i < 64; ++i)
    EXPECT_EQ(theirs().offer(tcp::Answer{.number = taken}, {&piece, 1}), Offer::not_yet);
  // Expect: what was taken arrives, and nothing else.
  for (uint64_t received = 0; received < taken;) {
    const Event event = ours->receive(&frame);
    ASSERT_NE(event, Event::broken);
    if (event == Event::frame)
      ++received;
    else
      ASSERT_TRUE(theirs().flush());
  }
  EXPECT_EQ(ours->receive(&frame), Event::nothing);
  EXPECT_EQ(theirs().offer(tcp::Answer{}, {&piece, 1}), Offer::taken);
}

TEST_F(TcpStreamTest, A_broken_stream_takes_what_is_offered_and_loses_it) {
  theirs().close();
  EXPECT_EQ(theirs().offer(tcp::Answer{}, {}), Offer::taken);
}

// A payload of which a thread of the application has taken the pages behind the first `kept` bytes.
class HalfGone {
 public:
  explicit HalfGone(size_t kept)
      : base_(::mmap(nullptr, tcp::kMaxPayload, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                     -1, 0)),
        piece{base_, tcp::kMaxPayload} {
    EXPECT_EQ(::mprotect(static_cast<uint8_t*>(base_) + kept, tcp::kMaxPayload - kept, PROT_NONE),
              0);
  }
  ~HalfGone() { ::munmap(base_, tcp::kMaxPayload); }
  HalfGone(const HalfGone&) = delete;
  HalfGone& operator=(const HalfGone&) = delete;

 private:
  void* const base_;

 public:
  const iovec piece;
};

TEST_F(TcpStreamTest, A_payload_that_cannot_be_read_is_told_and_leaves_no_trace) {
  admit_both();
  std::vector<uint8_t> bytes(tcp::kMaxPayload);
  const iovec piece{bytes.data(), bytes.size()};
  uint64_t taken = 0;
  // The kernel is to read it, as it has room; then we are, as it has none.
  for (const size_t kept : {size_t{0}, size_t{64} << 10}) {
    const HalfGone gone(kept);
    EXPECT_EQ(theirs().offer(tcp::Answer{.number = 77}, {&gone.piece, 1}), Offer::unreadable);
    while (!theirs().has_unsent())
      ASSERT_EQ(theirs().offer(tcp::Answer{.number = taken++}, {&piece, 1}), Offer::taken);
    EXPECT_EQ(theirs().offer(tcp::Answer{.number = 77}, {&gone.piece, 1}), Offer::unreadable);
  }
  // Expect: what was sent before and is sent behind it arrives, and nothing else.
  ASSERT_TRUE(theirs().send(tcp::Answer{.number = taken++}));
  for (uint64_t received = 0; received < taken;) {
    const Event event = ours->receive(&frame);
    ASSERT_NE(event, Event::broken);
    if (event == Event::nothing) {
      ASSERT_TRUE(theirs().flush());
      continue;
    }
    tcp::Answer answer;
    ASSERT_TRUE(frame.is(&answer));
    EXPECT_EQ(answer.number, received++);
  }
}

TEST_F(TcpStreamTest, A_payload_that_vanishes_under_way_breaks_the_stream) {
  admit_both();
  const HalfGone gone(tcp::kMaxPayload / 2);
  EXPECT_EQ(theirs().offer(tcp::Answer{}, {&gone.piece, 1}), Offer::taken);
  EXPECT_FALSE(theirs().flush());
}

TEST_F(TcpStreamTest, The_other_sides_end_is_seen_after_all_that_it_sent) {
  admit_both();
  ASSERT_TRUE(theirs().send(tcp::Watch{.qpn = 1}));
  theirs().close();
  EXPECT_FALSE(theirs().send(tcp::Watch{})) << "nothing after its end";
  EXPECT_EQ(ours->receive(&frame), Event::frame);
  EXPECT_EQ(ours->receive(&frame), Event::broken);
}

TEST_F(TcpStreamTest, Sending_to_who_has_gone_is_told) {
  their_fd.reset();
  EXPECT_FALSE(ours->send(tcp::Hello{}));
  EXPECT_FALSE(ours->send(tcp::Hello{}));
}

TEST_F(TcpStreamTest, Before_a_hello_nothing_else_is_taken) {
  const tcp::Header large{tcp::Kind::request, sizeof(tcp::Request), 1};
  say(&large, sizeof large);
  EXPECT_EQ(ours->receive(&frame), Event::broken);
}

TEST_F(TcpStreamTest, Words_of_another_protocol_are_none_of_this_one) {
  say("GET / HTTP/1.1\r\n", 16);
  EXPECT_EQ(ours->receive(&frame), Event::broken);
}

TEST_F(TcpStreamTest, A_frame_longer_than_any_breaks_the_stream_also_behind_a_hello) {
  ours->admit();
  const tcp::Header too_long{tcp::Kind::answer, sizeof(tcp::Answer), tcp::kMaxPayload + 1};
  say(&too_long, sizeof too_long);
  EXPECT_EQ(ours->receive(&frame), Event::broken);
}

TEST_F(TcpStreamTest, A_body_longer_than_any_breaks_the_stream) {
  ours->admit();
  const tcp::Header too_long{tcp::Kind::answer, 129, 0};
  say(&too_long, sizeof too_long);
  EXPECT_EQ(ours->receive(&frame), Event::broken);
}

// A stopped process takes nothing in, while its kernel answers: that is no reason to end.
TEST(TcpSocket, A_connection_does_not_end_because_the_other_side_takes_nothing) {
  const Fd listener = listen_tcp(htonl(INADDR_LOOPBACK), 0);
  sockaddr_in name{};
  socklen_t bytes = sizeof name;
  ASSERT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&name), &bytes), 0);
  const Fd caller = call_tcp(name.sin_addr.s_addr, name.sin_addr.s_addr, ntohs(name.sin_port));
  const TcpCaller called = accept_tcp(listener.get());
  for (const int fd : {caller.get(), called.fd.get()}) {
    int ms = -1;
    bytes = sizeof ms;
    ASSERT_EQ(::getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, &bytes), 0);
    EXPECT_EQ(ms, 0);
    EXPECT_FALSE(is_silent(fd));
  }
}

}  // namespace
}  // namespace noria::soft
