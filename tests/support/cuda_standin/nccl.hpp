// The entry points of NCCL that the stand-in exports, with the types that its ABI gives them.
//
// Threads: any thread, a communicator one at a time, as NCCL's.
#pragma once

#include <cstddef>

namespace noria::standin {

struct UniqueId {
  char bytes[128];
};

// The beginning of ncclConfig_t, as far as it is read.
struct NcclConfig {
  size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
};

enum NcclResult : int {
  kNcclSuccess = 0,
  kNcclUnhandledCudaError = 1,
  kNcclSystemError = 2,
  kNcclInternalError = 3,
  kNcclInvalidArgument = 4,
  kNcclInvalidUsage = 5,
  kNcclRemoteError = 6,
  kNcclInProgress = 7,
};

}  // namespace noria::standin

#pragma GCC visibility push(default)
extern "C" {

int ncclGetVersion(int* version);
const char* ncclGetErrorString(int result);
const char* ncclGetLastError(void* comm);
int ncclGetUniqueId(noria::standin::UniqueId* id);

int ncclCommInitRank(void** comm, int ranks, noria::standin::UniqueId id, int rank);
int ncclCommInitRankConfig(void** comm, int ranks, noria::standin::UniqueId id, int rank,
                           noria::standin::NcclConfig* config);
int ncclCommFinalize(void* comm);
int ncclCommDestroy(void* comm);
int ncclCommAbort(void* comm);
int ncclCommGetAsyncError(void* comm, int* error);
int ncclCommCount(void* comm, int* count);
int ncclCommUserRank(void* comm, int* rank);
int ncclCommCuDevice(void* comm, int* device);
int ncclCommRegister(void* comm, void* memory, size_t bytes, void** handle);
int ncclCommDeregister(void* comm, void* handle);

int ncclAllReduce(const void* in, void* out, size_t count, int dtype, int op, void* comm,
                  void* stream);
int ncclReduce(const void* in, void* out, size_t count, int dtype, int op, int root, void* comm,
               void* stream);
int ncclReduceScatter(const void* in, void* out, size_t count, int dtype, int op, void* comm,
                      void* stream);
int ncclAllGather(const void* in, void* out, size_t count, int dtype, void* comm, void* stream);
int ncclBroadcast(const void* in, void* out, size_t count, int dtype, int root, void* comm,
                  void* stream);
int ncclGroupStart();
int ncclGroupEnd();

}  // extern "C"
#pragma GCC visibility pop
