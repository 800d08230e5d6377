// Window: the passes from one synchronised step to the next, and what they brought of each tensor.
//
// A pass is what lies between begin and end of a step. Those that only accumulate are the window's
// earlier passes; the synchronised one ends it. A tensor counts as used if any of them brought it,
// and what was wrong in any of them is a complaint of the step that ends the window.
//
// Threads: one at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "bucketing/readiness.hpp"
#include "bucketing/verdict.hpp"

namespace noria::bucketing {

// By what a pass is judged.
struct PassRules {
  bool must_all_come = true;  // else a tensor that took no part is no complaint
  // The number of fires was learned of a static graph: each pass must have exactly these.
  bool is_learned = false;
  bool is_last = true;  // it ends the window
};

class Window {
 public:
  void restart(uint32_t tensors) {
    used_.assign(tensors, false);
    complaints_ = {};
  }

  // After the pass: nothing fires any more.
  void add(const Readiness& pass, const PassRules& rules);

  // In a pass that was added.
  bool used(uint32_t id) const { return used_[id]; }
  bool is_any_used() const { return std::find(used_.begin(), used_.end(), true) != used_.end(); }
  // Each id once, in order.
  const Complaints& complaints() const { return complaints_; }

 private:
  std::vector<bool> used_;
  Complaints complaints_;
};

}  // namespace noria::bucketing
