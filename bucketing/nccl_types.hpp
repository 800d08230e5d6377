// The types and numbers of NCCL's API that noria uses, by the library's ABI.
//
// nccl.h is not needed to build: these are facts of an interface that stays as it is. Data types
// and operations are numbered as noria_dtype and noria_op, which are NCCL's.
//
// Threads: values.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>

#include "bucketing/cuda_types.hpp"

namespace noria::bucketing::nccl {

using Comm = struct CommOfLibrary*;

struct UniqueId {
  char bytes[128];
};

// What every function that can fail returns. Those that noria tells apart.
enum class Result : int {
  success = 0,
  unhandled_cuda_error = 1,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
  in_progress = 7,
};

// A version as ncclGetVersion() tells it.
constexpr int version_code(int major, int minor, int patch) {
  return major * 10000 + minor * 100 + patch;
}
// The first with ncclCommRegister(), and whose non-blocking communicators serve.
inline constexpr int kOldestVersion = version_code(2, 19, 0);

// How a communicator is made, as NCCL 2.19 knows it; later libraries fill in what they added.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = kOldestVersion;
  int blocking = INT_MIN;  // INT_MIN and null: as the library likes
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
};
static_assert(sizeof(Config) == 48);

}  // namespace noria::bucketing::nccl
