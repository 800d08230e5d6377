// CudaApi: the functions of CUDA's driver library, made to fail in words.
//
// The library is loaded when the first communicator of GPUs is made, so that the same libnoria.so
// serves where there is none, and stays for the life of the process: threads of its own may run in
// it. call<&CudaSymbols::event_record>(...) answers an Outcome, ask<>() of a function that may say
// "not yet" whether it is done; cuda_symbols.def says which is which. A failure names the function
// and the driver's words, and what to try where that is known. It may be an earlier kernel's, of
// whoever launched it: the driver tells of those late.
//
// Costs: what the driver's function does, a comparison, and an Outcome.
//
// Threads: any thread.
#pragma once

#include <cstdint>
#include <string>

#include "base/check.hpp"
#include "base/dl.hpp"
#include "bucketing/cuda_types.hpp"
#include "bucketing/failure.hpp"
#include "bucketing/library_table.hpp"

namespace noria::bucketing {

struct CudaSymbols {
#define NORIA_CUDA(member, function, arguments, required, answers) \
  cuda::Result(*member) arguments = nullptr;
#include "bucketing/cuda_symbols.def"
#undef NORIA_CUDA

  // Takes every row. The failure names the first function that the library lacks.
  static Outcome<CudaSymbols> load(const SharedObject& library);
};

// What cuda_symbols.def says of one member of CudaSymbols.
template <auto Member>
struct CudaRow;
#define NORIA_CUDA(member, function, arguments, required, how) \
  template <>                                                  \
  struct CudaRow<&CudaSymbols::member> {                       \
    static constexpr const char* name = #function;             \
    static constexpr Answers answers = how;                    \
  };
#include "bucketing/cuda_symbols.def"
#undef NORIA_CUDA

class CudaApi {
 public:
  // Loads and initialises it, once for each path; empty: libcuda.so.1. Valid for good.
  static Outcome<const CudaApi*> open(const std::string& path);
  CudaApi(const CudaApi&) = delete;
  CudaApi& operator=(const CudaApi&) = delete;

  template <auto Member, class... Args>
  NORIA_HOT Outcome<Ok> call(Args... args) const {
    static_assert(CudaRow<Member>::answers == Answers::done);
    const cuda::Result result = (symbols_.*Member)(args...);
    if (result == cuda::Result::success) [[likely]]
      return Ok{};
    return failed(CudaRow<Member>::name, result);
  }
  // Whether it is done.
  template <auto Member, class... Args>
  Outcome<bool> ask(Args... args) const {
    static_assert(CudaRow<Member>::answers == Answers::done_or_not);
    const cuda::Result result = (symbols_.*Member)(args...);
    if (result == cuda::Result::success) return true;
    if (result == cuda::Result::not_ready) return false;
    return failed(CudaRow<Member>::name, result);
  }

 private:
  CudaApi(SharedObject library, const CudaSymbols& symbols);
  NORIA_COLD Failure failed(const char* function, cuda::Result result) const;

  const SharedObject library_;
  const CudaSymbols symbols_;
};

}  // namespace noria::bucketing
