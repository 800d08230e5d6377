// The faults that NORIA_SOFT_FAULTS sets on the software HCA:
//
//   seed=7; qp=*: after msgs=100 do fail status=12; port=mlx0: after bytes=1M do down for=50ms
//
// Parts stand between ';'. One may be the seed (1 where none is said); every other is a rule
// "OBJECT: WHEN COUNT=N do ACTION":
//
//   qp=*, qp=3       every queue pair, or the third that the process makes   counts msgs, bytes
//     fail status=12   the request fails with this ibv_wc_status; nothing of it takes effect
//     lose for=50ms    for that long what it sends is lost on the way
//     mute for=50ms    for that long what it sends takes effect, and no answer comes back
//   port=*, port=mlx0  the port of a device                                  counts msgs, bytes
//     down for=50ms    down, and up again; without "for" it stays down
//     fatal            the device is lost
//   call=create_qp   a function of the verbs, without ibv_                   counts calls
//     fail errno=12    it fails with this errno value
//
//   after   the first N pass, the next one meets the fault, once
//   every   the same again after each N more
//   about   again and again; each gap is drawn from the seed, 1 to 2N - 1
//
// A count is of requests, calls or payload, never of time: the same seed gives the same schedule.
//
// Strict: what is unknown, out of place or out of range refuses the whole text, and the failure is
// one line that names the part, the word, what is accepted, and the nearest word. Pure.
//
// Threads: any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "base/soft_devices.hpp"
#include "base/soft_fault_rule.hpp"
#include "base/value_text.hpp"

namespace noria {

struct SoftFaults {
  uint64_t seed = 1;
  std::vector<SoftFault> rules;
};

constexpr size_t kMaxSoftFaults = 64;

namespace detail {
inline std::string fault_part(size_t part) { return "part " + std::to_string(part) + ": "; }
}  // namespace detail

// The rules in order; none for an empty text.
inline Result<SoftFaults, std::string> parse_soft_faults(std::string_view text) {
  using Parsed = Result<SoftFaults, std::string>;
  SoftFaults faults;
  bool has_seed = false;
  text = detail::trimmed(text);
  for (size_t part = 1; !text.empty(); ++part, text = detail::trimmed(text)) {
    const std::string where = detail::fault_part(part);
    const std::string_view word = detail::take_until(&text, ';');
    std::string_view value;
    if (detail::take_fault_value(word, "seed", &value)) {
      if (std::exchange(has_seed, true)) return Parsed(where + "'seed' stands twice");
      if (!detail::parse_uint(value, &faults.seed))
        return Parsed(where + "'" + std::string(word) + "' is not accepted; it takes a number");
      continue;
    }
    auto fault = detail::parse_soft_fault(word);
    if (!fault.is_ok()) return Parsed(where + fault.failure());
    if (faults.rules.size() == kMaxSoftFaults)
      return Parsed(where + "there is room for " + std::to_string(kMaxSoftFaults) + " rules");
    fault->part = part;
    faults.rules.push_back(std::move(fault).value());
  }
  return faults;
}

// Empty, or which rule is about a port that none of the devices has.
inline std::string unknown_fault_port(const SoftFaults& faults,
                                      const std::vector<SoftDevice>& devices) {
  std::vector<std::string_view> names;
  for (const SoftDevice& device : devices) names.emplace_back(device.name);
  for (const SoftFault& rule : faults.rules) {
    const bool is_known = std::any_of(names.begin(), names.end(),
                                      [&](std::string_view name) { return rule.concerns(name); });
    if (rule.object == SoftFault::Object::port && !is_known)
      return detail::fault_part(rule.part) + "'port=" + rule.name +
             "' is none of the devices; the nearest is '" + nearest_word(rule.name, names) + "'";
  }
  return "";
}

}  // namespace noria
