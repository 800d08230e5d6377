#include "bucketing/window.hpp"

namespace noria::bucketing {
namespace {

void sort_once(std::vector<uint32_t>& ids) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

}  // namespace

void Window::add(const Readiness& pass, const PassRules& rules) {
  for (uint32_t id = 0; id < pass.tensors(); ++id) {
    const bool has_fired = pass.fires(id) > 0;
    if (has_fired) used_[id] = true;
    if (pass.is_late(id)) complaints_.late.push_back(id);
    // Declaring a tensor unused is no excuse where the graph is said to stay, and brought it.
    const bool is_broken = rules.is_learned && pass.is_closed(id) && pass.expected(id) != 0;
    const bool is_owed = pass.owed(id) != 0 || is_broken;
    if (!is_owed) continue;
    const bool is_counted = pass.expected(id) != Readiness::kUncertain;
    if (has_fired && is_counted && (rules.must_all_come || rules.is_learned))
      complaints_.partly.push_back(id);
    else if (rules.is_learned || (rules.must_all_come && rules.is_last && !used_[id]))
      complaints_.missing.push_back(id);
  }
  for (auto* ids : {&complaints_.missing, &complaints_.partly, &complaints_.late}) sort_once(*ids);
}

}  // namespace noria::bucketing
