// NcclApi: the functions of NCCL, made to fail in words.
//
// Loaded when the first communicator of GPUs is made, and never unloaded, as CudaApi; the one that
// the process uses already where that has NCCL's usual name, so that a caller's ncclComm_t is of
// the same library. 2.19 or later. call<&NcclSymbols::group_start>(...) answers an Outcome; ask<>()
// of a function that may go on by itself, whether it is done. A failure names the function, NCCL's
// words for the number and NCCL's last words, which say more.
//
// Threads: any thread.
#pragma once

#include <string>

#include "base/check.hpp"
#include "base/dl.hpp"
#include "bucketing/failure.hpp"
#include "bucketing/library_table.hpp"
#include "bucketing/nccl_types.hpp"

namespace noria::bucketing {

struct NcclSymbols {
#define NORIA_NCCL(member, function, type, arguments, required, answers) \
  type(*member) arguments = nullptr;
#include "bucketing/nccl_symbols.def"
#undef NORIA_NCCL

  // Takes every row. The failure names the first required function that the library lacks.
  static Outcome<NcclSymbols> load(const SharedObject& library);
};

// What nccl_symbols.def says of one member of NcclSymbols.
template <auto Member>
struct NcclRow;
#define NORIA_NCCL(member, function, type, arguments, required, how) \
  template <>                                                        \
  struct NcclRow<&NcclSymbols::member> {                             \
    static constexpr const char* name = #function;                   \
    static constexpr Answers answers = how;                          \
  };
#include "bucketing/nccl_symbols.def"
#undef NORIA_NCCL

class NcclApi {
 public:
  // Loads it, once for each path; empty: libnccl.so.2. Valid for good.
  static Outcome<const NcclApi*> open(const std::string& path);
  NcclApi(const NcclApi&) = delete;
  NcclApi& operator=(const NcclApi&) = delete;

  int version() const { return version_; }
  const NcclSymbols& symbols() const { return symbols_; }

  template <auto Member, class... Args>
  Outcome<Ok> call(Args... args) const {
    static_assert(NcclRow<Member>::answers == Answers::done);
    const nccl::Result result = (symbols_.*Member)(args...);
    if (result == nccl::Result::success) [[likely]]
      return Ok{};
    return failed(NcclRow<Member>::name, result);
  }
  // Whether it is done.
  template <auto Member, class... Args>
  NORIA_HOT Outcome<bool> ask(Args... args) const {
    static_assert(NcclRow<Member>::answers == Answers::done_or_not);
    const nccl::Result result = (symbols_.*Member)(args...);
    if (result == nccl::Result::success) [[likely]]
      return true;
    if (result == nccl::Result::in_progress) return false;
    return failed(NcclRow<Member>::name, result);
  }

  // `doing` names what failed: a function, or an operation under way.
  NORIA_COLD Failure failed(const char* doing, nccl::Result result) const;

 private:
  NcclApi(SharedObject library, const NcclSymbols& symbols, int version);

  const SharedObject library_;
  const NcclSymbols symbols_;
  const int version_;
};

// "2.19.3"
std::string nccl_version_text(int version);

}  // namespace noria::bucketing
