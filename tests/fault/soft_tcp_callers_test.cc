// Who calls a process of the TCP copy path: strangers get nothing, a known process one place.
#include <optional>
#include <vector>

#include "tests/support/refused_accepts.hpp"
#include "tests/support/tcp_calls.hpp"

namespace noria::test {
namespace {

TEST(SoftTcpCallers, Two_hundred_strangers_are_dropped_and_keep_nobody_out) {
  run_pair([](Post& p) {
    const LinkSpec spec = link_spec();
    Link link(p, spec);
    const Address own = link.hca.address_of(link.qp.get());
    std::vector<Fd> strangers;
    const auto let_in = [&] {
      return strangers.emplace_back(call(own.gid, slot_of(own.qpn))).get();
    };
    // Half of them before the first request, so that peers call among them.
    for (int i = 0; i < 100; ++i) let_in();  // who say nothing
    expect_talk(link, p.side, 10);
    const size_t first_loud = strangers.size();
    for (int i = 0; i < 100; ++i) {
      const int fd = let_in();
      if (i % 4 == 0) {
        EXPECT_GT(::send(fd, "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL), 0);
      }
      if (i % 4 == 1) say(fd, tcp::Hello{.magic = 7, .slot = 9, .to_slot = slot_of(own.qpn)});
      if (i % 4 == 2) say(fd, tcp::Hello{.version = 99, .slot = 9, .to_slot = slot_of(own.qpn)});
      if (i % 4 == 3) say(fd, tcp::Hello{.slot = 9, .to_slot = slot_of(own.qpn) ^ 1});
    }
    for (size_t i = first_loud; i < strangers.size(); ++i)
      EXPECT_TRUE(is_closed_by_peer(strangers[i].get())) << i;
    expect_talk(link, p.side, 20);
    // Of the silent ones no more than some are kept at all.
    EXPECT_TRUE(is_closed_by_peer(strangers[0].get()));
  });
}

TEST(SoftTcpCallers, Who_greets_well_and_then_talks_nonsense_is_dropped) {
  run_pair([](Post& p) {
    Link link(p, link_spec());
    const Address own = link.hca.address_of(link.qp.get());
    const PlayedSlot played(slot_of(own.qpn));
    const uint32_t slot = slot_of(own.qpn), other = played.number();
    // A path names the process that this test plays.
    const auto spare = link.hca.make_qp(link.cq.get());
    link.hca.connect(spare.get(), {.qpn = other << 14, .psn = 0, .lid = own.lid, .gid = own.gid});
    const tcp::Life nobody{.qpn = own.qpn, .generation = 0x12345678};
    const auto greet = [&] {
      Fd fd = call(own.gid, slot);
      say(fd.get(), tcp::Hello{.slot = other, .to_slot = slot});
      return fd;
    };
    {
      // What an initiator may say, of a queue pair that is not its own: heard, and void.
      const Fd fd = greet();
      say(fd.get(), tcp::Watch{.qpn = own.qpn});
      say(fd.get(), tcp::Watch{.qpn = own.qpn ^ 1u << 14});
      say(fd.get(), tcp::Bind{.source = {other << 14, 1}, .target = nobody});
      say(fd.get(), tcp::Want{.target = nobody, .number = 1000});
      say(fd.get(), tcp::Fault{.target = nobody});
      say(fd.get(), tcp::Request{.target = nobody, .work = tcp::Work::read});
      say(fd.get(), tcp::Request{.target = {0xffffff, 1}, .work = tcp::Work::read});
      expect_talk(link, p.side, 10);
      // Then what only a target says.
      say(fd.get(), tcp::Answer{});
      EXPECT_TRUE(is_closed_by_peer(fd.get()));
    }
    const Fd no_payload = greet();  // though it says that there is some
    say(no_payload.get(), tcp::Request{.total = 100, .bytes = 100});
    EXPECT_TRUE(is_closed_by_peer(no_payload.get()));
    // Parts of no request: answers to the first two would hold what nobody asked for.
    const tcp::Request unsound[] = {
        {.bytes = 100, .work = tcp::Work::read},
        {.offset = 1, .total = 100, .bytes = 100, .work = tcp::Work::read},
        {.offset = ~uint64_t{0}, .total = 100, .bytes = 1, .work = tcp::Work::read},
        {.work = tcp::Work{0}},
        {.work = tcp::Work{6}},
        {.work = tcp::Work::send},  // which uses up no receive
        {.work = tcp::Work::read, .flags = tcp::kTakesReceive}};
    for (const tcp::Request& request : unsound) {
      const Fd fd = greet();
      say(fd.get(), request);
      EXPECT_TRUE(is_closed_by_peer(fd.get())) << &request - unsound;
    }
    const Fd twice = greet();
    say(twice.get(), tcp::Hello{.slot = other, .to_slot = slot});
    EXPECT_TRUE(is_closed_by_peer(twice.get()));
    const Fd payload = greet();  // where none belongs
    const tcp::Header header{tcp::Kind::watch, sizeof(tcp::Watch), 8};
    const char bytes[16] = {};
    EXPECT_GT(::send(payload.get(), &header, sizeof header, MSG_NOSIGNAL), 0);
    EXPECT_GT(::send(payload.get(), bytes, sizeof bytes, MSG_NOSIGNAL), 0);
    EXPECT_TRUE(is_closed_by_peer(payload.get()));
    expect_talk(link, p.side, 20);
  });
}

// A caller that says who it is, and whether it is answered.
struct Caller {
  Caller(const Lonely& end, uint32_t slot, uint64_t cookie)
      : fd(call(end.peer.gid, end.own_slot())) {
    say(fd.get(), tcp::Hello{.slot = slot, .to_slot = end.own_slot(), .cookie = {cookie, cookie}});
  }
  // One frame, of at most a Target's length; the connection's end is none.
  bool hears() const {
    char bytes[256];
    tcp::Header header{};
    pollfd p{fd.get(), POLLIN, 0};
    return ::poll(&p, 1, 20'000) == 1 &&
           ::recv(fd.get(), &header, sizeof header, MSG_WAITALL) == sizeof header &&
           ::recv(fd.get(), bytes, header.body_bytes, MSG_WAITALL) == header.body_bytes;
  }
  bool is_served(const Lonely& end) const {
    say(fd.get(), tcp::Watch{.qpn = end.qp->qp_num});
    return hears();
  }

  Fd fd;
};

TEST(SoftTcpCallers, Of_a_known_host_only_a_process_that_a_path_names_gets_a_place) {
  run_alone([](Post&) {
    const Lonely end;
    const uint32_t named = slot_of(end.peer.qpn);
    for (uint32_t slot = 1; slot <= 100; ++slot) {
      if (slot == named) continue;
      const Caller caller(end, slot, slot);
      EXPECT_TRUE(is_closed_by_peer(caller.fd.get())) << slot;
    }
    EXPECT_TRUE(Caller(end, named, 1).hears());
  });
}

TEST(SoftTcpCallers, A_process_has_one_place_however_often_it_calls) {
  run_alone([](Post&) {
    const Lonely end;
    const uint32_t slot = slot_of(end.peer.qpn);
    std::optional<Caller> first(std::in_place, end, slot, 1);
    ASSERT_TRUE(first->hears());
    // Expect: another process waits until the first one has ended.
    for (int i = 0; i < 50; ++i) {
      const Caller other(end, slot, 2);
      EXPECT_TRUE(is_closed_by_peer(other.fd.get())) << i;
    }
    EXPECT_TRUE(first->is_served(end));
    // Expect: one that calls again has lost what it had.
    std::optional<Caller> again(std::in_place, end, slot, 1);
    ASSERT_TRUE(again->hears());
    EXPECT_TRUE(is_closed_by_peer(first->fd.get()));
    EXPECT_TRUE(again->is_served(end));
    again.reset();
    EXPECT_TRUE(Caller(end, slot, 2).hears());
  });
}

TEST(SoftTcpCallers, Who_finds_no_memory_waits_wakes_nobody_meanwhile_and_is_let_in_then) {
  run_alone([](Post&) {
    const Lonely end;
    for (const int error : {ENOMEM, ENOBUFS}) {
      RefusedAccepts refused(error);
      const Caller caller(end, end.played.number(), 1);
      ::poll(nullptr, 0, 500);
      // Expect: tried again ten times a second, not as often as the thread can.
      EXPECT_GE(refused.count(), 1);
      EXPECT_LT(refused.count(), 30);
      refused.end();
      EXPECT_TRUE(caller.hears()) << error;
    }
  });
}

}  // namespace
}  // namespace noria::test
