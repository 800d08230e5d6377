// A library of NCCL's required functions, which answer that all is well and do nothing: none of
// those that may be missing. Its version is bare_nccl.c's.
#include "bucketing/nccl_types.hpp"

namespace {
namespace nccl = noria::bucketing::nccl;
namespace cuda = noria::bucketing::cuda;
}  // namespace

#define NORIA_IF_true(text) text
#define NORIA_IF_false(text)
#define NORIA_NCCL(member, function, type, arguments, required, answers)      \
  NORIA_IF_##required(extern "C" __attribute__((visibility("default"), weak)) \
                      type function arguments;                                \
                      type function arguments { return {}; })
#include "bucketing/nccl_symbols.def"
#undef NORIA_NCCL
