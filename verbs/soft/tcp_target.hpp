// The target's side of a TCP connection: requests of the other process are done here, by our own
// hand, and it is told of our queue pairs.
//
// A queue pair is served under its receive CQ's list lock, where its state and every key are looked
// up: who revoked something, and took that lock once, knows that nothing touches it any more.
//
// Threads: one at a time (TcpNetwork's pump).
#pragma once

#include <memory>
#include <vector>

#include "verbs/soft/changed_qps.hpp"
#include "verbs/soft/engine.hpp"
#include "verbs/soft/tcp_network.hpp"

namespace noria::soft {

struct TcpTarget {
  TcpTarget(Engine& engine_in, TcpConnection& connection_in, Peer& peer_in, Segment& mirror_in);
  TcpTarget(const TcpTarget&) = delete;
  TcpTarget& operator=(const TcpTarget&) = delete;

  Engine& engine;
  TcpConnection& connection;
  Peer& peer;
  // Of our queue pairs by their own index: what the initiator of each has written to it. In the
  // words' places of an initiator that shares memory, so that it is harvested in the same way.
  Segment& mirror;
  std::vector<tcp::Life> sources;  // by index

  // False: the other side does not speak as it should.
  bool handle(const TcpStream::Frame& frame);
  // These of our queue pairs have changed (ChangedQps).
  void note(size_t word, uint64_t bits) {
    untold[word] |= bits & watched[word];
    has_untold = has_untold || untold[word] != 0;
  }
  // Tells what has changed.
  void tell();

 private:
  void watch(const tcp::Watch& watch);
  void bind(const tcp::Bind& bind);
  void want(const tcp::Want& want);
  void fault(const tcp::Fault& fault);
  void serve(const tcp::Request& request, const uint8_t* payload);
  bool is_bound(const Qp& qp, const tcp::Life& target) const;

  QpBits watched{};  // of whom the other side wants to hear
  QpBits untold{};   // who of them has changed since
  bool has_untold = false;
  std::unique_ptr<uint8_t[]> reply_;
};

}  // namespace noria::soft
