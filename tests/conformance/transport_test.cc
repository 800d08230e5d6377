// The transport's promises over all rails that the provider has, both ends in one process. Each
// runs in every way of tests/conformance/transport.cmake.

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <thread>

#include "base/units.hpp"
#include "tests/support/transport_pair.hpp"
#include "verbs/transport/port.hpp"

namespace noria::transport {
namespace {

using test::Connected;
using test::first_wrong;
using test::paint;

constexpr std::byte kUntouched{0xee};

class TransportTest : public test::TransportPair {
 protected:
  // Sends one message and checks that it landed, all of it and nothing beside it.
  void carry(Connected& link, std::vector<std::byte>& source, const Region& from,
             std::vector<std::byte>& target, const Region& to, uint64_t bytes, uint64_t offered,
             uint64_t seed) {
    constexpr uint64_t kOffset = 64;
    std::fill(target.begin(), target.end(), kUntouched);
    paint(source.data() + kOffset, bytes, seed);
    Request* received = link.recv->try_recv(to, kOffset, offered);
    ASSERT_NE(received, nullptr);
    Request* sent = nullptr;
    ASSERT_TRUE(poll_until([&] {
      if (sent == nullptr) sent = link.send->try_send(from, kOffset, bytes);
      return sent != nullptr && sent->is_done() && received->is_done();
    })) << link.send->describe()
        << " / " << link.recv->describe();
    EXPECT_TRUE(sent->status().is_ok());
    EXPECT_TRUE(received->status().is_ok());
    EXPECT_EQ(received->bytes(), bytes);
    EXPECT_EQ(first_wrong(target.data() + kOffset, bytes, seed), bytes);
    const auto is_untouched = [](std::byte b) { return b == kUntouched; };
    EXPECT_TRUE(std::all_of(target.begin(), target.begin() + kOffset, is_untouched));
    EXPECT_TRUE(std::all_of(target.begin() + static_cast<ptrdiff_t>(kOffset + bytes), target.end(),
                            is_untouched));
    link.send->release(sent);
    link.recv->release(received);
  }
};

TEST_F(TransportTest, Carries_messages_of_any_size_into_place_and_touches_nothing_else) {
  Connected link = connect();
  ASSERT_NE(link.recv, nullptr);
  const uint64_t longest = test::long_message(*provider_);
  std::vector<std::byte> source(longest + 192), target(longest + 192);
  const Region from = over(*a_, source), to = over(*b_, target);
  uint64_t seed = 0;
  for (const uint64_t bytes :
       {uint64_t{0}, uint64_t{1}, uint64_t{7}, uint64_t{64}, uint64_t{127}, uint64_t{4097}, 64_KiB,
        128_KiB - 1, 128_KiB, 128_KiB + 129, 1_MiB + 3, longest / 4, longest})
    carry(link, source, from, target, to, bytes, bytes, ++seed);
}

TEST_F(TransportTest, Tells_the_true_length_of_a_message_shorter_than_its_receive) {
  Connected link = connect();
  ASSERT_NE(link.recv, nullptr);
  std::vector<std::byte> source(2_MiB), target(2_MiB);
  const Region from = over(*a_, source), to = over(*b_, target);
  carry(link, source, from, target, to, 0, 1_MiB, 1);
  carry(link, source, from, target, to, 1000, 1_MiB, 2);
  carry(link, source, from, target, to, 700001, 1_MiB, 3);
}

TEST_F(TransportTest, Refuses_a_message_longer_than_its_receive_and_carries_the_next) {
  Connected link = connect();
  ASSERT_NE(link.recv, nullptr);
  std::vector<std::byte> source(8192), target(8192);
  const Region from = over(*a_, source), to = over(*b_, target);
  Request* received = link.recv->try_recv(to, 0, 100);
  ASSERT_NE(received, nullptr);
  Request* sent = nullptr;
  ASSERT_TRUE(poll_until([&] { return (sent = link.send->try_send(from, 0, 101)) != nullptr; }));

  // Expect: the sender's request fails, the receive still waits.
  EXPECT_TRUE(sent->is_done());
  EXPECT_EQ(sent->status().code(), Code::bad_argument);
  EXPECT_TRUE(link.send->status().is_ok());
  link.send->release(sent);

  // The message that fits.  Expect: it takes that receive.
  paint(source.data(), 100, 9);
  sent = link.send->try_send(from, 0, 100);
  ASSERT_NE(sent, nullptr);
  ASSERT_TRUE(poll_until([&] { return sent->is_done() && received->is_done(); }));
  EXPECT_EQ(first_wrong(target.data(), 100, 9), 100u);
  link.send->release(sent);
  link.recv->release(received);
}

TEST_F(TransportTest, Refuses_ranges_outside_of_the_region) {
  Connected link = connect();
  ASSERT_NE(link.recv, nullptr);
  const Region from = allocate(*a_, 4096), to = allocate(*b_, 4096);
  for (const auto& [offset, bytes] :
       {std::pair<uint64_t, uint64_t>{0, 4097}, {4096, 1}, {UINT64_MAX, 1}, {1, UINT64_MAX}}) {
    Request* received = link.recv->try_recv(to, offset, bytes);
    ASSERT_NE(received, nullptr);
    EXPECT_TRUE(received->is_done());
    EXPECT_EQ(received->status().code(), Code::bad_argument);
    link.recv->release(received);
  }
  Request* received = link.recv->try_recv(to, 0, 4096);
  Request* sent = nullptr;
  ASSERT_TRUE(poll_until([&] { return (sent = link.send->try_send(from, 4090, 7)) != nullptr; }));
  EXPECT_EQ(sent->status().code(), Code::bad_argument);
  link.send->release(sent);
  ASSERT_NE(received, nullptr);
  EXPECT_FALSE(received->is_done());
}

TEST_F(TransportTest, Answers_not_yet_without_a_credit_and_with_a_full_window) {
  Connected link = connect();
  ASSERT_NE(link.recv, nullptr);
  const Region from = allocate(*a_, 4096), to = allocate(*b_, 4096);

  // Nothing was offered.  Expect: not yet, and no failure however often.
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(link.send->try_send(from, 0, 8), nullptr);
    a_->poll();
    b_->poll();
  }
  EXPECT_TRUE(link.send->status().is_ok());

  // A whole window of receives.  Expect: one more is not yet; all sends find a credit.
  std::array<Request*, kWindow> received{}, sent{};
  for (Request*& request : received) ASSERT_NE(request = post_receive(link, to, 0, 8), nullptr);
  EXPECT_EQ(link.recv->try_recv(to, 0, 8), nullptr);
  for (Request*& request : sent)
    ASSERT_TRUE(poll_until([&] { return (request = link.send->try_send(from, 0, 8)) != nullptr; }));
  EXPECT_EQ(link.send->try_send(from, 0, 8), nullptr);
  ASSERT_TRUE(poll_until([&] { return sent.back()->is_done() && received.back()->is_done(); }));

  // The first slot released.  Expect: the window moves by one.
  link.recv->release(received[0]);
  Request* next = link.recv->try_recv(to, 0, 8);
  ASSERT_NE(next, nullptr);
  EXPECT_EQ(link.recv->try_recv(to, 0, 8), nullptr);
}

TEST_F(TransportTest, Completes_in_order_on_each_side_whatever_the_sizes) {
  Connected link = connect();
  ASSERT_NE(link.recv, nullptr);
  constexpr uint64_t kSlot = 300000;
  std::vector<std::byte> source(kWindow * kSlot), target(kWindow * kSlot);
  const Region from = over(*a_, source), to = over(*b_, target);
  std::array<Request*, kWindow> received{}, sent{};
  const auto size_of = [](uint32_t i) { return i % 3 == 0 ? kSlot - i : uint64_t{i} * 5; };
  for (uint32_t i = 0; i < kWindow; ++i) {
    paint(source.data() + i * kSlot, size_of(i), i);
    ASSERT_NE(received[i] = post_receive(link, to, i * kSlot, kSlot), nullptr);
  }
  uint32_t next = 0, done = 0;
  const bool is_ordered = poll_until([&] {
    if (next < kWindow) {
      sent[next] = link.send->try_send(from, next * kSlot, size_of(next));
      if (sent[next] != nullptr) ++next;
    }
    while (done < kWindow && received[done]->is_done()) ++done;
    // Expect: nothing younger is done while an older one is not.
    for (uint32_t i = done; i < kWindow; ++i) EXPECT_FALSE(received[i]->is_done()) << i;
    return done == kWindow;
  });
  ASSERT_TRUE(is_ordered);
  for (uint32_t i = 0; i < kWindow; ++i) {
    EXPECT_EQ(received[i]->bytes(), size_of(i));
    EXPECT_EQ(first_wrong(target.data() + i * kSlot, size_of(i), i), size_of(i)) << i;
  }
}

TEST_F(TransportTest, Takes_the_bytes_of_an_inline_message_before_it_returns) {
  Connected link = connect();
  ASSERT_NE(link.recv, nullptr);
  const Region to = allocate(*b_, 64);
  std::array<std::byte, SendConnection::kInlineBytes> data;
  for (uint32_t bytes = 0; bytes <= data.size(); ++bytes) {
    Request* received = link.recv->try_recv(to, 0, 64);
    ASSERT_NE(received, nullptr);
    paint(data.data(), bytes, bytes);
    Request* sent = nullptr;
    ASSERT_TRUE(poll_until(
        [&] { return (sent = link.send->try_send_inline(data.data(), bytes)) != nullptr; }));
    data.fill(std::byte{});
    ASSERT_TRUE(poll_until([&] { return sent->is_done() && received->is_done(); }));
    EXPECT_EQ(received->bytes(), bytes);
    EXPECT_EQ(first_wrong(to.base(), bytes, bytes), bytes);
    link.send->release(sent);
    link.recv->release(received);
  }
}

// The bytes of line `number`, which say it at the end of each half.
std::array<std::byte, SendConnection::kLineBytes> line_of(uint32_t number) {
  std::array<std::byte, SendConnection::kLineBytes> line;
  paint(line.data(), line.size(), number);
  for (const size_t at : {28, 60}) std::memcpy(line.data() + at, &number, sizeof number);
  return line;
}

TEST_F(TransportTest, A_line_lands_whole_in_watched_memory_and_nothing_announces_it) {
  Connected link = connect({.sends_lines = true});
  ASSERT_NE(link.recv, nullptr);
  constexpr uint64_t kSlots = 5;
  auto memory = b_->allocate(kSlots * SendConnection::kLineBytes, Watched::yes);
  ASSERT_TRUE(memory.is_ok());
  const RemoteRegion remote = memory->remote();
  // Many laps of all that may be on its way at once.
  for (uint32_t number = 1; number < 500; ++number) {
    const uint64_t offset = number % kSlots * SendConnection::kLineBytes;
    auto line = line_of(number);
    ASSERT_TRUE(poll_until([&] { return link.send->try_write_line(remote, offset, line.data()); }));
    line.fill(kUntouched);  // taken already
    const auto word = [&](uint64_t at) {
      auto* const half = reinterpret_cast<uint32_t*>(memory->base() + offset + at);
      return std::atomic_ref(*half).load(std::memory_order_acquire);
    };
    ASSERT_TRUE(poll_until([&] { return word(28) == number && word(60) == number; }));
    const auto wanted = line_of(number);
    ASSERT_EQ(std::memcmp(memory->base() + offset, wanted.data(), wanted.size()), 0) << number;
  }
}

TEST_F(TransportTest, Takes_no_line_without_room_or_to_a_peer_that_is_gone) {
  Connected without = connect();
  Connected link = connect({.sends_lines = true});
  ASSERT_NE(link.recv, nullptr);
  auto memory = b_->allocate(SendConnection::kLineBytes, Watched::yes);
  ASSERT_TRUE(memory.is_ok());
  const auto line = line_of(1);
  EXPECT_FALSE(without.send->try_write_line(memory->remote(), 0, line.data()));

  // As many as it takes while nobody polls.  Expect: not yet, and room again with a poll.
  int taken = 0;
  while (taken < 1000 && link.send->try_write_line(memory->remote(), 0, line.data())) ++taken;
  EXPECT_LT(taken, 1000);
  EXPECT_TRUE(link.send->status().is_ok());
  EXPECT_TRUE(
      poll_until([&] { return link.send->try_write_line(memory->remote(), 0, line.data()); }));

  link.recv.reset();
  ASSERT_TRUE(poll_until([&] { return !link.send->status().is_ok(); }));
  EXPECT_FALSE(link.send->try_write_line(memory->remote(), 0, line.data()));
}

TEST_F(TransportTest, Reads_what_the_sender_exposed_without_its_help) {
  Connected link = connect();
  ASSERT_NE(link.recv, nullptr);
  constexpr uint64_t kBytes = 32_MiB + 77;
  std::vector<std::byte> source(kBytes), target(kBytes);
  paint(source.data(), kBytes, 5);
  const Region exposed = over(*a_, source), local = over(*b_, target);
  for (const uint64_t bytes :
       {uint64_t{0}, uint64_t{1}, uint64_t{4096}, 1_MiB, 1_MiB + 1, kBytes}) {
    std::fill(target.begin(), target.end(), kUntouched);
    Request* read = link.recv->try_read(local, 0, exposed.remote(), kBytes - bytes, bytes);
    ASSERT_NE(read, nullptr);
    const Nanoseconds deadline = now_ns() + test::kPatience;
    while (!read->is_done() && now_ns() < deadline) b_->poll();
    ASSERT_TRUE(read->is_done()) << link.recv->describe();
    EXPECT_TRUE(read->status().is_ok());
    EXPECT_EQ(read->bytes(), bytes);
    EXPECT_EQ(0, std::memcmp(target.data(), source.data() + (kBytes - bytes), bytes));
    link.recv->release(read);
  }
}

TEST_F(TransportTest, Reads_a_window_at_once_and_refuses_what_is_out_of_bounds) {
  Connected link = connect();
  ASSERT_NE(link.recv, nullptr);
  constexpr uint64_t kSlot = 65536 + 128;
  const Region exposed = allocate(*a_, kReadWindow * kSlot);
  const Region local = allocate(*b_, kReadWindow * kSlot);
  paint(exposed.base(), exposed.bytes(), 3);
  std::array<Request*, kReadWindow> reads{};
  for (uint32_t i = 0; i < kReadWindow; ++i)
    ASSERT_NE(reads[i] = link.recv->try_read(local, i * kSlot, exposed.remote(), i * kSlot, kSlot),
              nullptr);
  EXPECT_EQ(link.recv->try_read(local, 0, exposed.remote(), 0, 1), nullptr) << "the window is full";
  ASSERT_TRUE(poll_until([&] {
    return std::all_of(reads.begin(), reads.end(), [](Request* r) { return r->is_done(); });
  })) << link.recv->describe();
  EXPECT_EQ(first_wrong(local.base(), local.bytes(), 3), local.bytes());
  for (Request* read : reads) link.recv->release(read);

  // Outside of the local or of the remote region.  Expect: this call refused, the connection well.
  for (const auto& [local_offset, remote_offset, bytes] :
       {std::array<uint64_t, 3>{local.bytes(), 0, 1},
        {0, exposed.bytes(), 1},
        {0, UINT64_MAX, 2},
        {0, 1, exposed.bytes()}}) {
    Request* read =
        link.recv->try_read(local, local_offset, exposed.remote(), remote_offset, bytes);
    ASSERT_NE(read, nullptr);
    EXPECT_EQ(read->status().code(), Code::bad_argument);
    link.recv->release(read);
  }
  EXPECT_TRUE(link.recv->status().is_ok());
}

TEST_F(TransportTest, A_read_with_a_forged_key_fails_the_connection_and_says_so) {
  Connected link = connect({.peer_name = "rank 5"});
  ASSERT_NE(link.recv, nullptr);
  const Region exposed = allocate(*a_, 8192), local = allocate(*b_, 8192);
  RemoteRegion forged = exposed.remote();
  forged.bytes = 1_MiB;  // the device must know better
  Request* read = link.recv->try_read(local, 0, forged, 64_KiB, 64);
  ASSERT_NE(read, nullptr);
  ASSERT_TRUE(poll_until([&] { return read->is_done(); }));
  EXPECT_EQ(read->status().code(), Code::connection_lost);
  EXPECT_EQ(link.recv->status(), read->status());
  EXPECT_EQ(link.recv->try_recv(local, 0, 8), nullptr);
  for (const char* part : {"rank 5", "qp 0x", "remote access error", "did the peer free"})
    EXPECT_NE(link.recv->describe().find(part), std::string::npos) << link.recv->describe();

  // Expect: the other end is told the cause.
  ASSERT_TRUE(poll_until([&] { return !link.send->status().is_ok(); }));
  EXPECT_NE(link.send->describe().find("remote access error"), std::string::npos)
      << link.send->describe();
}

TEST_F(TransportTest, Many_connections_share_a_domain_and_do_not_meet) {
  std::vector<Connected> links;
  for (int i = 0; i < 6; ++i) {
    links.push_back(connect());
    ASSERT_NE(links.back().recv, nullptr);
  }
  const Region from = allocate(*a_, 64_KiB), to = allocate(*b_, 64_KiB * links.size());
  paint(from.base(), 64_KiB, 8);
  std::vector<Request*> received, sent;
  for (size_t i = 0; i < links.size(); ++i)
    received.push_back(links[i].recv->try_recv(to, i * 64_KiB, 64_KiB));
  for (size_t i = 0; i < links.size(); ++i) {
    Request* request = nullptr;
    ASSERT_TRUE(poll_until(
        [&] { return (request = links[i].send->try_send(from, i * 100, 1000 + i)) != nullptr; }));
    sent.push_back(request);
  }
  ASSERT_TRUE(poll_until([&] {
    return std::all_of(received.begin(), received.end(), [](Request* r) { return r->is_done(); });
  }));
  for (size_t i = 0; i < links.size(); ++i) {
    EXPECT_EQ(received[i]->bytes(), 1000 + i);
    EXPECT_EQ(0, std::memcmp(to.base() + i * 64_KiB, from.base() + i * 100, 1000 + i));
  }
}

TEST_F(TransportTest, What_was_sent_before_a_farewell_still_arrives) {
  Connected link = connect();
  ASSERT_NE(link.recv, nullptr);
  std::vector<std::byte> source(1_MiB), target(1_MiB);
  paint(source.data(), source.size(), 4);
  const Region from = over(*a_, source), to = over(*b_, target);
  Request* received = link.recv->try_recv(to, 0, 1_MiB);
  Request* later = link.recv->try_recv(to, 0, 8);
  ASSERT_NE(received, nullptr);
  ASSERT_NE(later, nullptr);
  Request* sent = nullptr;
  ASSERT_TRUE(poll_until([&] {
    if (sent == nullptr) sent = link.send->try_send(from, 0, 1_MiB);
    return sent != nullptr && sent->is_done();
  }));
  link.send.reset();

  // Expect: the message is whole; the receive that nothing will fill names the farewell.
  ASSERT_TRUE(poll_until([&] { return received->is_done() && later->is_done(); }));
  EXPECT_TRUE(received->status().is_ok()) << link.recv->describe();
  EXPECT_EQ(first_wrong(target.data(), 1_MiB, 4), 1_MiB);
  EXPECT_EQ(later->status().code(), Code::peer_lost);
  EXPECT_NE(link.recv->describe().find("the peer closed the connection"), std::string::npos)
      << link.recv->describe();
}

TEST_F(TransportTest, No_byte_lands_once_a_receiver_is_gone) {
  Connected link = connect();
  ASSERT_NE(link.recv, nullptr);
  std::vector<std::byte> source(1_MiB), target(1_MiB, kUntouched);
  const Region from = over(*a_, source), to = over(*b_, target);
  for (uint32_t i = 0; i < kWindow; ++i) ASSERT_NE(post_receive(link, to, 0, 1_MiB), nullptr);
  Request* sent = nullptr;
  ASSERT_TRUE(poll_until([&] { return (sent = link.send->try_send(from, 0, 8)) != nullptr; }));
  link.recv.reset();

  // The sender still holds credits and uses them.  Expect: nothing lands, the sender is told.
  std::fill(target.begin(), target.end(), kUntouched);
  for (uint32_t i = 1; i < kWindow; ++i) static_cast<void>(link.send->try_send(from, 0, 1_MiB));
  ASSERT_TRUE(poll_until([&] { return !link.send->status().is_ok(); }));
  EXPECT_TRUE(
      std::all_of(target.begin(), target.end(), [](std::byte b) { return b == kUntouched; }));
  EXPECT_EQ(link.send->status().code(), Code::peer_lost) << link.send->describe();
  EXPECT_EQ(link.send->try_send(from, 0, 8), nullptr);
}

TEST_F(TransportTest, Sleeps_until_the_deadline_and_not_past_a_wake_up) {
  Connected link = connect();
  ASSERT_NE(link.recv, nullptr);

  // Nothing comes.  Expect: the deadline ends it, well.
  const Nanoseconds deadline = now_ns() + 20_ms;
  ASSERT_TRUE(b_->arm_and_wait(deadline, -1).is_ok());
  EXPECT_GE(now_ns(), deadline);

  // A wake-up that came before.  Expect: no sleep, and the descriptor is not read.
  const int wake = eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC);
  ASSERT_GE(wake, 0);
  const Nanoseconds far = now_ns() + 20_s;
  ASSERT_TRUE(b_->arm_and_wait(far, wake).is_ok());
  EXPECT_LT(now_ns(), far);
  uint64_t count = 0;
  EXPECT_EQ(::read(wake, &count, sizeof count), static_cast<ssize_t>(sizeof count));
  ::close(wake);
}

TEST_F(TransportTest, Does_not_sleep_through_what_came_before_it_slept) {
  Connected link = connect();
  ASSERT_NE(link.recv, nullptr);
  const Region from = allocate(*a_, 64), to = allocate(*b_, 64);
  for (int round = 0; round < 200; ++round) {
    Request* received = link.recv->try_recv(to, 0, 64);
    ASSERT_NE(received, nullptr);
    Request* sent = nullptr;
    // Only the sender is polled; the message is there before the receiver lies down.
    const Nanoseconds far = now_ns() + 20_s;
    while (sent == nullptr && now_ns() < far) {
      a_->poll();
      sent = link.send->try_send(from, 0, 64);
    }
    ASSERT_NE(sent, nullptr);
    while (!received->is_done() && now_ns() < far) {
      ASSERT_TRUE(b_->arm_and_wait(far, -1).is_ok());
      b_->poll();
      a_->poll();
    }
    ASSERT_TRUE(received->is_done());
    ASSERT_TRUE(poll_until([&] { return sent->is_done(); }));
    link.send->release(sent);
    link.recv->release(received);
  }
}

TEST_F(TransportTest, Wakes_for_a_message_and_for_a_peer_that_goes) {
  Connected link = connect();
  ASSERT_NE(link.recv, nullptr);
  const Region from = allocate(*a_, 64), to = allocate(*b_, 64);
  Request* received = link.recv->try_recv(to, 0, 64);
  Request* never = link.recv->try_recv(to, 0, 64);
  ASSERT_NE(received, nullptr);
  ASSERT_NE(never, nullptr);
  std::thread sender([&] {
    Request* sent = nullptr;
    const Nanoseconds far = now_ns() + test::kPatience;
    while ((sent == nullptr || !sent->is_done()) && now_ns() < far) {
      if (sent == nullptr) sent = link.send->try_send(from, 0, 64);
      a_->poll();
    }
    link.send.reset();
  });
  const Nanoseconds far = now_ns() + test::kPatience;
  while (!never->is_done() && now_ns() < far) {
    EXPECT_TRUE(b_->arm_and_wait(far, -1).is_ok());
    b_->poll();
  }
  sender.join();
  ASSERT_TRUE(received->is_done());
  EXPECT_TRUE(received->status().is_ok());
  ASSERT_TRUE(never->is_done());
  EXPECT_EQ(never->status().code(), Code::peer_lost);
}

TEST_F(TransportTest, Counts_the_bytes_that_really_moved_where_the_provider_counts) {
  Connected link = connect();
  ASSERT_NE(link.recv, nullptr);
  std::vector<std::byte> source(4_MiB), target(4_MiB);
  const Region from = over(*a_, source), to = over(*b_, target);
  const VerbsStats before = b_->stats();
  carry(link, source, from, target, to, 3_MiB, 3_MiB, 1);
  const bool is_counted = b_->stats().received_bytes >= before.received_bytes + 3_MiB;
  EXPECT_EQ(is_counted, provider_->api().symbols().noria_stats != nullptr);
}

TEST_F(TransportTest, A_port_is_opened_once_for_all_who_use_it_and_closed_with_the_last) {
  OpenPorts ports(provider_);
  const verbs::PortInfo& info = provider_->ports().front();
  const int64_t before = provider_->api().live_objects();
  auto first = ports.open(info);
  auto second = ports.open(info);
  ASSERT_TRUE(first.is_ok() && second.is_ok());
  // Expect: one port, its device and its protection domain.
  EXPECT_EQ(*first, *second);
  EXPECT_EQ(provider_->api().live_objects(), before + 2);
  first->reset();
  EXPECT_EQ(provider_->api().live_objects(), before + 2);
  second->reset();
  EXPECT_EQ(provider_->api().live_objects(), before);
  // Expect: it can be opened again; a port that is not there cannot.
  EXPECT_TRUE(ports.open(info).is_ok());
  EXPECT_EQ(ports.open({.device = "nowhere"}).failure().code(), Code::device_lost);
}

TEST_F(TransportTest, A_domain_for_one_connection_refuses_to_sleep_and_ports_it_has_no_room_for) {
  auto port = Port::open(provider_, provider_->ports().front());
  ASSERT_TRUE(port.is_ok());
  const std::vector<std::shared_ptr<Port>> ports(kMaxRails + 1, *port);
  auto domain = Domain::create_for_one(std::span(ports).first(kMaxRails), params_);
  ASSERT_TRUE(domain.is_ok());
  EXPECT_EQ((*domain)->rails(), kMaxRails);
  EXPECT_EQ((*domain)->arm_and_wait(kNever, -1).code(), Code::unsupported);
  EXPECT_EQ(Domain::create_for_one(ports, params_).failure().code(), Code::bad_argument);
  EXPECT_EQ(Domain::create_for_one({}, params_).failure().code(), Code::bad_argument);
}

TEST_F(TransportTest, A_domain_for_one_connection_has_room_for_its_whole_window) {
  // Declared in the order in which they may go: the connection first. The port goes when the last
  // domain does.
  auto port = Port::open(provider_, provider_->ports().front());
  ASSERT_TRUE(port.is_ok());
  auto mine = Domain::create_for_one(std::span(&*port, 1), params_);
  auto theirs = Domain::create_for_one(std::span(&*port, 1), params_);
  ASSERT_TRUE(mine.is_ok() && theirs.is_ok());
  port->reset();
  EXPECT_EQ((*mine)->rails(), 1u);
  const ConnectOptions options{.qps = static_cast<uint32_t>(params_.qps_per_connection)};
  auto listener = Listener::open(**theirs, "127.0.0.1", options);
  ASSERT_TRUE(listener.is_ok());
  auto connector = Connector::start(**mine, (*listener)->handle(), options);
  ASSERT_TRUE(connector.is_ok());
  Connected made;
  ASSERT_TRUE(poll_until([&] {
    if (made.send == nullptr) made.send = std::move(*(*connector)->try_finish());
    if (made.recv == nullptr) made.recv = std::move(*(*listener)->try_accept());
    return made.send != nullptr && made.recv != nullptr;
  }));

  auto from = (*mine)->allocate(kWindow);
  auto to = (*theirs)->allocate(kWindow);
  ASSERT_TRUE(from.is_ok() && to.is_ok());
  std::vector<Request*> sent, received;
  ASSERT_TRUE(poll_until([&] {
    (*mine)->poll();
    (*theirs)->poll();
    if (received.size() < kWindow)
      if (Request* request = made.recv->try_recv(*to, received.size(), 1); request != nullptr)
        received.push_back(request);
    if (sent.size() < kWindow)
      if (Request* request = made.send->try_send(*from, sent.size(), 1); request != nullptr)
        sent.push_back(request);
    return sent.size() == kWindow && sent.back()->is_done() && received.back()->is_done();
  }));
  // Expect: the last of a full window arrived.
  EXPECT_TRUE(received.back()->status().is_ok()) << made.recv->describe();
  for (Request* request : sent) made.send->release(request);
  for (Request* request : received) made.recv->release(request);
}

TEST_F(TransportTest, Describes_its_devices) {
  EXPECT_NE(a_->describe().find(" port 1"), std::string::npos) << a_->describe();
  const auto& ports = provider_->ports();
  const auto active = static_cast<unsigned>(
      std::count_if(ports.begin(), ports.end(), [](const auto& port) { return port.is_active; }));
  EXPECT_EQ(a_->rails(), std::min(active, kMaxRails));
}

}  // namespace
}  // namespace noria::transport
