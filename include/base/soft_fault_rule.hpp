// One rule of NORIA_SOFT_FAULTS, "OBJECT: WHEN COUNT=N do ACTION", and how it is read.
// soft_faults.hpp says what each word means.
//
// Strict: what is unknown, out of place or out of range refuses the rule, and the failure is one
// line that names the word, what is accepted, and the nearest word. Pure.
//
// Threads: any thread.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/clock.hpp"
#include "base/result.hpp"
#include "base/soft_devices.hpp"
#include "base/value_text.hpp"

namespace noria {

struct SoftFault {
  enum class Object : uint8_t { qp, port, call };
  enum class When : uint8_t { after, every, about };
  enum class Count : uint8_t { msgs, bytes, calls };
  enum class Action : uint8_t { fail, lose, mute, down, fatal };

  Object object = Object::qp;
  std::string name;  // which one; "*" for each
  When when = When::after;
  Count count = Count::msgs;
  uint64_t limit = 0;
  Action action = Action::fail;
  int code = 0;                      // of fail: ibv_wc_status of a request, errno value of a call
  Nanoseconds duration_ns = kNever;  // of lose, mute and down
  size_t part = 0;                   // of the text it stands in, from 1 on

  // Whether it is about this one: the number of a queue pair, the name of a device or a call.
  bool concerns(std::string_view one) const { return name == "*" || name == one; }
};

namespace detail {

template <size_t N>
using FaultWords = std::array<std::string_view, N>;
// In the order of the enumerators.
constexpr FaultWords<3> kFaultObjects{"qp", "port", "call"};
constexpr FaultWords<3> kFaultWhens{"after", "every", "about"};
constexpr FaultWords<3> kFaultCounts{"msgs", "bytes", "calls"};
constexpr FaultWords<5> kFaultActions{"fail", "lose", "mute", "down", "fatal"};
constexpr FaultWords<10> kFaultCalls{
    "alloc_pd",  "reg_mr",    "create_comp_channel", "create_cq", "create_srq",
    "create_qp", "modify_qp", "post_send",           "post_recv", "req_notify_cq"};
constexpr int kMaxFaultStatus = 22;  // IBV_WC_GENERAL_ERR is 21; one more belongs to tag matching
constexpr int kMaxFaultErrno = 133;

// "after, every or about".
inline std::string either_of(std::span<const std::string_view> words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i)
    text += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + std::string(words[i]);
  return text;
}

// The place of `word` among `words`; a failure says what it could be.
template <class Enum>
std::string take_fault_word(std::string_view word, std::span<const std::string_view> words,
                            const char* what, Enum* to) {
  const auto* found = std::find(words.data(), words.data() + words.size(), word);
  if (found == words.data() + words.size())
    return "'" + std::string(word) + "' is not " + what + "; it takes " + either_of(words) +
           (word.empty() ? "" : ", and the nearest is '" + nearest_word(word, words) + "'");
  *to = static_cast<Enum>(found - words.data());
  return "";
}

// "50ms"; an hour at most.
inline bool parse_duration(std::string_view text, Nanoseconds* out) {
  constexpr std::array<std::pair<std::string_view, Nanoseconds>, 3> kUnits{
      {{"us", 1_us}, {"ms", 1_ms}, {"s", 1_s}}};
  for (const auto& [unit, length] : kUnits) {
    if (!text.ends_with(unit)) continue;
    text.remove_suffix(unit.size());
    Nanoseconds number = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, number);
    if (error != std::errc() || stop != end || number < 1 || number > 3600_s / length) return false;
    *out = number * length;
    return true;
  }
  return false;
}

// The value of "key=value" where the key is `key`.
inline bool take_fault_value(std::string_view word, std::string_view key, std::string_view* value) {
  if (!word.starts_with(key) || word.substr(key.size(), 1) != "=") return false;
  *value = word.substr(key.size() + 1);
  return true;
}

inline std::string take_fault_object(std::string_view word, SoftFault* to) {
  const std::string whole(word);
  const std::string_view kind = take_until(&word, '=');
  std::string wrong = take_fault_word(kind, kFaultObjects, "an object", &to->object);
  if (!wrong.empty()) return wrong;
  to->name = word;
  if (to->name == "*" && to->object != SoftFault::Object::call) return "";
  uint64_t number = 0;
  switch (to->object) {
    case SoftFault::Object::qp: {
      const bool is_number = parse_uint(word, &number) && number > 0;
      to->name = std::to_string(number);
      return is_number ? "" : "'" + whole + "' is not accepted; qp takes * or a number from 1 on";
    }
    case SoftFault::Object::port:
      return is_soft_name(word)
                 ? ""
                 : "'" + whole + "' is not accepted; port takes * or a device's name";
    case SoftFault::Object::call: break;
  }
  size_t place = 0;
  return take_fault_word(word, kFaultCalls, "a call that can fail", &place);
}

// "after msgs=100"
inline std::string take_fault_trigger(std::string_view* text, SoftFault* to) {
  std::string wrong = take_fault_word(take_until(text, ' '), kFaultWhens, "a trigger", &to->when);
  if (!wrong.empty()) return wrong;
  *text = trimmed(*text);
  std::string_view word = take_until(text, ' ');
  const std::string whole(word);
  const std::span<const std::string_view> all(kFaultCounts);
  const bool is_call = to->object == SoftFault::Object::call;
  const auto counts = is_call ? all.subspan(2) : all.first(2);
  size_t place = 0;
  wrong = take_fault_word(take_until(&word, '='), counts, "a count", &place);
  if (!wrong.empty()) return wrong;
  to->count = is_call ? SoftFault::Count::calls : static_cast<SoftFault::Count>(place);
  const uint64_t least = to->when == SoftFault::When::after ? 0 : 1;
  constexpr uint64_t kMost = uint64_t{1} << 60;
  if (!parse_uint(word, &to->limit) || to->limit < least || to->limit > kMost)
    return "'" + whole + "' is not accepted; it takes a number from " + std::to_string(least) +
           " on, as 100 or 1M";
  return "";
}

// What stands behind the action's name.
inline std::string take_fault_detail(std::string_view word, SoftFault* to) {
  using Action = SoftFault::Action;
  std::string_view value;
  const std::string is_not = "'" + std::string(word) + "' is not accepted; ";
  if (to->action == Action::fatal) return word.empty() ? "" : is_not + "fatal stands alone";
  if (to->action == Action::fail) {
    const bool is_call = to->object == SoftFault::Object::call;
    const std::string key = is_call ? "errno" : "status";
    const int most = is_call ? kMaxFaultErrno : kMaxFaultStatus;
    uint64_t code = 0;
    if (!take_fault_value(word, key, &value) || !parse_uint(value, &code) || code < 1 ||
        code > static_cast<uint64_t>(most))
      return is_not + "fail takes " + key + "=1 to " + std::to_string(most);
    to->code = static_cast<int>(code);
    return "";
  }
  if (word.empty() && to->action == Action::down) return "";
  if (!take_fault_value(word, "for", &value) || !parse_duration(value, &to->duration_ns))
    return is_not + "it takes for=50ms, from 1us to 3600s";
  return "";
}

inline std::string take_fault_action(std::string_view text, SoftFault* to) {
  using Action = SoftFault::Action;
  std::string wrong =
      take_fault_word(take_until(&text, ' '), kFaultActions, "an action", &to->action);
  if (!wrong.empty()) return wrong;
  const auto fits = [to] {
    switch (to->object) {
      case SoftFault::Object::qp: return to->action < Action::down;
      case SoftFault::Object::port: return to->action >= Action::down;
      case SoftFault::Object::call: break;
    }
    return to->action == Action::fail;
  };
  if (!fits())
    return std::string(kFaultObjects[static_cast<size_t>(to->object)]) + " cannot do '" +
           std::string(kFaultActions[static_cast<size_t>(to->action)]) +
           "'; a qp can fail, lose or mute, a port go down or fatal, a call fail";
  return take_fault_detail(trimmed(text), to);
}

inline Result<SoftFault, std::string> parse_soft_fault(std::string_view text) {
  using Parsed = Result<SoftFault, std::string>;
  SoftFault fault;
  if (text.find(':') == std::string_view::npos)
    return Parsed("'" + std::string(text) +
                  "' is no rule, as qp=*: after msgs=100 do fail status=12");
  std::string wrong = take_fault_object(take_until(&text, ':'), &fault);
  text = trimmed(text);
  if (wrong.empty()) wrong = take_fault_trigger(&text, &fault);
  if (!wrong.empty()) return Parsed(std::move(wrong));
  text = trimmed(text);
  const std::string_view link = take_until(&text, ' ');
  if (link != "do")
    return Parsed("'" + std::string(link) + "' stands where 'do' and an action belong");
  wrong = take_fault_action(trimmed(text), &fault);
  if (!wrong.empty()) return Parsed(std::move(wrong));
  return fault;
}

}  // namespace detail

}  // namespace noria
