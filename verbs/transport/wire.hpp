// Wire version 4: everything that travels between two peers, byte for byte.
//
// All structs are fixed-width, little-endian and trivially copyable; their sizes are asserted here
// and their bytes in a golden test. Reserved bytes are sent as zero and not looked at, so that they
// can get a meaning. A change that an old peer would misread needs a new version number; the
// control header and the token behind it never move, so that peers of different versions can still
// name both.
//
//   Handle          128 B  receiver -> sender, by the caller's own means
//   Control, Hello, ...    both ways over the control socket (README.md: who sends what when)
//   Credit           64 B  receiver -> sender's memory, one per message, by inline RDMA WRITE
//   Immediate         4 B  sender -> receiver, with every piece of a message
//   Record            4 B  sender -> receiver's memory, with immediates that say nothing of bytes
//
// Threads: values.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "verbs/transport/connection.hpp"
#include "verbs/transport/immediate.hpp"
#include "verbs/transport/region.hpp"

namespace noria::transport::wire {

static_assert(std::endian::native == std::endian::little, "wire structs are laid out as memory");

inline constexpr uint16_t kVersion = 4;
inline constexpr uint32_t kHandleMagic = 0x48524e31;   // "1NRH" in memory
inline constexpr uint32_t kControlMagic = 0x43524e31;  // "1NRC" in memory
inline constexpr unsigned kMaxQps = 16;                // of one connection, over all rails

using Token = std::array<std::byte, 16>;

struct Handle {
  uint32_t magic = kHandleMagic;
  uint16_t version = kVersion;
  uint8_t provider_kind = 0;  // verbs::ProviderKind
  uint8_t family = 0;         // 4 or 6
  Token token{};
  uint64_t fingerprint = 0;
  std::array<uint8_t, 16> address{};  // IPv4 in the first four bytes
  uint16_t port = 0;                  // TCP
  uint8_t rails = 0;  // of the listener: so many queue pairs are worth making at least
  uint8_t reserved = 0;
  uint32_t request_bytes = 0;  // what its rails take in one work request; 0: it does not say
  std::array<uint8_t, 72> reserved2{};
};
static_assert(sizeof(Handle) == 128 && std::is_trivially_copyable_v<Handle>);

// ---- control socket
// ------------------------------------------------------------------------------

enum class Type : uint8_t {
  hello = 1,   // connector: who I am, my queue pairs, where my credits live
  accept = 2,  // listener: my queue pairs; they are ready
  refuse = 3,  // listener: why not, with both values
  ready = 4,   // connector: my queue pairs are ready
  close = 5,   // either, at the end: farewell, or what failed
  epoch = 6,   // receiver: a queue pair was reset; what follows carries a new epoch
};

struct Control {
  uint32_t magic = kControlMagic;
  uint16_t version = kVersion;
  Type type{};
  uint8_t reserved = 0;
  uint32_t bytes = 0;  // of the whole message
  uint32_t reserved2 = 0;
};
static_assert(sizeof(Control) == 16);

struct RailAddress {
  std::array<uint8_t, 16> gid{};
  uint16_t lid = 0;
  uint8_t mtu = 0;         // ibv_mtu
  uint8_t read_depth = 0;  // reads answered at once
  uint8_t is_ethernet = 0;
  uint8_t reserved = 0;
  uint16_t rate_100mbps = 0;  // of the port or of the bus behind it, whichever is slower
  std::array<uint8_t, 8> reserved2{};
};
static_assert(sizeof(RailAddress) == 32);

struct QpAddress {
  uint32_t qpn = 0;
  uint32_t psn = 0;
  uint32_t ece_vendor = 0;   // 0: none. The connector's own, then what the listener made of it
  uint32_t ece_options = 0;  // (verbs/ece.hpp)
};

// Queue pair i lives on rail i modulo the number of rails, on each side by its own number: so sides
// with unlike numbers of rails use all of both.
struct Ends {
  uint8_t rails = 0;
  uint8_t qps = 0;
  std::array<uint8_t, 6> reserved{};
  std::array<RailAddress, kMaxRails> rail{};
  std::array<QpAddress, kMaxQps> qp{};
};
static_assert(sizeof(Ends) == 520);

struct Hello {
  Control control{.type = Type::hello, .bytes = 768};
  Token token{};
  uint64_t fingerprint = 0;
  uint8_t provider_kind = 0;
  uint8_t wants_records = 0;  // for it routes adaptively, or cuts long messages
  std::array<uint8_t, 6> reserved{};
  RemoteRegion credits{};  // the sender's credit ring
  Ends ends{};
  std::array<char, 64> name{};  // "host:pid", for errors
  std::array<uint8_t, 104> reserved2{};
};
static_assert(sizeof(Hello) == 768);

// The receiver's ring of records, one for each message of the window, where they were wanted.
struct Records {
  uint64_t address = 0;
  std::array<uint32_t, kMaxRails> rkeys{};
};
static_assert(sizeof(Records) == 40);

struct Accept {
  Control control{.type = Type::accept, .bytes = 768};
  Ends ends{};
  std::array<char, 64> name{};
  Records records{};
  std::array<uint8_t, 128> reserved{};
};
static_assert(sizeof(Accept) == 768);

enum class Reason : uint8_t {
  version = 1,
  provider_kind = 2,
  fingerprint = 3,
  no_resources = 5,  // 4 was of version 2
};

struct Refuse {
  Control control{.type = Type::refuse, .bytes = 64};
  Reason reason{};
  std::array<uint8_t, 7> reserved{};
  uint64_t listener_value = 0;
  uint64_t connector_value = 0;
  std::array<uint8_t, 24> reserved2{};
};
static_assert(sizeof(Refuse) == 64);

struct Ready {
  Control control{.type = Type::ready, .bytes = 16};
};
static_assert(sizeof(Ready) == 16);

struct Close {
  Control control{.type = Type::close, .bytes = 256};
  uint8_t is_failure = 0;
  std::array<uint8_t, 7> reserved{};
  std::array<char, 232> cause{};  // zero-terminated
};
static_assert(sizeof(Close) == 256);

struct Epoch {
  Control control{.type = Type::epoch, .bytes = 64};
  uint64_t first_sequence = 0;  // the first message that carries the new epoch
  uint32_t epoch = 0;
  uint32_t qpn = 0;
  uint32_t psn = 0;
  uint8_t qp = 0;  // index in Ends
  std::array<uint8_t, 27> reserved{};
};
static_assert(sizeof(Epoch) == 64);

inline constexpr size_t kMaxControlBytes = 1024;  // longer messages are garbage in any version

// ---- credit
// --------------------------------------------------------------------------------------

// Which send a credit is for: one of this tag, in a group of so many messages with consecutive
// numbers. One word, because a receive by itself is told by one comparison.
constexpr uint64_t match_of(uint32_t tag, uint32_t members) {
  return uint64_t{members} << 32 | tag;
}
constexpr uint32_t tag_in(uint64_t match) { return static_cast<uint32_t>(match); }
constexpr uint32_t members_in(uint64_t match) { return static_cast<uint32_t>(match >> 32); }

// Where a message may land. Nothing promises that the last word lands last, so each 32-byte half
// ends with the low bits of the sequence number (credit.hpp reads it).
struct alignas(64) Credit {
  static constexpr unsigned kFirstKeys = 2;  // that have room in the first half

  uint64_t address = 0;
  uint64_t match = 0;
  uint32_t bytes = 0;                             // 1 GiB at most
  std::array<uint32_t, kFirstKeys> first_keys{};  // one per rail
  uint32_t sequence = 0;
  std::array<uint32_t, kMaxRails - kFirstKeys> other_keys{};
  uint32_t reserved = 0;
  uint32_t sequence_again = 0;

  // Which 32-bit word is the key of a rail.
  static constexpr unsigned word_of_key(unsigned rail);
};
static_assert(sizeof(Credit) == 64);
static_assert(kMaxGroup <= kWindow, "a group fits into the window");
static_assert(offsetof(Credit, sequence) == 28 && offsetof(Credit, sequence_again) == 60);

constexpr unsigned Credit::word_of_key(unsigned rail) {
  const size_t byte = rail < kFirstKeys
                          ? offsetof(Credit, first_keys) + rail * sizeof(uint32_t)
                          : offsetof(Credit, other_keys) + (rail - kFirstKeys) * sizeof(uint32_t);
  return static_cast<unsigned>(byte / sizeof(uint32_t));
}

static_assert(kMaxQps <= 1u << Immediate::kPiecesBits, "every cut can be told");
// An old immediate can be mistaken for a new one only after thousands of laps of the window.
static_assert(kWindow <= 1u << (Immediate::kSequenceBits - 10) &&
                  sizeof(Credit::sequence) * 8 > Immediate::kSequenceBits,
              "sequence numbers are wider than any window");

}  // namespace noria::transport::wire
