#include "bucketing/clock_offset.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/fd.hpp"

namespace noria::bucketing {
namespace {

// Each costs a round trip at start. The first finds ranks that come from elsewhere; the tightest of
// the rest is near the shortest round trip that the network has.
constexpr size_t kRounds = 10;
using Readings = std::array<ClockReading, kRounds>;

std::string pack(const Readings& readings, const std::string& boot_id) {
  std::string bytes(sizeof readings, '\0');
  std::memcpy(bytes.data(), readings.data(), sizeof readings);
  return bytes + boot_id;
}

}  // namespace

ClockOffset clock_offset(std::span<const ClockReading> mine, std::span<const ClockReading> root) {
  Nanoseconds least = -kNever, most = kNever;
  for (size_t i = 0; i < std::min(mine.size(), root.size()); ++i) {
    least = std::max(least, mine[i].entered - root[i].left);
    most = std::min(most, mine[i].left - root[i].entered);
  }
  return {.offset = least / 2 + most / 2,
          .error = most / 2 - least / 2 + 1,  // the halves were rounded
          .measured = mine.empty() ? 0 : mine.back().left};
}

Outcome<ClockOffset> measure_clock(ControlPlane& control, const std::string& boot_id,
                                   Nanoseconds deadline) {
  Readings mine;
  for (ClockReading& reading : mine) {
    reading.entered = now_ns();
    NORIA_TRY(control.all_gather("clock", "", deadline));
    reading.left = now_ns();
  }
  NORIA_TRY_ASSIGN(const std::vector<std::string> all,
                   control.all_gather("clock readings", pack(mine, boot_id), deadline));
  const std::string& root = all.front();
  if (root.size() < sizeof(Readings))
    return Failure{NORIA_E_INTERNAL,
                   "rank 0 sent " + std::to_string(root.size()) + " bytes of clock readings"};
  Readings of_root;
  std::memcpy(of_root.data(), root.data(), sizeof of_root);
  ClockOffset clock = clock_offset(mine, of_root);
  const bool is_one_host = !boot_id.empty() && root.substr(sizeof(Readings)) == boot_id;
  // A container may have a monotonic clock of its own: then 0 is out of bounds.
  if (is_one_host && clock.offset - clock.error <= 0 && 0 <= clock.offset + clock.error)
    clock.offset = clock.error = 0;
  return clock;
}

std::string read_boot_id() {
  const Fd file(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  std::array<char, 64> text{};
  const ssize_t n = ::read(file.get(), text.data(), text.size());
  return n > 0 ? std::string(text.data(), static_cast<size_t>(n)) : std::string();
}

}  // namespace noria::bucketing
