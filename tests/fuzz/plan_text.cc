// A saved plan: text from a file of the user's.
#include "bucketing/plan_text.hpp"
#include "tests/fuzz/input.hpp"

namespace {

using namespace noria::bucketing;

// Every element has a place of its own, within the arena.
void check_plan(const SavedPlan& saved, const Plan& plan) {
  uint64_t elements = 0;
  for (const Bucket& bucket : plan.buckets) {
    NORIA_CHECK(bucket.arena_offset + bucket.bytes <= plan.arena_bytes, "buckets lie in the arena");
    elements += bucket.numel;
  }
  for (const SavedPlan::OfTensor& tensor : saved.tensors) elements -= tensor.numel;
  NORIA_CHECK(elements == 0, "buckets hold all elements and no more");
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto saved = parse_plan({reinterpret_cast<const char*>(data), size}, "fuzz.plan");
  if (!saved.is_ok()) {
    NORIA_CHECK(noria::fuzz::is_one_line(saved.failure().text), "a refusal is one line");
    NORIA_CHECK(saved.failure().text.starts_with("fuzz.plan:"), "it names the file");
    return 0;
  }
  const std::string text = text_of(saved.value());
  const auto again = parse_plan(text, "again");
  NORIA_CHECK(again.is_ok(), "what is written is read");
  NORIA_CHECK(text_of(again.value()) == text, "as the same");

  std::vector<const SavedPlan::OfTensor*> by_id(saved->tensors.size());
  for (const SavedPlan::OfTensor& tensor : saved->tensors) by_id[tensor.id] = &tensor;
  TensorTable table;
  for (const SavedPlan::OfTensor* tensor : by_id)
    if (!table.add(tensor->name, tensor->dtype, tensor->numel).is_ok()) return 0;
  const auto plan = plan_of(saved.value(), table);
  NORIA_CHECK(plan.is_ok(), "a plan of just these tensors is taken");
  check_plan(saved.value(), plan.value());
  const auto once_more = plan_of(saved_of(plan.value(), table, saved->is_packed), table);
  NORIA_CHECK(once_more.is_ok(), "and saved again");
  NORIA_CHECK(fingerprint_of(once_more.value()) == fingerprint_of(plan.value()), "as the same");
  NORIA_CHECK(once_more->offsets == plan->offsets, "in the same places");
  return 0;
}
