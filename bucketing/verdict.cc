#include "bucketing/verdict.hpp"

#include <algorithm>

#include "base/value_text.hpp"

namespace noria::bucketing {
namespace {

// The larger, the graver.
enum Verdict : int32_t {
  kGood = 0,
  kNonfinite = 1,
  kHook = 2,
  kLate = 3,
  kMissing = 4,
  kReset = 5
};

constexpr size_t kShownTensors = 8;
constexpr size_t kShownRanks = 8;
constexpr size_t kShownName = 96;  // bytes of a name

const char* advice(noria_status code) {
  switch (code) {
    case NORIA_E_MISSING:
      return "call noria_grad_ready() for every tensor in every step as often as is expected of "
             "it, "
             "and noria_grad_unused() for those that took no part";
    case NORIA_E_DUP_READY:
      return "call noria_grad_ready() once a tensor and step, after its gradient was accumulated, "
             "or say in expected_fires how often";
    case NORIA_E_NONFINITE:
      return "skip the step on every rank with noria_reducer_reset(), scale the loss down where "
             "sums overflow, or let such values pass with NORIA_NONFINITE_PASS";
    case NORIA_E_HOOK:
      return "mend what the hook complains of, or call noria_reducer_reset() on every rank and go "
             "on "
             "without this step";
    default: return "call noria_reducer_reset() on every rank, then begin the next step";
  }
}

}  // namespace

const char* hook_moment_text(noria_hook_moment moment) {
  return moment == NORIA_HOOK_BEFORE ? "before it was sent" : "after it was reduced";
}

std::string names_of(const std::vector<uint32_t>& ids, const TensorTable& tensors) {
  std::string text;
  for (size_t i = 0; i < ids.size() && i < kShownTensors; ++i) {
    const std::string& name = tensors[ids[i]].name;
    text += i == 0 ? "'" : ", '";
    text += printable(name.substr(0, kShownName)) + (name.size() <= kShownName ? "" : "...");
    text += "'";
  }
  if (ids.size() > kShownTensors) text += " and others";
  return text + " (" + std::to_string(ids.size()) + " of " + std::to_string(tensors.size()) +
         (tensors.size() == 1 ? " tensor)" : " tensors)");
}

int32_t verdict_of(const Complaints& complaints) {
  if (complaints.was_reset) return kReset;
  if (!complaints.missing.empty() || !complaints.partly.empty()) return kMissing;
  if (!complaints.late.empty()) return kLate;
  if (complaints.hook) return kHook;
  return complaints.nonfinite.empty() && complaints.overflowed.empty() ? kGood : kNonfinite;
}

noria_status code_of(int32_t verdict) {
  switch (verdict) {
    case kGood: return NORIA_OK;
    case kNonfinite: return NORIA_E_NONFINITE;
    case kHook: return NORIA_E_HOOK;
    case kLate: return NORIA_E_DUP_READY;
    case kMissing: return NORIA_E_MISSING;
    case kReset: return NORIA_E_ABORTED;
    default: return NORIA_E_INTERNAL;
  }
}

std::string describe(const Complaints& complaints, const TensorTable& tensors) {
  std::string text;
  const auto add = [&text](const std::string& complaint) {
    text += (text.empty() ? "" : " and ") + complaint;
  };
  if (complaints.was_reset) add("was reset in the midst of the step");
  if (!complaints.missing.empty()) add("did not give " + names_of(complaints.missing, tensors));
  if (!complaints.partly.empty())
    add("gave less often than expected " + names_of(complaints.partly, tensors));
  if (!complaints.late.empty()) add("gave too often " + names_of(complaints.late, tensors));
  if (!complaints.nonfinite.empty())
    add("gave values that are not finite in bucket " + std::to_string(complaints.nonfinite_bucket) +
        ", " + names_of(complaints.nonfinite, tensors));
  if (!complaints.overflowed.empty())
    add("has sums that are not finite in its shard of bucket " +
        std::to_string(complaints.overflowed_bucket) + ", " +
        names_of(complaints.overflowed, tensors) + ", though all gradients are");
  if (complaints.hook) {
    const HookComplaint& hook = *complaints.hook;
    add("had its hook fail for bucket " + std::to_string(hook.bucket) + ' ' +
        hook_moment_text(hook.moment) + ", with code " + std::to_string(hook.code) +
        (hook.text.empty() ? "" : ": '" + hook.text + "'"));
  }
  return text;
}

std::string told_of(const Complaints& complaints, const TensorTable& tensors) {
  const int32_t verdict = verdict_of(complaints);
  if (verdict == kGood) return {};
  return static_cast<char>('0' + verdict) + describe(complaints, tensors);
}

int32_t gravest_of(const std::vector<std::string>& told) {
  int32_t gravest = kGood;
  for (const std::string& words : told)
    if (!words.empty()) gravest = std::max(gravest, words[0] - '0');
  return gravest;
}

Failure compose_failure(int32_t verdict, uint64_t step, const std::vector<std::string>& told) {
  std::string text = "step " + std::to_string(step) + " failed: ";
  size_t shown = 0, complaining = 0;
  for (size_t rank = 0; rank < told.size(); ++rank) {
    if (told[rank].empty() || ++complaining > kShownRanks) continue;
    text +=
        (shown++ == 0 ? "rank " : "; rank ") + std::to_string(rank) + " " + told[rank].substr(1);
  }
  if (complaining > shown) text += "; and " + std::to_string(complaining - shown) + " more ranks";
  const noria_status code = code_of(verdict);
  return Failure{code, text + "; " + advice(code)};
}

}  // namespace noria::bucketing
