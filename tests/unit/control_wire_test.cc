#include "bucketing/control_wire.hpp"

#include <gtest/gtest.h>

namespace noria::bucketing {
namespace {

TEST(FrameParserTest, Gives_the_same_frames_however_the_bytes_are_cut) {
  const std::string stream = encode_frame(FrameType::accepted) +
                             encode_frame(FrameType::gather_put, std::string(1000, 'x')) +
                             encode_frame(FrameType::goodbye);
  for (const size_t cut : {size_t{1}, size_t{3}, size_t{8}, size_t{500}, stream.size()}) {
    FrameParser parser;
    std::vector<Frame> frames;
    for (size_t at = 0; at < stream.size(); at += cut) {
      parser.append(std::string_view(stream).substr(at, cut));
      while (auto frame = parser.next()) frames.push_back(*frame);
    }
    // Expect: three frames, whole.
    ASSERT_EQ(frames.size(), 3u) << "cut " << cut;
    EXPECT_EQ(frames[0].type, FrameType::accepted);
    EXPECT_EQ(frames[1].payload, std::string(1000, 'x'));
    EXPECT_EQ(frames[2].type, FrameType::goodbye);
    EXPECT_FALSE(parser.is_malformed());
  }
}

TEST(FrameParserTest, Refuses_a_length_past_the_bound_before_its_bytes_come) {
  FrameHeader header{kMaxFrameBytes + 1, static_cast<uint32_t>(FrameType::failure)};
  FrameParser parser;
  parser.append({reinterpret_cast<const char*>(&header), sizeof header});
  EXPECT_FALSE(parser.next());
  EXPECT_TRUE(parser.is_malformed());
}

TEST(FrameParserTest, Refuses_types_that_are_none) {
  for (const uint32_t type : {0u, kLastFrameType + 1, 0xffffffffu}) {
    const FrameHeader header{0, type};
    FrameParser parser;
    parser.append({reinterpret_cast<const char*>(&header), sizeof header});
    EXPECT_FALSE(parser.next()) << type;
    EXPECT_TRUE(parser.is_malformed()) << type;
  }
}

TEST(FrameParserTest, Survives_garbage) {
  uint64_t seed = 7;
  for (int round = 0; round < 2000; ++round) {
    FrameParser parser;
    std::string bytes;
    for (int i = 0; i < 64; ++i) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      // Small numbers are the dangerous ones: they look like lengths and types.
      bytes.push_back(static_cast<char>((seed >> 33) % (round % 2 == 0 ? 10 : 256)));
    }
    parser.append(bytes);
    int frames = 0;
    while (parser.next()) ++frames;
    // Expect: no more frames than headers fit in.
    EXPECT_LE(frames, 8);
  }
}

TEST(PayloadTest, Reads_back_what_was_written) {
  PayloadWriter writer;
  writer.put_i32(-7);
  writer.put_text("rank 2");
  writer.put_text("");
  PayloadReader reader(writer.bytes());
  EXPECT_EQ(reader.take_i32(), -7);
  EXPECT_EQ(reader.take_text(), "rank 2");
  EXPECT_EQ(reader.take_text(), "");
  EXPECT_TRUE(reader.is_good());
}

TEST(PayloadTest, Never_reads_past_the_end) {
  PayloadWriter writer;
  writer.put_text("hello");
  for (size_t kept = 0; kept < writer.bytes().size(); ++kept) {
    PayloadReader reader(std::string_view(writer.bytes()).substr(0, kept));
    EXPECT_EQ(reader.take_text(), "") << kept;
    EXPECT_FALSE(reader.is_good()) << kept;
  }
  // A negative length.
  PayloadWriter negative;
  negative.put_i32(-1);
  PayloadReader reader(negative.bytes());
  EXPECT_EQ(reader.take_text(), "");
  EXPECT_FALSE(reader.is_good());
}

}  // namespace
}  // namespace noria::bucketing
