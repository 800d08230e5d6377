// A device that misbehaves (NORIA_SOFT_FAULTS): what retries outlast harms no message, and what
// does not is told on both sides in words that name the object and the cause.

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include "base/log.hpp"
#include "base/units.hpp"
#include "tests/support/transport_end.hpp"

namespace noria::transport {
namespace {

using test::Crew;
using test::Post;
using test::TransportEnd;

constexpr uint64_t kBytes = 1_MiB;
// 4.096 us * 2^12, twice: given up after 34 ms.
const ConnectOptions kShort{.peer_name = "rank 4", .ack_timeout = 12, .retries = 1};

struct Outcome {
  Status status;
  std::string description;
  uint64_t messages = 0;  // done well, in order
};

// Sends up to `count` messages until all are done or the connection fails.
Outcome send_all(TransportEnd& end, uint64_t count) {
  std::vector<std::byte> memory(kBytes);
  test::paint(memory.data(), kBytes, 7);
  auto region = end.domain->register_region(memory.data(), kBytes);
  EXPECT_TRUE(region.is_ok());
  Outcome outcome;
  std::vector<Request*> sent;
  EXPECT_TRUE(end.poll_until([&] {
    if (sent.size() < count)
      if (Request* request = end.send->try_send(*region, 0, kBytes); request != nullptr)
        sent.push_back(request);
    while (outcome.messages < sent.size() && sent[outcome.messages]->is_done() &&
           sent[outcome.messages]->status().is_ok())
      ++outcome.messages;
    return outcome.messages == count || !end.send->status().is_ok();
  }));
  for (Request* request : sent) EXPECT_TRUE(request->is_done());
  outcome.status = end.send->status();
  outcome.description = end.send->describe();
  end.send.reset();
  return outcome;
}

Outcome receive_all(TransportEnd& end, uint64_t count) {
  std::vector<std::byte> memory(kBytes);
  auto region = end.domain->register_region(memory.data(), kBytes);
  EXPECT_TRUE(region.is_ok());
  Outcome outcome;
  Request* request = nullptr;
  EXPECT_TRUE(end.poll_until([&] {
    if (request == nullptr) request = end.recv->try_recv(*region, 0, kBytes);
    if (request != nullptr && request->is_done() && request->status().is_ok()) {
      EXPECT_EQ(test::first_wrong(memory.data(), kBytes, 7), kBytes);
      std::fill(memory.begin(), memory.end(), std::byte{0});
      ++outcome.messages;
      request = nullptr;
    }
    return outcome.messages == count || !end.recv->status().is_ok();
  }));
  // Who has sent all may close at once, which can be seen together with the last message.
  if (outcome.messages < count) outcome.status = end.recv->status();
  outcome.description = end.recv->describe();
  return outcome;
}

using Look = std::function<void(const Outcome&)>;

std::string host_name() {
  std::array<char, 64> name{};
  EXPECT_EQ(gethostname(name.data(), name.size() - 1), 0);
  return name.data();
}

// Lines of the transport's log; the device's own are not among them.
int logged_lines = 0;

// One side sends and has the faults, the other receives; each outcome is looked at in its process.
void run(const std::string& faults, const Look& at_sender, const Look& at_receiver,
         uint64_t count = 20, const ConnectOptions& options = kShort) {
  test::run_pair([&](Post& post) {
    if (post.side == 0) ::setenv("NORIA_SOFT_FAULTS", faults.c_str(), 1);
    TransportEnd end;
    if (post.side == 0) {
      ASSERT_NE(end.send = end.call(post.peer, options), nullptr);
      set_log_sink([](LogLevel, const char* text) {
        if (std::strstr(text, " reported: ") == nullptr) ++logged_lines;
      });
      set_log_level(LogLevel::info);
      at_sender(send_all(end, count));
      // Expect: whoever owns the connection tells of it, and nobody else before; what a device
      // reports of its own accord apart.
      EXPECT_EQ(logged_lines, 0);
    } else {
      ASSERT_NE(end.recv = end.accept(post.peer, options), nullptr);
      at_receiver(receive_all(end, count));
    }
    post.peer.meet();
    // Not before: the answer to the last message may have been lost, and then comes from here.
    end.recv.reset();
    end.domain.reset();
    EXPECT_EQ(end.provider->api().live_objects(), 0);
    EXPECT_EQ(end.provider->api().failed_closes(), 0u);
  });
}

Look is_well(uint64_t count) {
  return [count](const Outcome& outcome) {
    EXPECT_TRUE(outcome.status.is_ok()) << outcome.description;
    EXPECT_EQ(outcome.messages, count);
  };
}
// Fails with this code; the description has all of these words.
Look is_told(Code code, const std::vector<std::string>& words) {
  return [=](const Outcome& outcome) {
    EXPECT_EQ(outcome.status.code(), code) << outcome.description;
    EXPECT_LT(outcome.messages, 20u);
    for (const std::string& word : words)
      EXPECT_NE(outcome.description.find(word), std::string::npos)
          << "'" << word << "' in: " << outcome.description;
  };
}

TEST(Transport_faults, A_flap_that_retries_outlast_harms_no_message) {
  run("port=*: every bytes=5M do down for=20ms", is_well(20), is_well(20), 20,
      {.peer_name = "rank 4"});
}

TEST(Transport_faults, Lost_requests_and_answers_that_retries_outlast_harm_no_message) {
  run("seed=3; qp=*: about msgs=6 do lose for=4ms; qp=*: about msgs=6 do mute for=4ms", is_well(20),
      is_well(20), 20, {.peer_name = "rank 4"});
}

TEST(Transport_faults, A_port_that_stays_down_is_named_on_both_sides) {
  run("port=*: after bytes=4M do down",
      is_told(Code::port_down, {"rank 4", "transport retries exceeded", "the port is down"}),
      is_told(Code::peer_lost, {"rank 4", "the peer gave up", "the port is down"}));
}

TEST(Transport_faults, A_device_that_is_lost_is_named_on_both_sides) {
  run("port=*: after msgs=12 do fatal",
      is_told(Code::device_lost, {"rank 4", "the device is lost"}),
      is_told(Code::peer_lost, {"rank 4", "the peer gave up"}));
}

TEST(Transport_faults, A_request_that_fails_is_decoded_on_both_sides) {
  run("qp=*: after msgs=4 do fail status=10",
      is_told(Code::connection_lost,
              {"rank 4", "remote access error (completion status 10", "vendor 0x", "qp 0x",
               "did the peer free it too early?", "from " + host_name() + ":", "gid ", "to qp 0x"}),
      is_told(Code::peer_lost, {"rank 4", "the peer gave up", "remote access error"}));
}

TEST(Transport_faults, A_peer_that_stops_answering_is_told_from_a_port_that_is_down) {
  run("qp=*: after msgs=4 do lose for=60s",
      is_told(Code::connection_lost, {"rank 4", "the peer stopped answering"}),
      is_told(Code::peer_lost, {"rank 4", "the peer gave up", "the peer stopped answering"}));
}

TEST(Transport_faults, A_message_whose_answer_is_lost_is_whole_where_it_was_received) {
  run(
      "qp=*: after msgs=2 do mute for=60s",
      [](const Outcome& sender) {
        EXPECT_EQ(sender.status.code(), Code::connection_lost) << sender.description;
        EXPECT_EQ(sender.messages, 2u);
      },
      [](const Outcome& receiver) {
        EXPECT_EQ(receiver.status.code(), Code::peer_lost) << receiver.description;
        EXPECT_EQ(receiver.messages, 3u);
      },
      // Half a second: on a loaded machine, too, both queue pairs have carried their part by then.
      20, {.peer_name = "rank 4", .ack_timeout = 16, .retries = 1});
}

TEST(Transport_faults, A_post_that_is_refused_is_told) {
  run("call=post_send: after calls=7 do fail errno=12",
      is_told(Code::connection_lost, {"rank 4", "posting was refused: Cannot allocate memory"}),
      is_told(Code::peer_lost, {"rank 4", "the peer gave up", "posting was refused"}));
}

}  // namespace
}  // namespace noria::transport
