// WrId: what a work request's 64-bit id says, so that a completion finds its way without a search.
//
//   63..48 seat of the connection in its domain   47..32 generation of the seat
//   31..24 kind   23..16 queue pair   15..0 slot
//
// A failed completion carries no more than this id and the queue pair's number, so everything that
// routing needs is in it. The generation tells a late completion of a connection that is gone from
// one of its successor.
//
// Threads: a value.
#pragma once

#include <cstdint>

namespace noria::transport {

enum class WrKind : uint8_t {
  piece = 0,    // sender: a piece of a message
  receive = 1,  // receiver: a piece arrived
  credit = 2,   // receiver: a signalled credit, and with it all before it
  read = 3,     // receiver: a chunk of a read
  flush = 4,    // receiver: a rail has flushed; the queue pair is the rail's
  line = 5,     // sender: a signalled line, and with it all before it; its slot is no message's
};

class WrId {
 public:
  constexpr explicit WrId(uint64_t bits) : bits_(bits) {}
  // The part common to all requests of a connection.
  static constexpr uint64_t base(uint16_t seat, uint16_t generation) {
    return static_cast<uint64_t>(seat) << 48 | static_cast<uint64_t>(generation) << 32;
  }
  static constexpr uint64_t make(uint64_t base, WrKind kind, uint32_t qp, uint32_t slot) {
    return base | static_cast<uint64_t>(kind) << 24 | static_cast<uint64_t>(qp) << 16 | slot;
  }

  constexpr uint16_t seat() const { return static_cast<uint16_t>(bits_ >> 48); }
  constexpr uint64_t base() const { return bits_ & 0xffffffff00000000; }
  constexpr WrKind kind() const { return static_cast<WrKind>(bits_ >> 24 & 0xff); }
  constexpr uint32_t qp() const { return bits_ >> 16 & 0xff; }
  constexpr uint32_t slot() const { return bits_ & 0xffff; }

 private:
  uint64_t bits_;
};

}  // namespace noria::transport
