#include "perf/bandwidth_svg.hpp"

#include <gtest/gtest.h>

namespace noria::perf {
namespace {

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(Bandwidth_svg, Each_measured_point_is_a_dot_and_each_series_has_a_line_and_a_name) {
  const std::string svg =
      bandwidth_svg("of a test", {{"ring", {{1024, 1}, {1 << 20, 40}}, {{1024, 2}, {1 << 20, 41}}},
                                  {"tree", {{4096, 7}}, {}}});
  EXPECT_TRUE(svg.starts_with("<svg xmlns=")) << svg.substr(0, 40);
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  EXPECT_EQ(count(svg, "<circle"), 3u + 2u);  // and one in each row of the legend
  EXPECT_EQ(count(svg, "stroke-width=\"1.6\""), 1u + 2u);
  for (const char* text : {">of a test<", ">ring<", ">tree<", ">1K<", ">1M<", ">0<", ">50<",
                           "message size", "bus bandwidth (GB/s)"})
    EXPECT_NE(svg.find(text), std::string::npos) << text;
}

TEST(Bandwidth_svg, Series_of_the_same_colour_are_told_apart_by_dashes_and_rings) {
  std::vector<BandwidthSeries> many;
  for (int i = 0; i < 16; ++i) many.push_back({"s", {{8, 1}, {16, 2}}, {{8, 1}, {16, 2}}});
  const std::string svg = bandwidth_svg("many", many);
  // Expect: of 16 series 7 have plain lines, 7 dashes and 2 dots, each in the legend too.
  EXPECT_EQ(count(svg, "stroke-dasharray=\"7 4\""), 2u * 7);
  EXPECT_EQ(count(svg, "stroke-dasharray=\"2 3\""), 2u * 2);
  // Rings from the second round on.
  EXPECT_EQ(count(svg, "<circle"), 3u * 16);
  EXPECT_EQ(count(svg, "fill=\"#ffffff\" stroke="), 2u * 9);
}

TEST(Bandwidth_svg, Names_of_strangers_cannot_leave_their_place) {
  const std::string svg = bandwidth_svg("<script>&\"\n", {{"</text>", {{8, 1}}, {}}});
  EXPECT_EQ(svg.find("<script"), std::string::npos);
  EXPECT_NE(svg.find("&lt;script&gt;&amp;&quot;?"), std::string::npos);
  EXPECT_NE(svg.find("&lt;/text&gt;"), std::string::npos);
}

TEST(Bandwidth_svg, One_point_and_no_bandwidth_at_all_have_axes) {
  for (const BandwidthPoint point : {BandwidthPoint{8, 0}, BandwidthPoint{UINT64_MAX, 1e9}}) {
    const std::string svg = bandwidth_svg("one", {{"a", {point}, {}}});
    EXPECT_EQ(svg.find("nan"), std::string::npos);
    EXPECT_EQ(svg.find("inf"), std::string::npos);
    EXPECT_EQ(count(svg, "<circle"), 2u);
  }
}

}  // namespace
}  // namespace noria::perf
