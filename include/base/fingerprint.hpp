// Fingerprint: a 64-bit hash of numbers, the same on every machine, by which ranks find out that
// they differ. FNV-1a; no defence against anybody who wants a collision.
//
// Threads: a value.
#pragma once

#include <cstdint>

namespace noria {

class Fingerprint {
 public:
  // By value, not by memory: padding and byte order do not count.
  void add(uint64_t value) {
    for (int i = 0; i < 8; ++i) {
      hash_ = (hash_ ^ (value & 0xFF)) * 0x100000001B3;
      value >>= 8;
    }
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0xCBF29CE484222325;
};

}  // namespace noria
