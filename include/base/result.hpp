// Result<T, E>: a value or a failure. The subset of std::expected that this project needs.
//
// E defaults to Status (8 bytes, for verbs and transport). Code that speaks to people uses
// Result<T, Failure> from bucketing/failure.hpp, whose failures carry text.
// Reading the value of a failure is a bug and ends the process with a message.
//
//   NORIA_TRY(expr)               returns the failure of a Status or Result to the caller
//   NORIA_TRY_ASSIGN(decl, expr)  the same, else binds the value
//
// Threads: a value; any thread.
#pragma once

#include <type_traits>
#include <utility>
#include <variant>

#include "base/check.hpp"
#include "base/status.hpp"

namespace noria {

template <class T, class E = Status>
class [[nodiscard]] Result {
  static_assert(!std::is_same_v<T, E>);

 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT: by design
  Result(E failure) : state_(std::in_place_index<1>, std::move(failure)) {}  // NOLINT: by design

  bool is_ok() const { return state_.index() == 0; }
  explicit operator bool() const { return is_ok(); }

  T& value() & {
    NORIA_CHECK(is_ok(), "value of a failed Result was read");
    return *std::get_if<0>(&state_);
  }
  const T& value() const& {
    NORIA_CHECK(is_ok(), "value of a failed Result was read");
    return *std::get_if<0>(&state_);
  }
  T&& value() && {
    NORIA_CHECK(is_ok(), "value of a failed Result was read");
    return std::move(*std::get_if<0>(&state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  const E& failure() const& {
    NORIA_CHECK(!is_ok(), "failure of a good Result was read");
    return *std::get_if<1>(&state_);
  }
  E&& failure() && {
    NORIA_CHECK(!is_ok(), "failure of a good Result was read");
    return std::move(*std::get_if<1>(&state_));
  }

 private:
  std::variant<T, E> state_;
};

// The same with nothing to return but success.
struct Ok {};

namespace detail {
inline bool succeeded(const Status& status) { return status.is_ok(); }
inline Status take_failure(Status&& status) { return status; }
template <class T, class E>
bool succeeded(const Result<T, E>& result) {
  return result.is_ok();
}
template <class T, class E>
E take_failure(Result<T, E>&& result) {
  return std::move(result).failure();
}
}  // namespace detail

#define NORIA_CONCAT_INNER(a, b) a##b
#define NORIA_CONCAT(a, b) NORIA_CONCAT_INNER(a, b)

#define NORIA_TRY(expr)                                                  \
  do {                                                                   \
    auto noria_try_result = (expr);                                      \
    if (!::noria::detail::succeeded(noria_try_result))                   \
      return ::noria::detail::take_failure(std::move(noria_try_result)); \
  } while (false)

#define NORIA_TRY_ASSIGN_INNER(temp, decl, expr)       \
  auto temp = (expr);                                  \
  if (!temp.is_ok()) return std::move(temp).failure(); \
  decl = std::move(temp).value()
#define NORIA_TRY_ASSIGN(decl, expr) \
  NORIA_TRY_ASSIGN_INNER(NORIA_CONCAT(noria_try_, __LINE__), decl, expr)

}  // namespace noria
