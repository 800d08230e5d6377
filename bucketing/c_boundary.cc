#include "bucketing/c_boundary.hpp"

namespace noria::bucketing {
namespace {
std::string& text_of_this_thread() {
  thread_local std::string text;
  return text;
}
}  // namespace

noria_status refuse(const Failure& failure) {
  text_of_this_thread() = failure.text;
  return failure.code;
}

const std::string& last_refusal() { return text_of_this_thread(); }

Failure unusable(const void* handle, const std::string& name) {
  if (handle == nullptr) return {NORIA_E_ARG, name + " is NULL"};
  return {NORIA_E_STATE,
          name +
              " belongs to the process that forked this one: a child may not use it; "
              "it makes its own, or leaves noria to its parent"};
}

}  // namespace noria::bucketing
