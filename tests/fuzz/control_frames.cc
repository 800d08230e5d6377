// The control plane's frames: the same however they are cut, and back to the same bytes.
#include "bucketing/control_wire.hpp"

#include "tests/fuzz/input.hpp"

namespace {

using namespace noria::bucketing;
using noria::fuzz::Input;

struct Parsed {
  std::vector<Frame> frames;
  bool is_malformed = false;
};

Parsed parse(std::string_view stream, size_t step) {
  Parsed parsed;
  FrameParser parser;
  while (!stream.empty()) {
    parser.append(stream.substr(0, step));
    stream.remove_prefix(std::min(step, stream.size()));
    while (auto frame = parser.next()) parsed.frames.push_back(*std::move(frame));
  }
  parsed.is_malformed = parser.is_malformed();
  return parsed;
}

// Numbers and texts in turn, as `plan` says, written again as they were read.
void check_payload(std::string_view payload, uint32_t plan) {
  PayloadReader reader(payload);
  PayloadWriter writer;
  for (int i = 0; i < 32 && !reader.is_at_end(); ++i) {
    if ((plan >> i & 1) != 0) {
      const std::string text = reader.take_text();
      if (!reader.is_good()) break;
      writer.put_text(text);
    } else {
      const int32_t number = reader.take_i32();
      if (!reader.is_good()) break;
      writer.put_i32(number);
    }
  }
  NORIA_CHECK(payload.starts_with(writer.bytes()), "what was read is written as the same bytes");
  if (!reader.is_good()) NORIA_CHECK(!payload.empty(), "an end is not a fault before a read");
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  const size_t step = 1 + input.take<uint8_t>();
  const auto plan = input.take<uint32_t>();
  const std::string_view stream = input.rest();

  const Parsed whole = parse(stream, std::max<size_t>(stream.size(), 1));
  const Parsed cut = parse(stream, step);
  NORIA_CHECK(whole.frames.size() == cut.frames.size() && whole.is_malformed == cut.is_malformed,
              "how the bytes are cut makes no difference");
  std::string again;
  for (size_t i = 0; i < whole.frames.size(); ++i) {
    NORIA_CHECK(whole.frames[i].type == cut.frames[i].type &&
                    whole.frames[i].payload == cut.frames[i].payload,
                "frames are the same however the bytes are cut");
    again += encode_frame(whole.frames[i].type, whole.frames[i].payload);
    check_payload(whole.frames[i].payload, plan);
  }
  NORIA_CHECK(stream.starts_with(again), "what is accepted is encoded as the same bytes");
  const std::string_view left = stream.substr(again.size());
  NORIA_CHECK(whole.is_malformed || left.size() < sizeof(FrameHeader) + kMaxFrameBytes,
              "no more than a part of one frame is kept");
  check_payload(stream, plan);
  return 0;
}
