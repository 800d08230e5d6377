// NORIA_SOFT_FAULTS: the text of a schedule of faults.
#include "base/soft_faults.hpp"

#include "tests/fuzz/input.hpp"

namespace {

using noria::SoftFault;
using noria::SoftFaults;
using Action = SoftFault::Action;
using Object = SoftFault::Object;

template <class Enum, size_t N>
std::string word_of(const noria::detail::FaultWords<N>& words, Enum value) {
  NORIA_CHECK(static_cast<size_t>(value) < N, "every enumerator has its word");
  return std::string(words[static_cast<size_t>(value)]);
}

std::string text_of(const SoftFaults& faults) {
  std::string text = "seed=" + std::to_string(faults.seed);
  for (const SoftFault& rule : faults.rules) {
    text += "; " + word_of(noria::detail::kFaultObjects, rule.object) + "=" + rule.name + ": " +
            word_of(noria::detail::kFaultWhens, rule.when) + " " +
            word_of(noria::detail::kFaultCounts, rule.count) + "=" + std::to_string(rule.limit) +
            " do " + word_of(noria::detail::kFaultActions, rule.action);
    if (rule.action == Action::fail)
      text += (rule.object == Object::call ? " errno=" : " status=") + std::to_string(rule.code);
    else if (rule.duration_ns != noria::kNever)
      text += " for=" + std::to_string(rule.duration_ns / 1000) + "us";
  }
  return text;
}

void check_rule(const SoftFault& rule) {
  const bool is_call = rule.object == Object::call;
  NORIA_CHECK(is_call == (rule.count == SoftFault::Count::calls), "calls are counted of calls");
  NORIA_CHECK(!is_call || rule.action == Action::fail, "a call can only fail");
  NORIA_CHECK((rule.object == Object::port) == (rule.action >= Action::down), "ports go down");
  NORIA_CHECK((rule.action == Action::fail) == (rule.code > 0), "a failure has a code");
  NORIA_CHECK(rule.limit > 0 || rule.when == SoftFault::When::after, "what recurs has a gap");
  NORIA_CHECK(rule.duration_ns > 0, "a time is longer than none");
  NORIA_CHECK(rule.concerns(rule.name), "a rule concerns whom it names");
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto faults = noria::parse_soft_faults(noria::printable(text));
  if (!faults) {
    NORIA_CHECK(noria::fuzz::is_one_line(faults.failure()), "a refusal is one line");
    NORIA_CHECK(faults.failure().starts_with("part "), "it names the part");
    return 0;
  }
  for (const SoftFault& rule : faults->rules) check_rule(rule);

  // Written down, what was accepted is accepted again and is the same.
  const std::string written = text_of(*faults);
  const auto again = noria::parse_soft_faults(written);
  NORIA_CHECK(again.is_ok(), "what is written is accepted");
  NORIA_CHECK(text_of(*again) == written, "and is the same");
  return 0;
}
