// The control plane when something is wrong: ranks that do not come, strangers, deaths.
#include "bucketing/control.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "base/log.hpp"
#include "bucketing/bootstrap.hpp"
#include "bucketing/control_wire.hpp"
#include "bucketing/tcp.hpp"
#include "tests/support/cpu_time.hpp"
#include "tests/support/no_threads.hpp"
#include "tests/support/ranks.hpp"

namespace noria::bucketing {
namespace {

using test::contains;
using test::RankCrew;
using test::run_rank_threads;
using test::run_ranks;
using test::Wire;

constexpr Nanoseconds kPatience = 20_s;

Rendezvous make_rendezvous(int32_t size) {
  Params params;
  params.socket_ifname = "lo";
  params.socket_family = "AF_INET";
  auto id = make_unique_id(params);
  EXPECT_TRUE(id.is_ok());
  return *read_unique_id(*id, 0, size);
}

ControlPlane::Options options_for(const Rendezvous& rendezvous, int32_t rank,
                                  Nanoseconds patience = kPatience) {
  return {.rank = rank,
          .size = rendezvous.size,
          .root_host = rendezvous.host,
          .root_port = rendezvous.port,
          .token_low = rendezvous.token_low,
          .token_high = rendezvous.token_high,
          .deadline = now_ns() + patience};
}

// Rank 0 listens on the reserved port.
Outcome<std::unique_ptr<ControlPlane>> join(const Rendezvous& rendezvous, int32_t rank,
                                            Nanoseconds patience = kPatience) {
  return ControlPlane::join(options_for(rendezvous, rank, patience));
}

void wait_until_failed(const ControlPlane& control) {
  const Nanoseconds deadline = now_ns() + kPatience;
  while (!control.failed() && now_ns() < deadline) ::poll(nullptr, 0, 1);
  EXPECT_TRUE(control.failed());
}

// ---- joining ------------------------------------------------------------------------------------

TEST(ControlTest, Gathers_in_rank_order_again_and_again) {
  const Rendezvous rendezvous = make_rendezvous(4);
  run_rank_threads(4, [&](int32_t rank) {
    auto control = join(rendezvous, rank);
    ASSERT_TRUE(control.is_ok()) << control.failure().text;
    for (int round = 0; round < 200; ++round) {
      const std::string mine =
          std::to_string(rank * 1000 + round) + std::string(static_cast<size_t>(round) * 50, '.');
      auto all =
          (*control)->all_gather("round " + std::to_string(round), mine, now_ns() + kPatience);
      ASSERT_TRUE(all.is_ok()) << all.failure().text;
      ASSERT_EQ(all->size(), 4u);
      for (int32_t other = 0; other < 4; ++other)
        EXPECT_EQ((*all)[static_cast<size_t>(other)],
                  std::to_string(other * 1000 + round) +
                      std::string(static_cast<size_t>(round) * 50, '.'));
    }
    (*control)->leave(now_ns() + kPatience);
    // Expect: an end is no death.
    EXPECT_FALSE((*control)->failed()) << (*control)->failure().text;
  });
}

TEST(ControlTest, Rank_0_may_start_last) {
  const Rendezvous rendezvous = make_rendezvous(3);
  std::atomic<int> others{0};
  run_rank_threads(3, [&](int32_t rank) {
    if (rank == 0)  // the others have been refused at least once
      while (others < 2) ::poll(nullptr, 0, 1);
    ++others;
    if (rank == 0) ::poll(nullptr, 0, 50);
    auto control = join(rendezvous, rank);
    ASSERT_TRUE(control.is_ok()) << control.failure().text;
    (*control)->leave(now_ns() + kPatience);
  });
}

TEST(ControlTest, Ranks_meet_over_ipv6_and_by_name) {
  for (const char* host : {"::1", "localhost"}) {
    Rendezvous rendezvous = make_rendezvous(2);
    rendezvous.host = host;
    TcpAddress v6;
    ASSERT_TRUE(parse_numeric("::1", 0, &v6));
    if (!reserve_port(v6)) rendezvous.host = "localhost";  // a machine without IPv6
    run_rank_threads(2, [&](int32_t rank) {
      auto control = join(rendezvous, rank);
      ASSERT_TRUE(control.is_ok()) << control.failure().text;
      TcpAddress local;
      EXPECT_TRUE(parse_numeric((*control)->local_host(), 0, &local)) << (*control)->local_host();
      EXPECT_TRUE((*control)->all_gather("all here", "", now_ns() + kPatience).is_ok());
      (*control)->leave(now_ns() + kPatience);
    });
  }
}

TEST(ControlTest, Large_gathers_pass_and_too_large_ones_are_refused) {
  const Rendezvous rendezvous = make_rendezvous(2);
  run_rank_threads(2, [&](int32_t rank) {
    auto control = join(rendezvous, rank);
    ASSERT_TRUE(control.is_ok()) << control.failure().text;
    const std::string mine(7'000'000, static_cast<char>('a' + rank));
    auto all = (*control)->all_gather("large", mine, now_ns() + kPatience);
    ASSERT_TRUE(all.is_ok()) << all.failure().text;
    EXPECT_EQ((*all)[1], std::string(7'000'000, 'b'));
    const auto more =
        (*control)->all_gather("larger", std::string(9'000'000, 'x'), now_ns() + kPatience);
    EXPECT_EQ(more.failure().code, NORIA_E_ARG);
    EXPECT_TRUE(contains(more.failure().text, "'larger'")) << more.failure().text;
  });
}

TEST(ControlTest, One_rank_alone_may_fill_a_gather) {
  const Rendezvous rendezvous = make_rendezvous(3);
  run_rank_threads(3, [&](int32_t rank) {
    auto control = join(rendezvous, rank);
    ASSERT_TRUE(control.is_ok()) << control.failure().text;
    const size_t mine = rank == 0 ? 16'000'000 : 1;
    const auto all = (*control)->all_gather("order", std::string(mine, 'x'), now_ns() + kPatience);
    // Expect: the bound is that of all together, not of the largest times the ranks.
    ASSERT_TRUE(all.is_ok()) << all.failure().text;
    EXPECT_EQ((*all)[0].size(), 16'000'000u);
    EXPECT_EQ((*all)[2].size(), 1u);
    (*control)->leave(now_ns() + kPatience);
  });
}

TEST(ControlTest, One_rank_that_gives_more_than_a_message_holds_is_told_to_all) {
  for (const int32_t giver : {0, 1}) {
    const Rendezvous rendezvous = make_rendezvous(3);
    run_rank_threads(3, [&](int32_t rank) {
      auto control = join(rendezvous, rank);
      ASSERT_TRUE(control.is_ok()) << control.failure().text;
      const size_t mine = rank == giver ? 17'000'000 : 1;
      const auto all =
          (*control)->all_gather("order", std::string(mine, 'x'), now_ns() + kPatience);
      // Expect: nobody waits for the rank that could not come.
      EXPECT_EQ(all.failure().code, NORIA_E_ARG);
      EXPECT_TRUE(contains(all.failure().text, "'order': 17000000 bytes")) << all.failure().text;
    });
  }
}

TEST(ControlTest, Neighbours_pass_on_more_than_all_ranks_could_be_sent) {
  const Rendezvous rendezvous = make_rendezvous(3);
  run_rank_threads(3, [&](int32_t rank) {
    auto control = join(rendezvous, rank);
    ASSERT_TRUE(control.is_ok()) << control.failure().text;
    // 21 MB of all ranks together, past the bound of a message.
    const auto of = [](int32_t giver) { return std::string(7'000'000, static_cast<char>(giver)); };
    const auto left = (*control)->pass_right("rows", of(rank), now_ns() + kPatience);
    ASSERT_TRUE(left.is_ok()) << left.failure().text;
    EXPECT_TRUE(*left == of((rank + 2) % 3));
    EXPECT_TRUE((*control)->all_gather("all here", "", now_ns() + kPatience).is_ok());
    const auto more = (*control)->pass_right("rows", std::string(17 << 20, 'x'), now_ns());
    EXPECT_EQ(more.failure().code, NORIA_E_ARG);
    (*control)->leave(now_ns() + kPatience);
  });
}

TEST(ControlTest, What_neighbours_pass_on_has_the_same_size_on_all) {
  const Rendezvous rendezvous = make_rendezvous(3);
  run_rank_threads(3, [&](int32_t rank) {
    auto control = join(rendezvous, rank);
    ASSERT_TRUE(control.is_ok()) << control.failure().text;
    const auto left = (*control)->pass_right("rows", std::string(rank == 1 ? 160 : 80, 'x'),
                                             now_ns() + kPatience);
    ASSERT_FALSE(left.is_ok());
    EXPECT_EQ(left.failure().code, NORIA_E_MISMATCH);
    EXPECT_TRUE(contains(left.failure().text, "rank 1 told 160 bytes")) << left.failure().text;
  });
}

TEST(ControlTest, Missing_ranks_are_named_on_every_rank_that_came) {
  const Rendezvous rendezvous = make_rendezvous(5);
  run_rank_threads(5, [&](int32_t rank) {
    if (rank == 2 || rank == 3) return;
    auto control = join(rendezvous, rank, rank == 0 ? 400_ms : kPatience);
    ASSERT_FALSE(control.is_ok());
    EXPECT_EQ(control.failure().code, NORIA_E_MISSING);
    EXPECT_TRUE(contains(control.failure().text, "ranks 2, 3 of 5 did not join within 0."))
        << control.failure().text;
  });
}

TEST(ControlTest, The_first_deadline_counts_whosever_it_is) {
  const Rendezvous rendezvous = make_rendezvous(3);
  run_rank_threads(3, [&](int32_t rank) {
    if (rank == 2) return;
    auto control = join(rendezvous, rank, rank == 1 ? 300_ms : kPatience);
    ASSERT_FALSE(control.is_ok());
    EXPECT_EQ(control.failure().code, NORIA_E_MISSING);
    EXPECT_TRUE(contains(control.failure().text, "rank 2 of 3 did not join"))
        << control.failure().text;
  });
}

TEST(ControlTest, A_missing_rank_0_is_named_with_its_address) {
  const Rendezvous rendezvous = make_rendezvous(2);
  auto control = join(rendezvous, 1, 200_ms);
  ASSERT_FALSE(control.is_ok());
  EXPECT_EQ(control.failure().code, NORIA_E_MISSING);
  EXPECT_TRUE(contains(control.failure().text, "rank 0 did not join within 0.2 s"));
  EXPECT_TRUE(contains(control.failure().text, std::to_string(rendezvous.port)));
}

TEST(ControlTest, Another_size_is_refused_with_both_values_on_both_sides) {
  const Rendezvous rendezvous = make_rendezvous(2);
  run_rank_threads(2, [&](int32_t rank) {
    Rendezvous mine = rendezvous;
    if (rank == 1) mine.size = 4;
    auto control = join(mine, rank);
    ASSERT_FALSE(control.is_ok());
    EXPECT_EQ(control.failure().code, NORIA_E_MISMATCH);
    EXPECT_TRUE(contains(control.failure().text, "one of 4 ranks"));
    EXPECT_TRUE(contains(control.failure().text, "one of 2"));
  });
}

TEST(ControlTest, A_rank_that_comes_twice_is_refused_everywhere) {
  const Rendezvous rendezvous = make_rendezvous(3);
  run_rank_threads(3, [&](int32_t thread) {
    auto control = join(rendezvous, thread == 2 ? 1 : thread);
    ASSERT_FALSE(control.is_ok());
    EXPECT_EQ(control.failure().code, NORIA_E_MISMATCH);
    EXPECT_TRUE(contains(control.failure().text, "two processes were started as rank 1 of 3"))
        << control.failure().text;
  });
}

// ---- strangers ----------------------------------------------------------------------------------

Fd call(const Rendezvous& rendezvous, const std::string& bytes) {
  TcpAddress address;
  EXPECT_TRUE(parse_numeric(rendezvous.host, rendezvous.port, &address));
  Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const Nanoseconds deadline = now_ns() + kPatience;
  while (::connect(socket.get(), address.raw(), address.length) != 0 && now_ns() < deadline) {
    socket = Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ::poll(nullptr, 0, 1);
  }
  EXPECT_EQ(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
  return socket;
}

std::string hello_bytes(const Hello& hello) {
  return {reinterpret_cast<const char*>(&hello), sizeof hello};
}

void expect_strangers_do_no_harm(const std::vector<std::string>& greetings) {
  const Rendezvous rendezvous = make_rendezvous(3);
  std::vector<Fd> strangers;
  std::atomic<bool> have_called{false};
  run_rank_threads(3, [&](int32_t rank) {
    if (rank == 1) {  // once rank 0 listens, strangers come before the ranks
      for (const std::string& greeting : greetings) strangers.push_back(call(rendezvous, greeting));
      have_called = true;
    }
    while (rank == 2 && !have_called) ::poll(nullptr, 0, 1);
    auto control = join(rendezvous, rank);
    ASSERT_TRUE(control.is_ok()) << control.failure().text;
    EXPECT_TRUE((*control)->all_gather("all here", "", now_ns() + kPatience).is_ok());
    (*control)->leave(now_ns() + kPatience);
  });
}

TEST(StrangerTest, Silence_does_no_harm) { expect_strangers_do_no_harm({"", "", ""}); }
TEST(StrangerTest, Half_a_hello_does_no_harm) {
  expect_strangers_do_no_harm({hello_bytes(Hello{}).substr(0, 20)});
}
TEST(StrangerTest, Garbage_does_no_harm) {
  expect_strangers_do_no_harm({"GET / HTTP/1.1\r\nHost: x\r\n\r\n", std::string(100'000, '\xff')});
}
TEST(StrangerTest, A_wrong_token_does_no_harm) {
  expect_strangers_do_no_harm(
      {hello_bytes({.token_low = 1, .token_high = 2, .rank = 1, .size = 3})});
}
TEST(StrangerTest, A_hundred_connections_do_no_harm) {
  expect_strangers_do_no_harm(std::vector<std::string>(100, "x"));
}
TEST(StrangerTest, More_connections_than_are_kept_do_no_harm) {
  expect_strangers_do_no_harm(std::vector<std::string>(300, ""));
}

TEST(StrangerTest, A_rank_of_another_job_is_told_that_it_is_not_of_this_one) {
  const Rendezvous rendezvous = make_rendezvous(2);
  run_rank_threads(2, [&](int32_t rank) {
    Rendezvous mine = rendezvous;
    if (rank == 1) mine.token_low ^= 1;
    auto control = join(mine, rank, rank == 0 ? 6500_ms : kPatience);
    ASSERT_FALSE(control.is_ok());
    EXPECT_EQ(control.failure().code, rank == 0 ? NORIA_E_MISSING : NORIA_E_PEER);
    EXPECT_TRUE(contains(control.failure().text, rank == 0 ? "rank 1 of 2" : "not of this job"));
  });
}

// As where a port of another service was given for rank 0's.
TEST(StrangerTest, What_is_no_rank_0_is_told_with_its_address_and_that_it_is_none) {
  const std::array<std::string, 2> greetings{"SSH-2.0-server\r\n",
                                             encode_frame(FrameType::welcome)};
  run_rank_threads(2, [&](int32_t which) {
    const std::string& greeting = greetings[static_cast<size_t>(which)];
    TcpAddress address;
    ASSERT_TRUE(parse_numeric("127.0.0.1", 0, &address));
    const auto listener = reserve_port(address);
    ASSERT_TRUE(listener.is_ok()) << listener.failure();
    ASSERT_EQ(::listen(listener->get(), 8), 0);
    Rendezvous rendezvous = make_rendezvous(2);
    drop_reservation(rendezvous);
    rendezvous.port = local_address(*listener).port();
    std::atomic<bool> is_over{false};
    std::thread server([&] {
      std::vector<Fd> callers;
      while (!is_over) {
        pollfd called{listener->get(), POLLIN, 0};
        if (::poll(&called, 1, 10) <= 0) continue;
        callers.emplace_back(::accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC));
        ::send(callers.back().get(), greeting.data(), greeting.size(), MSG_NOSIGNAL);
      }
    });
    const auto control = join(rendezvous, 1);
    is_over = true;
    server.join();
    // Expect:
    ASSERT_FALSE(control.is_ok());
    EXPECT_EQ(control.failure().code, NORIA_E_PEER);
    EXPECT_TRUE(contains(control.failure().text,
                         "what listens at 127.0.0.1:" + std::to_string(rendezvous.port)))
        << control.failure().text;
    EXPECT_TRUE(contains(control.failure().text, "it speaks another protocol"))
        << control.failure().text;
  });
}

// A caller of this job that cannot be one of its ranks. Expect: both sides are told the same.
void expect_refused(const std::function<void(Hello*)>& change, const std::string& words) {
  const Rendezvous rendezvous = make_rendezvous(2);
  run_rank_threads(2, [&](int32_t rank) {
    if (rank == 0) {
      const auto control = join(rendezvous, rank);
      ASSERT_FALSE(control.is_ok());
      EXPECT_EQ(control.failure().code, NORIA_E_MISMATCH);
      EXPECT_TRUE(contains(control.failure().text, words)) << control.failure().text;
      return;
    }
    Hello hello{.token_low = rendezvous.token_low,
                .token_high = rendezvous.token_high,
                .rank = 1,
                .size = 2};
    change(&hello);
    const Fd socket = call(rendezvous, hello_bytes(hello));
    std::string heard;
    char bytes[4096];
    for (ssize_t got = 1; got > 0 && !contains(heard, words);) {
      pollfd told{socket.get(), POLLIN, 0};
      ASSERT_EQ(::poll(&told, 1, 20'000), 1);
      got = ::recv(socket.get(), bytes, sizeof bytes, 0);
      if (got > 0) heard.append(bytes, static_cast<size_t>(got));
    }
    EXPECT_TRUE(contains(heard, words)) << heard;
  });
}

TEST(StrangerTest, A_rank_of_another_version_is_refused_with_both_values) {
  expect_refused([](Hello* hello) { ++hello->version; },
                 "rank 1 speaks control version " + std::to_string(kControlVersion + 1) +
                     ", rank 0 speaks " + std::to_string(kControlVersion));
}
TEST(StrangerTest, A_rank_that_there_is_not_is_refused) {
  for (const int32_t rank : {-1, 0, 2})
    expect_refused(
        [rank](Hello* hello) { hello->rank = rank; },
        "rank " + std::to_string(rank) + " called rank 0, which expects the ranks 1 to 1");
}

// Rank 1 joins, sends `then`, and does `end` to its socket. Expect: rank 0 says `words` of it.
void expect_member_is_named(const std::string& then, const std::string& words,
                            const std::function<void(const Fd&)>& end) {
  const Rendezvous rendezvous = make_rendezvous(2);
  run_rank_threads(2, [&](int32_t rank) {
    if (rank == 0) {
      auto control = join(rendezvous, rank);
      ASSERT_TRUE(control.is_ok()) << control.failure().text;
      wait_until_failed(**control);
      EXPECT_EQ((*control)->failure().code, NORIA_E_PEER);
      EXPECT_TRUE(contains((*control)->failure().text, words)) << (*control)->failure().text;
      return;
    }
    const Fd socket = call(rendezvous, hello_bytes({.token_low = rendezvous.token_low,
                                                    .token_high = rendezvous.token_high,
                                                    .rank = 1,
                                                    .size = 2}) +
                                           then);
    end(socket);
  });
}

void wait_until_hung_up(const Fd& socket) {
  char bytes[256];
  while (::recv(socket.get(), bytes, sizeof bytes, 0) > 0) {
  }
}

void expect_nonsense_is_named(const std::string& then) {
  expect_member_is_named(then, "rank 1 sent a control message", &wait_until_hung_up);
}

TEST(StrangerTest, A_member_that_sends_garbage_is_named) {
  expect_nonsense_is_named(std::string(64, '\x7f'));
}

TEST(StrangerTest, A_connection_that_breaks_is_named_with_the_cause) {
  // Rank 0's answer is there, so that it has counted rank 1 in.
  expect_member_is_named(
      "", "rank 1 died (its control connection broke: Connection reset by peer)",
      [](const Fd& socket) {
        char byte = 0;
        ASSERT_GT(::recv(socket.get(), &byte, 1, MSG_PEEK), 0);
        const linger at_once{.l_onoff = 1, .l_linger = 0};
        ASSERT_EQ(::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
      });
}

TEST(StrangerTest, A_member_whose_failure_is_none_is_named) {
  for (const int32_t code : {0, 1, NORIA_E_INTERNAL - 1}) {
    PayloadWriter payload;
    payload.put_i32(code);
    payload.put_text("all is well");
    expect_nonsense_is_named(encode_frame(FrameType::failure, payload.bytes()));
  }
}

TEST(StrangerTest, A_member_that_answers_garbage_or_speaks_as_rank_0_is_named) {
  expect_nonsense_is_named(encode_frame(FrameType::answer, "\x7f\x7f\x7f\x7f"));
  for (const FrameType type : {FrameType::question, FrameType::told})
    expect_nonsense_is_named(encode_frame(type));
}

// ---- failures that fan out ----------------------------------------------------------------------

TEST(ControlTest, All_ranks_say_the_same_however_many_announce_at_once) {
  const Rendezvous rendezvous = make_rendezvous(4);
  std::vector<std::string> said(4);
  run_rank_threads(4, [&](int32_t rank) {
    auto control = join(rendezvous, rank);
    ASSERT_TRUE(control.is_ok()) << control.failure().text;
    const Failure won = (*control)->settle({NORIA_E_NET, "seen by rank " + std::to_string(rank)});
    EXPECT_EQ(won.code, NORIA_E_NET);
    said[static_cast<size_t>(rank)] = won.text;
  });
  for (const std::string& text : said) EXPECT_EQ(text, said[0]);
}

TEST(ControlTest, A_time_out_says_on_all_ranks_what_each_rank_owes) {
  constexpr int32_t kSize = 7;
  for (const int32_t announcer : {0, 3}) {
    const Rendezvous rendezvous = make_rendezvous(kSize);
    std::vector<std::string> said(kSize);
    run_rank_threads(kSize, [&](int32_t rank) {
      auto control = join(rendezvous, rank);
      ASSERT_TRUE(control.is_ok()) << control.failure().text;
      (*control)->on_question(
          [rank] { return rank == 3 ? std::string() : "owes " + std::to_string(rank); });
      ASSERT_TRUE((*control)->all_gather("ready", "", now_ns() + 20_s).is_ok());
      if (rank == announcer)
        static_cast<void>((*control)->settle({NORIA_E_TIMEOUT, "nothing moved"}));
      wait_until_failed(**control);
      const Failure won = (*control)->failure();
      EXPECT_EQ(won.code, NORIA_E_TIMEOUT);
      said[static_cast<size_t>(rank)] = won.text;
      (*control)->on_question(nullptr);
    });
    for (const std::string& text : said)
      EXPECT_EQ(text,
                "nothing moved; rank 0 owes 0; rank 1 owes 1; rank 2 owes 2; rank 4 owes 4; and 2 "
                "more ranks");
  }
}

// What this process logged, a line after the other.
std::atomic<int> warnings{0};
std::string last_warning;  // published by warnings

// What rank 1's question to all brings while rank 0 is stopped, and nothing more when it goes on.
TEST(ControlTest, A_rank_0_that_tells_no_answers_is_named_once_by_who_asked) {
  const Rendezvous mine = make_rendezvous(2);
  RankCrew crew(2, [&](int32_t rank, Wire& parent) {
    if (rank != 0) drop_reservation(mine);
    set_log_sink([](LogLevel, const char* text) {
      last_warning = text;
      warnings.fetch_add(1, std::memory_order_release);
    });
    auto control = join(mine, rank);
    ASSERT_TRUE(control.is_ok()) << control.failure().text;
    parent.meet();
    if (rank == 1) {
      (*control)->ask_around("a barrier stands still");
      const Nanoseconds deadline = now_ns() + kPatience;
      while (warnings.load(std::memory_order_acquire) == 0 && now_ns() < deadline)
        ::poll(nullptr, 0, 1);
      EXPECT_EQ(last_warning,
                "rank 1: a barrier stands still; rank 0 did not answer: is its process stopped?");
      parent.send(uint8_t{1});
    }
    // The first ends after rank 0's question came, the third after its late news.
    for (int i = 0; i < 3; ++i)
      ASSERT_TRUE((*control)->all_gather("after", "", now_ns() + kPatience).is_ok());
    EXPECT_EQ(warnings.load(std::memory_order_acquire), rank);
    (*control)->leave(now_ns() + kPatience);
  });
  crew.wire(0).meet();
  crew.kill(0, SIGSTOP);
  crew.wire(1).meet();
  crew.wire(1).recv<uint8_t>();
  crew.kill(0, SIGCONT);
  crew.expect_success();
}

TEST(ControlTest, A_cause_wins_over_its_consequence_that_was_told_first) {
  for (const int32_t neighbour : {0, 1}) {  // whose lost connection is the consequence
    const Rendezvous mine = make_rendezvous(4);
    run_rank_threads(4, [&](int32_t rank) {
      auto control = join(mine, rank);
      ASSERT_TRUE(control.is_ok()) << control.failure().text;
      Failure won{NORIA_OK, {}};
      if (rank == neighbour) {
        won = (*control)->settle({NORIA_E_PEER, "rank 2 hung up"});
      } else {
        if (rank == 2) {
          ::poll(nullptr, 0, 20);
          (*control)->announce({NORIA_E_ABORTED, "enough"});
        }
        wait_until_failed(**control);
        won = (*control)->failure();
      }
      EXPECT_EQ(won.text, "enough");
    });
  }
}

TEST(ControlTest, An_abort_is_true_at_once_and_reaches_all) {
  const Rendezvous rendezvous = make_rendezvous(3);
  run_rank_threads(3, [&](int32_t rank) {
    auto control = join(rendezvous, rank);
    ASSERT_TRUE(control.is_ok()) << control.failure().text;
    std::atomic<bool> called{false};
    (*control)->on_failure([&] { called = true; });
    if (rank == 2) {
      (*control)->announce({NORIA_E_ABORTED, "enough"});
      EXPECT_TRUE((*control)->failed());
    }
    wait_until_failed(**control);
    EXPECT_EQ((*control)->failure().code, NORIA_E_ABORTED);
    EXPECT_EQ((*control)->failure().text, "enough");
    const Nanoseconds deadline = now_ns() + kPatience;
    while (!called && now_ns() < deadline) ::poll(nullptr, 0, 1);
    EXPECT_TRUE(called);
    (*control)->on_failure(nullptr);
  });
}

TEST(ControlTest, Whoever_asks_late_is_told_as_well) {
  const Rendezvous rendezvous = make_rendezvous(2);
  run_rank_threads(2, [&](int32_t rank) {
    auto control = join(rendezvous, rank);
    ASSERT_TRUE(control.is_ok()) << control.failure().text;
    (*control)->settle({NORIA_E_NET, "broken"});
    std::atomic<bool> called{false};
    (*control)->on_failure([&] { called = true; });
    const Nanoseconds deadline = now_ns() + kPatience;
    while (!called && now_ns() < deadline) ::poll(nullptr, 0, 1);
    EXPECT_TRUE(called);
    (*control)->on_failure(nullptr);
  });
}

TEST(ControlTest, Ranks_out_of_step_are_told_who_is_where) {
  const Rendezvous rendezvous = make_rendezvous(3);
  run_rank_threads(3, [&](int32_t rank) {
    auto control = join(rendezvous, rank);
    ASSERT_TRUE(control.is_ok()) << control.failure().text;
    auto all = (*control)->all_gather(rank == 2 ? "seal" : "connect", "", now_ns() + kPatience);
    ASSERT_FALSE(all.is_ok());
    EXPECT_EQ(all.failure().code, NORIA_E_ORDER);
    EXPECT_TRUE(contains(all.failure().text, "rank 2 at 'seal'")) << all.failure().text;
  });
}

TEST(ControlTest, A_gather_that_a_rank_does_not_come_to_names_it) {
  for (const int32_t impatient : {0, 1}) {
    const Rendezvous rendezvous = make_rendezvous(3);
    std::atomic<int> ended{0};
    run_rank_threads(3, [&](int32_t rank) {
      auto control = join(rendezvous, rank);
      ASSERT_TRUE(control.is_ok()) << control.failure().text;
      if (rank == 2) {
        while (ended < 2) ::poll(nullptr, 0, 1);
      } else {
        const Nanoseconds patience = rank == impatient ? 200_ms : kPatience;
        auto all = (*control)->all_gather("seal", "", now_ns() + patience);
        ASSERT_FALSE(all.is_ok());
        EXPECT_EQ(all.failure().code, NORIA_E_TIMEOUT);
        EXPECT_TRUE(contains(all.failure().text, "rank 2 did not come to 'seal'"))
            << all.failure().text;
        ++ended;
      }
    });
  }
}

// Rank 1 comes when rank 0 has given up. Expect: it is told of that, and nobody answers its gather.
TEST(ControlTest, Who_comes_to_a_gather_that_failed_is_not_told_that_it_succeeded) {
  const Rendezvous rendezvous = make_rendezvous(2);
  std::atomic<bool> gave_up{false}, has_come{false};
  run_rank_threads(2, [&](int32_t rank) {
    if (rank == 0) {
      auto control = join(rendezvous, rank);
      ASSERT_TRUE(control.is_ok()) << control.failure().text;
      EXPECT_FALSE((*control)->all_gather("verdict", "", now_ns() + 50_ms).is_ok());
      gave_up = true;
      while (!has_come) ::poll(nullptr, 0, 1);
      return;  // it reads what has come before it hangs up
    }
    const Fd socket = call(rendezvous, hello_bytes({.token_low = rendezvous.token_low,
                                                    .token_high = rendezvous.token_high,
                                                    .rank = 1,
                                                    .size = 2}));
    while (!gave_up) ::poll(nullptr, 0, 1);
    PayloadWriter put;
    put.put_text("verdict");
    put.put_text("");
    const std::string late = encode_frame(FrameType::gather_put, put.bytes());
    ASSERT_EQ(::send(socket.get(), late.data(), late.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(late.size()));
    has_come = true;
    std::string told;
    char bytes[4096];
    ssize_t got = 0;
    while ((got = ::recv(socket.get(), bytes, sizeof bytes, 0)) > 0)
      told.append(bytes, static_cast<size_t>(got));
    FrameParser parser;
    parser.append(told);
    bool is_told = false;
    while (const auto frame = parser.next()) {
      is_told |= frame->type == FrameType::failure;
      EXPECT_NE(frame->type, FrameType::gather_all);
    }
    EXPECT_TRUE(is_told);
  });
}

TEST(ControlTest, A_rank_that_left_is_named_by_whoever_still_needs_it) {
  const Rendezvous rendezvous = make_rendezvous(3);
  run_rank_threads(3, [&](int32_t rank) {
    auto control = join(rendezvous, rank);
    ASSERT_TRUE(control.is_ok()) << control.failure().text;
    if (rank == 1) return;
    auto all = (*control)->all_gather("seal", "", now_ns() + kPatience);
    ASSERT_FALSE(all.is_ok());
    EXPECT_EQ(all.failure().code, NORIA_E_PEER);
    EXPECT_TRUE(contains(all.failure().text, "rank 1 left")) << all.failure().text;
  });
}

// Where rank 0 left there is nobody who could answer, nor tell of it later.
TEST(ControlTest, Rank_0_that_left_is_named_at_once) {
  for (const bool has_left_before : {false, true}) {
    const Rendezvous rendezvous = make_rendezvous(2);
    std::atomic<bool> has_left{false};
    run_rank_threads(2, [&](int32_t rank) {
      auto control = join(rendezvous, rank);
      ASSERT_TRUE(control.is_ok()) << control.failure().text;
      if (rank == 0) {
        control->reset();
        has_left = true;
        return;
      }
      while (has_left_before && !has_left) ::poll(nullptr, 0, 1);
      const auto all = (*control)->all_gather("seal", "", kNever);
      ASSERT_FALSE(all.is_ok());
      EXPECT_EQ(all.failure().code, NORIA_E_PEER);
      EXPECT_TRUE(contains(all.failure().text, "rank 0 left the communicator while rank 1 is at"))
          << all.failure().text;
    });
  }
}

// ---- limits -------------------------------------------------------------------------------------

// Takes all descriptors but `spare`.
void take_descriptors(int spare) {
  // Some above those that are open: tests before this one may have left reserved ports.
  const int next = ::dup(0);
  ::close(next);
  const auto most = static_cast<rlim_t>(next) + 16;
  const rlimit limit{most, most};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  int last = -1;
  for (int fd = ::dup(0); fd >= 0; fd = ::dup(0)) last = fd;
  for (int fd = last; fd > last - spare; --fd) ::close(fd);
}

TEST(LimitTest, A_rank_without_a_thread_is_told_so_and_the_others_learn_it) {
  for (const int32_t poor : {0, 1}) {
    const Rendezvous rendezvous = make_rendezvous(2);
    run_ranks(2, [&](int32_t rank, Wire&) {
      if (rank == 1) drop_reservation(rendezvous);
      if (rank != poor) {
        // Who has joined by then is told by the end of the socket.
        if (const auto control = join(rendezvous, rank, 2_s); control.is_ok())
          wait_until_failed(**control);
        return;
      }
      const test::NoThreads none;
      const auto control = join(rendezvous, rank);
      // Expect: an error that says what to raise, and no end of the process.
      ASSERT_FALSE(control.is_ok());
      EXPECT_EQ(control.failure().code, NORIA_E_NOMEM);
      EXPECT_TRUE(contains(control.failure().text,
                           "no thread for the control sockets of rank " + std::to_string(rank)))
          << control.failure().text;
      EXPECT_TRUE(contains(control.failure().text, "ulimit -u")) << control.failure().text;
    });
  }
}

TEST(LimitTest, Rank_0_without_a_descriptor_to_be_woken_by_says_so) {
  const Rendezvous rendezvous = make_rendezvous(2);
  run_ranks(2, [&](int32_t rank, Wire&) {
    if (rank == 1) return drop_reservation(rendezvous);
    take_descriptors(1);  // for the listener
    const auto control = join(rendezvous, rank);
    // Expect: at once, not when the others should have come.
    ASSERT_FALSE(control.is_ok());
    EXPECT_EQ(control.failure().code, NORIA_E_NOMEM);
    EXPECT_TRUE(contains(control.failure().text, "no descriptor for the control sockets of rank 0"))
        << control.failure().text;
  });
}

TEST(LimitTest, Rank_0_without_a_descriptor_for_callers_says_so_and_does_not_spin) {
  const Rendezvous rendezvous = make_rendezvous(2);
  run_ranks(2, [&](int32_t rank, Wire&) {
    if (rank == 1) {
      drop_reservation(rendezvous);
      EXPECT_FALSE(join(rendezvous, rank, 4_s).is_ok());
      return;
    }
    take_descriptors(2);  // for the listener and the thread's wake-up
    const double before = test::cpu_seconds();
    const auto control = join(rendezvous, rank, 2_s);
    const double used = test::cpu_seconds() - before;
    ASSERT_FALSE(control.is_ok());
    EXPECT_EQ(control.failure().code, NORIA_E_MISSING);
    EXPECT_TRUE(contains(control.failure().text, "rank 1 of 2 did not join"))
        << control.failure().text;
    EXPECT_TRUE(contains(control.failure().text, "open files")) << control.failure().text;
    // Expect: asleep. A thread that spins uses the two seconds.
    EXPECT_LT(used, 0.5);
  });
}

// ---- deaths -------------------------------------------------------------------------------------

void expect_death_is_named(int32_t size, int32_t victim, bool in_gather) {
  const Rendezvous rendezvous = make_rendezvous(size);
  RankCrew crew(size, [&](int32_t rank, Wire& parent) {
    if (rank != 0) drop_reservation(rendezvous);
    auto control = join(rendezvous, rank);
    ASSERT_TRUE(control.is_ok()) << control.failure().text;
    parent.send(uint8_t{1});
    if (in_gather && rank != victim) {
      auto all = (*control)->all_gather("seal", "", now_ns() + kPatience);
      ASSERT_FALSE(all.is_ok());
    }
    wait_until_failed(**control);
    EXPECT_EQ((*control)->failure().code, NORIA_E_PEER);
    // Closed; or reset, if it had not read all that came.
    EXPECT_TRUE(contains((*control)->failure().text,
                         "rank " + std::to_string(victim) + " died (its control connection "))
        << (*control)->failure().text;
  });
  for (int32_t rank = 0; rank < size; ++rank) crew.wire(rank).recv<uint8_t>();
  crew.kill(victim, SIGKILL);
  crew.expect_success({victim});
}

TEST(DeathTest, Of_a_rank_is_named_by_all) { expect_death_is_named(4, 2, false); }
TEST(DeathTest, Of_rank_0_is_named_by_all) { expect_death_is_named(4, 0, false); }
TEST(DeathTest, In_a_gather_is_named_by_all) {
  expect_death_is_named(3, 1, true);
  expect_death_is_named(3, 0, true);
}

TEST(DeathTest, While_joining_is_named_by_those_that_had_joined) {
  for (const int32_t victim : {0, 1}) {
    const Rendezvous rendezvous = make_rendezvous(4);
    RankCrew crew(4, [&](int32_t rank, Wire& parent) {
      if (rank != 0) drop_reservation(rendezvous);
      if (rank == 3) return;  // never comes
      parent.send(uint8_t{1});
      auto control = join(rendezvous, rank);
      ASSERT_FALSE(control.is_ok());
      EXPECT_EQ(control.failure().code, NORIA_E_PEER);
      EXPECT_TRUE(contains(control.failure().text, "rank " + std::to_string(victim) + " died"))
          << control.failure().text;
    });
    for (int32_t rank = 0; rank < 3; ++rank) crew.wire(rank).recv<uint8_t>();
    ::poll(nullptr, 0, 300);  // let them meet; if they have not, they meet the death later
    crew.kill(victim, SIGKILL);
    const Nanoseconds killed = now_ns();
    crew.expect_success({victim});
    EXPECT_LT(now_ns() - killed, 10_s);
  }
}

TEST(DeathTest, A_stopped_rank_is_alive) {
  for (const int32_t stopped : {0, 1}) {
    const Rendezvous mine = make_rendezvous(3);
    RankCrew crew(3, [&](int32_t rank, Wire& parent) {
      if (rank != 0) drop_reservation(mine);
      auto control = join(mine, rank);
      ASSERT_TRUE(control.is_ok()) << control.failure().text;
      parent.send(uint8_t{1});
      parent.recv<uint8_t>();
      auto all = (*control)->all_gather("after", std::to_string(rank), now_ns() + kPatience);
      ASSERT_TRUE(all.is_ok()) << all.failure().text;
      EXPECT_EQ((*all)[2], "2");
      (*control)->leave(now_ns() + kPatience);
    });
    for (int32_t rank = 0; rank < 3; ++rank) crew.wire(rank).recv<uint8_t>();
    crew.kill(stopped, SIGSTOP);
    for (int32_t rank = 0; rank < 3; ++rank) crew.wire(rank).send(uint8_t{1});
    ::poll(nullptr, 0, 3000);  // longer than keep-alive's first probes
    crew.kill(stopped, SIGCONT);
    crew.expect_success();
  }
}

}  // namespace
}  // namespace noria::bucketing
