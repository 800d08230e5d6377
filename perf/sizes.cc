#include "perf/sizes.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

namespace noria::perf {

std::optional<uint64_t> parse_size(std::string_view text) {
  double number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc() || !(number >= 0) || text.front() == '-') return std::nullopt;
  std::string_view suffix = text.substr(static_cast<size_t>(end - text.data()));
  int power = 0;
  if (!suffix.empty()) {
    constexpr std::string_view kSuffixes = "KMGT";
    const auto at =
        kSuffixes.find(static_cast<char>(std::toupper(static_cast<unsigned char>(suffix.front()))));
    if (at != std::string_view::npos) {
      power = static_cast<int>(at) + 1;
      suffix.remove_prefix(1);
    }
  }
  if (!suffix.empty() && suffix != "B" && !(power > 0 && suffix == "iB")) return std::nullopt;
  const double bytes = std::floor(std::ldexp(number, 10 * power));
  if (!(bytes < 0x1p62)) return std::nullopt;
  return static_cast<uint64_t>(bytes);
}

std::vector<uint64_t> sizes_of(const Sweep& sweep) {
  std::vector<uint64_t> sizes;
  uint64_t size = sweep.min_bytes;
  while (size <= sweep.max_bytes) {
    sizes.push_back(size);
    // From nothing, a factor leads nowhere: go on with one byte.
    const uint64_t next = sweep.step_factor >= 2 ? std::max<uint64_t>(size * sweep.step_factor, 1)
                                                 : size + sweep.step_bytes;
    if (next <= size) break;
    size = next;
  }
  return sizes;
}

}  // namespace noria::perf
