#include "bucketing/reducer_words.hpp"

#include <string>

namespace noria::bucketing {

Failure no_step_open(const char* call) {
  return Failure{NORIA_E_STATE, std::string(call) +
                                    " with no step open: it comes after noria_step_begin(), and "
                                    "every call must return before noria_step_end() is called"};
}

Failure unknown_id(uint32_t id, const TensorTable& tensors) {
  return Failure{NORIA_E_ARG, "no tensor has id " + std::to_string(id) + ": " +
                                  std::to_string(tensors.size()) + " were registered"};
}

Failure wrong_pointer(uint32_t id, const TensorTable& tensors, bool has_views) {
  return Failure{NORIA_E_ARG,
                 "tensor " + tensors.describe(id) +
                     (has_views ? ": in arena mode the gradient lies in noria_reducer_view(); "
                                  "pass that pointer or NULL"
                                : ": the gradient is NULL")};
}

Failure came_late(uint32_t id, const TensorTable& tensors, const Readiness& step, bool is_learned) {
  const int32_t fires = step.expected(id);
  const std::string times = fires == 1 ? "once" : std::to_string(fires) + " times";
  std::string why =
      " was given before in this step, which fails on all ranks: call "
      "noria_grad_ready() " +
      times + ", after the gradient was accumulated, or say in expected_fires how often";
  if (is_learned)
    why = " came " + (fires == 0 ? std::string("never") : times) +
          " in the first step, from which the static graph was learned, and more often now: the "
          "step fails on all ranks; set static_graph to 0 where the graph changes";
  if (step.is_closed(id))
    why =
        " was declared unused before in this step, which fails on all ranks: call "
        "noria_grad_unused() once, when no gradient will come";
  return Failure{NORIA_E_DUP_READY, "tensor " + tensors.describe(id) + why};
}

Failure ended_meanwhile(uint32_t id, const TensorTable& tensors) {
  return Failure{NORIA_E_STATE, "tensor " + tensors.describe(id) +
                                    ": noria_step_end() was called while its result was waited "
                                    "for: take it when that has returned"};
}

}  // namespace noria::bucketing
