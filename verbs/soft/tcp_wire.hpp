// Wire version 1 of the TCP copy path: what two processes say to each other, byte for byte.
//
// A connection belongs to one direction: who called is the initiator of all its requests, who
// accepted serves them. A frame is a Header, its body, and its payload.
//
//   Hello    both ways, first   who I am
//   Watch    ->                 tell me of this queue pair of yours, now and whenever it changes
//   Target   <-                 what it is by now
//   Bind     ->                 this queue pair of mine talks to that one of yours from now on
//   Want     ->                 receives of a shared queue that messages wait for
//   Fault    ->                 a request broke the rules of your queue pair
//   Request  -> + payload       do this part of a request
//   Answer   <- + payload       done, refused, or not now
//
// All structs are fixed-width, little-endian and trivially copyable; their sizes are asserted here
// and their bytes in a golden test. Reserved bytes are sent as zero and not looked at. A change
// that an old peer would misread needs a new version; header, magic and version never move.
//
// Threads: values.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace noria::soft::tcp {

static_assert(std::endian::native == std::endian::little, "wire structs are laid out as memory");

inline constexpr uint64_t kMagic = 0x5043544149524f4e;  // "NORIATCP" in memory
inline constexpr uint32_t kVersion = 2;
// Of one frame. A request moves in parts of this: large enough that system calls do not count,
// small enough that whoever revokes something waits shortly.
inline constexpr uint32_t kMaxPayload = 256 << 10;

enum class Kind : uint16_t {
  hello = 1,
  watch = 2,
  target = 3,
  bind = 4,
  want = 5,
  fault = 6,
  request = 7,
  answer = 8
};

struct Header {
  Kind kind;
  uint16_t body_bytes;
  uint32_t payload_bytes;
};
static_assert(sizeof(Header) == 8 && std::is_trivially_copyable_v<Header>);

struct Hello {
  static constexpr Kind kKind = Kind::hello;
  uint64_t magic = kMagic;
  uint32_t version = kVersion;
  uint32_t slot = 0;     // of who speaks
  uint32_t to_slot = 0;  // whom it means
  std::array<uint32_t, 3> reserved{};
  std::array<uint64_t, 2> cookie{};  // of who speaks: random, the same for its life
  std::array<uint64_t, 2> more{};    // reserved
};
static_assert(sizeof(Hello) == 64 && std::is_trivially_copyable_v<Hello>);

struct Watch {
  static constexpr Kind kKind = Kind::watch;
  uint32_t qpn = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(Watch) == 8 && std::is_trivially_copyable_v<Watch>);

// The words of SharedQp that an initiator reads (shared_layout.hpp), and where the device is.
struct Target {
  static constexpr Kind kKind = Kind::target;
  uint32_t qpn = 0;
  uint32_t remote_qpn = 0;
  uint64_t state = 0;
  std::array<uint8_t, 16> gid{};
  uint32_t lid = 0;
  uint32_t pd = 0;
  uint32_t max_reads = 0;
  uint32_t rnr_timer = 0;
  uint32_t rq_psn = 0;
  uint32_t path_mtu = 0;
  uint32_t has_shared_receives = 0;
  uint32_t max_message = 0;  // of its device
  uint64_t rq_base = 0;
  uint64_t rq_tail = 0;
  uint64_t rq_head = 0;
  uint64_t supply_seen = 0;
  std::array<uint64_t, 4> more{};  // reserved
  bool operator==(const Target&) const = default;
};
static_assert(sizeof(Target) == 128 && std::is_trivially_copyable_v<Target>);

// A queue pair in one of its lives: what was meant for an earlier one is void.
struct Life {
  uint32_t qpn = 0;
  uint32_t generation = 0;
  bool operator==(const Life&) const = default;
};

struct Bind {
  static constexpr Kind kKind = Kind::bind;
  Life source, target;
};
static_assert(sizeof(Bind) == 16 && std::is_trivially_copyable_v<Bind>);

struct Want {
  static constexpr Kind kKind = Kind::want;
  Life target;
  uint64_t number = 0;  // up to which receive
};
static_assert(sizeof(Want) == 16 && std::is_trivially_copyable_v<Want>);

struct Fault {
  static constexpr Kind kKind = Kind::fault;
  Life target;
};
static_assert(sizeof(Fault) == 8 && std::is_trivially_copyable_v<Fault>);

enum class Work : uint8_t { write = 1, read = 2, fetch_add = 3, compare_swap = 4, send = 5 };
enum RequestFlag : uint8_t {
  kIsLast = 1,        // no part of the request comes after this one
  kTakesReceive = 2,  // and with it the receiver gets a completion
  kHasImm = 4,
  kIsSolicited = 8
};

struct Request {
  static constexpr Kind kKind = Kind::request;
  Life source, target;
  uint64_t number = 0;   // of the part, of its source
  uint64_t receive = 0;  // which receive it uses up
  uint64_t iova = 0;     // of this part; of an atomic its word
  uint64_t compare_add = 0, swap = 0;
  uint64_t offset = 0;  // of this part in the request
  uint64_t total = 0;   // bytes of the request
  uint32_t bytes = 0;   // of this part; what comes as payload if they go to the target
  uint32_t key = 0;
  Work work = Work::write;
  uint8_t flags = 0;
  uint16_t reserved = 0;
  uint32_t imm = 0;
  uint64_t more = 0;  // reserved
};
static_assert(sizeof(Request) == 96 && std::is_trivially_copyable_v<Request>);

// Answer::code where the request was not looked at: the queue pair takes none of this source now.
inline constexpr uint32_t kNotNow = 0xffffffff;

struct Answer {
  static constexpr Kind kKind = Kind::answer;
  Life source;
  uint64_t number = 0;
  uint32_t code = 0;  // ibv_wc_status for the initiator, or kNotNow
  uint32_t reserved = 0;
};
static_assert(sizeof(Answer) == 24 && std::is_trivially_copyable_v<Answer>);

}  // namespace noria::soft::tcp
