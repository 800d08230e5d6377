// A filter in the words of NCCL_IB_HCA, and the names of devices.
#include "base/hca_filter.hpp"

#include "tests/fuzz/input.hpp"

using noria::HcaFilter;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::vector<std::string> parts = noria::fuzz::Input(data, size).take_parts('\0');
  if (parts.empty()) return 0;
  const auto filter = HcaFilter::parse(parts.front());
  if (!filter) {
    NORIA_CHECK(noria::fuzz::is_one_line(filter.failure()), "a refusal is one line");
    return 0;
  }
  const bool is_turned = noria::detail::trimmed(parts.front()).starts_with('^');
  const auto others = HcaFilter::parse("^" + parts.front());
  for (size_t i = 1; i < parts.size(); ++i) {
    for (const int port : {1, 2, 255}) {
      const bool is_taken = filter->takes(parts[i], port);
      NORIA_CHECK(!filter->takes_all() || is_taken, "no entry takes all");
      if (is_turned || filter->takes_all()) continue;
      NORIA_CHECK(others && others->takes(parts[i], port) != is_taken, "^ takes the others");
      NORIA_CHECK(is_taken == (filter->says(parts[i], port) != nullptr), "an entry takes it");
    }
  }
  return 0;
}
