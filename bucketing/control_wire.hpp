// What travels on the control sockets: one hello of fixed size, then frames with a length prefix.
//
// Parsing is pure: bytes in, frames or a refusal out. A frame announces its length first; more than
// kMaxFrameBytes, or a type that is none, is refused before anything is stored, so that a broken
// peer cannot make the process grow. Numbers travel in the host's order: the magic tells hosts of
// the other order apart.
//
// Threads: values; one at a time.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "base/units.hpp"

namespace noria::bucketing {

inline constexpr uint64_t kControlMagic = 0x314c5443'41524f4e;  // "NORACTL1"
inline constexpr uint32_t kControlVersion = 3;
inline constexpr uint32_t kMaxFrameBytes = 16_MiB;

// The first bytes of a caller. Until they are right the caller is a stranger and is told nothing.
struct Hello {
  uint64_t magic = kControlMagic;
  uint64_t token_low = 0;
  uint64_t token_high = 0;
  uint32_t version = kControlVersion;
  int32_t rank = 0;
  int32_t size = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(Hello) == 40);

enum class FrameType : uint32_t {
  accepted = 1,     // rank 0: hello was right; from here on silence means patience, EOF means death
  welcome = 2,      // rank 0: every rank is here
  late = 3,         // a rank's deadline passed: rank 0 says to all who is missing
  gather_put = 4,   // what, bytes
  gather_all = 5,   // one text a rank; to a pass_put the left neighbour's alone
  failure = 6,      // code, text
  goodbye = 7,      // the end of this connection is no death
  all_said_so = 8,  // rank 0: every rank said goodbye
  pass_put = 9,     // what, bytes for the right neighbour
  ask_around = 10,  // to rank 0: what does each rank owe the others?
  question = 11,    // rank 0: what do you owe the others?
  answer = 12,      // to rank 0: text, empty for nothing
  told = 13,        // rank 0 to who asked around: the answers, as text
};
inline constexpr uint32_t kLastFrameType = 13;

struct FrameHeader {
  uint32_t bytes = 0;  // of the payload
  uint32_t type = 0;
};
static_assert(sizeof(FrameHeader) == 8);

struct Frame {
  FrameType type{};
  std::string payload;
};

inline std::string encode_frame(FrameType type, std::string_view payload = {}) {
  const FrameHeader header{static_cast<uint32_t>(payload.size()), static_cast<uint32_t>(type)};
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  bytes.append(payload);
  return bytes;
}

class FrameParser {
 public:
  void append(std::string_view bytes) { buffer_.append(bytes); }

  // The next complete frame; nothing while bytes are missing or once is_malformed().
  std::optional<Frame> next() {
    FrameHeader header;
    if (is_malformed_ || buffer_.size() - used_ < sizeof header) return std::nullopt;
    std::memcpy(&header, buffer_.data() + used_, sizeof header);
    if (header.bytes > kMaxFrameBytes || header.type == 0 || header.type > kLastFrameType) {
      is_malformed_ = true;
      return std::nullopt;
    }
    if (buffer_.size() - used_ - sizeof header < header.bytes) {
      buffer_.erase(0, used_);  // once a frame at most: what is left is a part of one frame
      used_ = 0;
      return std::nullopt;
    }
    Frame frame{static_cast<FrameType>(header.type),
                buffer_.substr(used_ + sizeof header, header.bytes)};
    used_ += sizeof header + header.bytes;
    return frame;
  }

  bool is_malformed() const { return is_malformed_; }

 private:
  std::string buffer_;
  size_t used_ = 0;  // bytes of buffer_ that were handed out
  bool is_malformed_ = false;
};

class PayloadWriter {
 public:
  void put_i32(int32_t value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void put_text(std::string_view text) {
    put_i32(static_cast<int32_t>(text.size()));  // a payload is at most kMaxFrameBytes
    bytes_.append(text);
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Reads past the end give zeros and empty texts and turn is_good() false; nothing is trusted.
class PayloadReader {
 public:
  explicit PayloadReader(std::string_view bytes) : rest_(bytes) {}
  int32_t take_i32() {
    int32_t value = 0;
    if (rest_.size() < sizeof value) return is_good_ = false, 0;
    std::memcpy(&value, rest_.data(), sizeof value);
    rest_.remove_prefix(sizeof value);
    return value;
  }
  std::string take_text() {
    const int32_t length = take_i32();
    if (length < 0 || static_cast<size_t>(length) > rest_.size()) return is_good_ = false, "";
    std::string text(rest_.substr(0, static_cast<size_t>(length)));
    rest_.remove_prefix(static_cast<size_t>(length));
    return text;
  }
  bool is_good() const { return is_good_; }
  bool is_at_end() const { return rest_.empty(); }

 private:
  std::string_view rest_;
  bool is_good_ = true;
};

}  // namespace noria::bucketing
