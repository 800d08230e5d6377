// The two sides of a measurement beside what they measure: a socket that carries short texts, and
// tells when the other side failed or is gone.
//
// Frames are a kind, an exit code and a text. All waits have a bound but a server's for a client.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/clock.hpp"
#include "base/fd.hpp"
#include "perf/exit_codes.hpp"

namespace noria::perf {

inline constexpr Nanoseconds kNetPatience = 30_s;  // without any progress

class NetControl {
 public:
  // `peer` is who the other side is, in messages.
  NetControl(Fd socket, std::string peer) : socket_(std::move(socket)), peer_(std::move(peer)) {}

  // Throws ToolError: what the other side said of its failure, or that it is gone, or silent.
  void send(std::string_view text);
  std::string receive(Nanoseconds limit = kNetPatience);
  // Both sides have come here.
  void meet() {
    send("");
    receive();
  }

  // The last word, to a peer that may be gone; said once.
  void send_failure(const ToolError& error);
  // Returns at once while the other side has said nothing, or no more than a text; throws as
  // receive() otherwise.
  void look_for_failure();
  const std::string& peer() const { return peer_; }

 private:
  struct Header {
    uint32_t magic, kind, code, bytes;
  };
  Header read_header(Nanoseconds deadline);
  void read_all(void* data, size_t bytes, Nanoseconds deadline);
  bool write_all(const Header& header, std::string_view text);
  [[noreturn]] void throw_gone() const;

  Fd socket_;
  std::string peer_;
  bool has_failed_ = false;
};

// Runs one side; what it throws, the other side hears.
template <class Side>
auto with_news(NetControl& control, Side side) {
  try {
    return side();
  } catch (const ToolError& error) {
    control.send_failure(error);
    throw;
  }
}

// The same for what works with queue pairs: of a failure both sides hear before they are given back
// (show_failure_first). `tool` is null where this side says nothing itself.
template <class Work>
auto use_links(NetControl& control, const char* tool, Work work) {
  const auto use = [&] { return with_news(control, work); };
  return tool != nullptr ? show_failure_first(tool, use) : use();
}

// On every interface.
Fd listen_for_client(uint16_t port);
// The first client whose first word `takes` takes. It throws ToolError for any other: of code peer
// that one is refused with a line on both sides, and the next one waits no longer than the time to
// say a first word; of another code it ends the wait. So does a client for whom there is no
// descriptor, after two seconds.
NetControl wait_for_client(const Fd& listener, const char* tool,
                           const std::function<void(NetControl&, const std::string&)>& takes);
// `advice` ends the failure: what has to run there.
NetControl connect_to_server(const std::string& host, uint16_t port, const std::string& advice);

}  // namespace noria::perf
