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

Outcome<Ok> check_stream(const noria_stream* stream) {
  if (stream == nullptr) return Ok{};
  NORIA_TRY_ASSIGN(const noria_stream copy, read_struct(stream, "noria_stream"));
  if (copy.kind == NORIA_STREAM_HOST) return Ok{};
  if (copy.kind == NORIA_STREAM_CUDA)
    return Failure{NORIA_E_UNSUPPORTED,
                   "noria_stream.kind is NORIA_STREAM_CUDA, and these gradients are of the host: "
                   "give NULL and memory of the host"};
  return Failure{NORIA_E_ARG,
                 "noria_stream.kind is " + std::to_string(copy.kind) + ": it takes 0 or 1"};
}

}  // namespace noria::bucketing
