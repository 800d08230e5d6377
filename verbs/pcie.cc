#include "verbs/pcie.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

#include "base/real_path.hpp"
#include "base/value_text.hpp"

namespace noria::verbs {
namespace {

// One generation: what it is called, and the bits a second of a lane that carry packets. The first
// two send ten bits for eight, the next three 130 for 128, the sixth 256 bytes for 242.
struct Generation {
  std::string_view name;
  uint32_t lane_mbps;
};
constexpr std::array<Generation, 7> kGenerations{{{"2.5", 2'000},
                                                  {"5", 4'000},
                                                  {"5.0", 4'000},
                                                  {"8.0", 7'877},
                                                  {"16.0", 15'754},
                                                  {"32.0", 31'508},
                                                  {"64.0", 60'500}}};

// A packet of 256 bytes, what most hosts allow, has about 20 more for framing, header and check.
constexpr uint32_t kPayload = 256, kPacket = 276;

// The first line, or empty.
std::string line_of(const std::string& path) {
  char text[64] = "";
  if (std::FILE* file = std::fopen(path.c_str(), "re"); file != nullptr) {
    if (std::fgets(text, sizeof text, file) == nullptr) text[0] = '\0';
    std::fclose(file);
  }
  const std::string_view line(text);
  return std::string(line.substr(0, line.find('\n')));
}

}  // namespace

uint32_t pcie_link_mbps(std::string_view speed, std::string_view lanes) {
  const std::string_view name = speed.substr(0, speed.find(' '));
  const auto* const generation =
      std::find_if(kGenerations.begin(), kGenerations.end(),
                   [name](const Generation& one) { return one.name == name; });
  uint64_t count = 0;
  // 255 lanes, or none, is what the kernel writes where it does not know.
  if (generation == kGenerations.end() || !speed.ends_with("GT/s PCIe") ||
      !detail::parse_uint(lanes, &count) || count == 0 || count > 32)
    return 0;
  return static_cast<uint32_t>(generation->lane_mbps * count * kPayload / kPacket);
}

uint32_t pcie_mbps(const std::string& device_path) {
  uint32_t slowest = 0;
  // Every bridge on the way up is a folder around the one below it.
  for (std::string folder = real_path(device_path); folder.size() > 1;
       folder.resize(std::max<size_t>(folder.rfind('/'), 1))) {
    const uint32_t link = pcie_link_mbps(line_of(folder + "/current_link_speed"),
                                         line_of(folder + "/current_link_width"));
    if (link != 0) slowest = slowest == 0 ? link : std::min(slowest, link);
  }
  return slowest;
}

}  // namespace noria::verbs
