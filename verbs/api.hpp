// Api: the functions of one verbs library, made to fail alike.
//
// Symbols is the raw table, with the library's own types. Api::call<&Symbols::create_qp>(...) looks
// up in symbols.def how that function reports failure and answers a Result or a Status; an optional
// function that the library lacks answers Code::unsupported. A failure is logged once, with the
// function, the device and the system's text; probe<>() is the same in silence, for questions whose
// answer may be no. A test fills a Symbols itself: there are no mocks and no virtuals.
//
// Api also counts the objects that are open (handle.hpp), so that a test can ask for an empty
// ledger.
//
// Threads: any thread, as far as the library allows it for the object concerned.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <string>
#include <type_traits>

#include "base/dl.hpp"
#include "base/result.hpp"
#include "base/verbs_extensions.hpp"

namespace noria::verbs {

enum class Fails : uint8_t {
  never,           // has nothing to report
  by_null,         // a null pointer, errno set
  by_errno_value,  // returns the errno value; errno itself may be stale
  by_minus_one,    // returns -1, errno set
};

struct Symbols {
#define NORIA_VERB(member, function, since, required, fails) decltype(&::function) member = nullptr;
#define NORIA_VERB_EXTENSION(member, type, function) type member = nullptr;
#include "verbs/symbols.def"
#undef NORIA_VERB
#undef NORIA_VERB_EXTENSION

  // Takes every row from `library`. The failure names the first required function it lacks.
  static Result<Symbols, std::string> load(const SharedObject& library);
};

// What symbols.def says of one member of Symbols.
template <auto Member>
struct SymbolRow;
#define NORIA_VERB(member, function, since, required, how) \
  template <>                                              \
  struct SymbolRow<&Symbols::member> {                     \
    static constexpr const char* name = #function;         \
    static constexpr Fails fails = how;                    \
  };
#define NORIA_VERB_EXTENSION(member, type, function)
#include "verbs/symbols.def"
#undef NORIA_VERB
#undef NORIA_VERB_EXTENSION

// What is lost when a verbs function fails with this errno value.
Code code_of_errno(int error);

class Api {
 public:
  static Result<std::shared_ptr<const Api>, std::string> load(const std::string& path);
  static std::shared_ptr<const Api> from_symbols(const Symbols& symbols);
  Api(const Api&) = delete;
  Api& operator=(const Api&) = delete;

  // `on` names the device in the log; null where none is open yet.
  template <auto Member, class... Args>
  auto call(const ibv_context* on, Args... args) const {
    return invoke<Member, true>(on, args...);
  }
  template <auto Member, class... Args>
  auto probe(const ibv_context* on, Args... args) const {
    return invoke<Member, false>(on, args...);
  }

  // ibv_query_port through the extended operation where the context has one: the plain function
  // fills only the fields that its first version knew.
  // `speed`, where it is asked for, is that of a lane in the library's wider form; 0 where it has
  // none.
  Status query_port(ibv_context* context, uint8_t port, ibv_port_attr* attr,
                    uint32_t* speed = nullptr) const;

  // The next queue whose event waits on a non-blocking channel; null when there is none.
  Result<ibv_cq*> next_cq_event(ibv_comp_channel* channel) const;

  const Symbols& symbols() const { return symbols_; }

  // The ledger, kept by handle.hpp. relaxed: plain counters, nothing is published through them.
  void note_opened() const { live_objects_.fetch_add(1, std::memory_order_relaxed); }
  void note_closed(const char* function, const Status& status) const;
  int64_t live_objects() const { return live_objects_.load(std::memory_order_relaxed); }
  uint64_t failed_closes() const { return failed_closes_.load(std::memory_order_relaxed); }

 private:
  Api() = default;

  template <auto Member, bool kLoud, class... Args>
  auto invoke(const ibv_context* on, Args... args) const {
    using Row = SymbolRow<Member>;
    const auto function = symbols_.*Member;
    using Answer = decltype(function(args...));
    if constexpr (Row::fails == Fails::never) {
      return function(args...);
    } else if constexpr (Row::fails == Fails::by_null) {
      using Value = std::remove_cv_t<Answer>;
      if (function == nullptr) return Result<Value>(Status(Code::unsupported));
      errno = 0;
      const Value value = function(args...);
      if (value != nullptr) return Result<Value>(value);
      return Result<Value>(failed(Row::name, on, errno, kLoud));
    } else {
      if (function == nullptr) return Status(Code::unsupported);
      errno = 0;
      const int answer = function(args...);
      if (answer == 0) return Status();
      if constexpr (Row::fails == Fails::by_minus_one) {
        return answer > 0 ? Status() : failed(Row::name, on, errno, kLoud);
      } else {
        // Some providers answer -1 or -errno here; a positive value is the documented one.
        const int error = answer > 0 ? answer : errno != 0 ? errno : -answer;
        return failed(Row::name, on, error, kLoud);
      }
    }
  }

  static Status failed(const char* function, const ibv_context* on, int error, bool is_loud);

  std::unique_ptr<SharedObject> library_;  // null where a test filled the table
  Symbols symbols_;
  mutable std::atomic<int64_t> live_objects_{0};
  mutable std::atomic<uint64_t> failed_closes_{0};
};

}  // namespace noria::verbs
