/* noria/comm.h: communicators of ranks, and collectives on them.
 *
 *   noria_unique_id id; noria_get_unique_id(&id);          on rank 0, then carry it to the others
 *   noria_comm_create(&config, &comm);                     every rank
 *   noria_all_reduce(comm, in, out, count, NORIA_FLOAT32, NORIA_SUM, NULL, NULL);
 *   noria_comm_destroy(comm);
 *
 * Gradients one by one, while the backward pass runs: noria/bucketing.h, which includes this.
 * The rules of this boundary stand in noria.h.
 */
#ifndef NORIA_COMM_H
#define NORIA_COMM_H

#include <noria/noria.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- types ----------------------------------------------------------------------------------- */

typedef int32_t noria_dtype; /* numbers are NCCL's */
enum {
  NORIA_INT8 = 0,
  NORIA_UINT8 = 1,
  NORIA_INT32 = 2,
  NORIA_UINT32 = 3,
  NORIA_INT64 = 4,
  NORIA_UINT64 = 5,
  NORIA_FLOAT16 = 6,
  NORIA_FLOAT32 = 7,
  NORIA_FLOAT64 = 8,
  NORIA_BFLOAT16 = 9
};
/* Reductions take int32, int64, float16, bfloat16, float32, float64; others answer UNSUPPORTED.
 * Broadcast and gathers take all. */

typedef int32_t noria_op; /* numbers are NCCL's */
enum { NORIA_SUM = 0, NORIA_PROD = 1, NORIA_MAX = 2, NORIA_MIN = 3, NORIA_AVG = 4 };
/* NORIA_AVG divides after the sum, unless a reducer is told otherwise; of integers it is refused
 * with ARG. */

typedef struct noria_comm noria_comm;
typedef struct noria_work noria_work;

typedef struct {
  char bytes[128];
} noria_unique_id;

/* A queue of work on a device. A NULL noria_stream*, or kind HOST, is the host: memory is ready
 * when the call is made and results are ready when it returns. CUDA: `handle` is a CUstream of the
 * device's primary context, NULL the legacy default stream, 2 the calling thread's own; any other
 * context, or device than the communicator's, is ARG. Such calls do not wait for the device: they
 * come behind what the stream was given before, and what it is given afterwards sees the result. */
enum { NORIA_STREAM_HOST = 0, NORIA_STREAM_CUDA = 1 };
typedef struct {
  uint32_t struct_size;
  uint32_t kind;
  void* handle;
  int32_t device; /* as CUDA numbers them in this process */
} noria_stream;

/* ---- communicators --------------------------------------------------------------------------- */

typedef struct {
  uint32_t struct_size;
  int32_t rank; /* with id; -1: rank and size from the launcher's variables */
  int32_t size;
  const noria_unique_id* id;      /* NULL: NORIA_ROOT or the launcher says where rank 0 is */
  uint32_t start_timeout_ms;      /* 0: NORIA_START_TIMEOUT_MS */
  uint32_t collective_timeout_ms; /* without progress; 0: NORIA_TIMEOUT_MS */
  /* NORIA_STREAM_CUDA, on all ranks: collectives with a stream of that kind, and reducers of that
   * kind, work on this rank's GPU by NCCL 2.19 or later; what comes without is the host's as ever.
   * CUDA's driver and NCCL are loaded then, and needed nowhere else. */
  uint32_t device_kind;
  int32_t device; /* as CUDA numbers them; -1: the calling thread's current one */
  /* An ncclComm_t of the same ranks, in the same order, on the same device, given by all ranks; it
   * stays the caller's. NULL: one of noria's own. It is used by nobody else, and lives, until
   * noria_comm_destroy() has returned: reducers register their memory in it till then. Where the
   * communicator fails, or is destroyed, while something of its own is under way on it, that is
   * ended by ncclCommAbort(), which frees it: noria_comm_info says so, in noria/observe.h. */
  void* nccl_comm;
} noria_comm_config;
#define NORIA_COMM_CONFIG_INIT \
  { (uint32_t)sizeof(noria_comm_config), -1, -1, NULL, 0, 0, NORIA_STREAM_HOST, -1, NULL }

/* Opens the listener that the ranks will meet at, in this process, which must become rank 0 (or be
 * a parent that forks it). Interface as NORIA_SOCKET_IFNAME says.
 * Threads: any. Blocks: no. Ownership: the caller's struct. */
NORIA_API noria_status noria_get_unique_id(noria_unique_id* id);

/* Joins the communicator. Every rank calls it; it returns when all have joined and their ring is
 * connected, or with MISSING naming the ranks that did not come within start_timeout_ms.
 * One rank needs no device.
 * Threads: any. Blocks: up to start_timeout_ms. Ownership: destroy the comm. */
NORIA_API noria_status noria_comm_create(const noria_comm_config* config, noria_comm** comm);

/* Ranks of the same color become a communicator of their own, in order of `key` and, where keys are
 * equal, of their rank in `comm`. A color is 0 or more; a rank that gives NORIA_SPLIT_NOCOLOR gets
 * NULL. Collective: every rank of `comm` calls it, with no collective of its own under way. Parent
 * and children are independent: each has its own connections, time-outs as the parent's, and its
 * own failures, may outlive the other and may be used by a thread of its own. Of GPUs if the parent
 * is, with an NCCL communicator of noria's.
 * Threads: one at a time per communicator. Blocks: up to the start time-out.
 * Ownership: destroy the child. */
enum { NORIA_SPLIT_NOCOLOR = -1 };
NORIA_API noria_status noria_comm_split(noria_comm* comm, int32_t color, int32_t key,
                                        noria_comm** child);

/* Threads: any. Blocks: no. */
NORIA_API noria_status noria_comm_rank(const noria_comm* comm, int32_t* rank);
NORIA_API noria_status noria_comm_size(const noria_comm* comm, int32_t* size);

/* Fails everything under way on every rank with ABORTED and this text; the communicator can only be
 * destroyed afterwards. `why` may be NULL.
 * Threads: any, while other calls are under way. Blocks: no. */
NORIA_API noria_status noria_comm_abort(noria_comm* comm, const char* why);

/* OK while the communicator is good; once it has failed, which is for good, the failure that every
 * call on it gives, with its text in noria_last_error(). A rank that computes for long learns by it
 * of another rank's death without waiting for its next collective.
 * Threads: any, while other calls are under way. Blocks: no; cheap enough for every gradient. */
NORIA_API noria_status noria_comm_status(const noria_comm* comm);

/* Ends the communicator on this rank. Work that was not waited for is aborted; of a GPU's what does
 * not end within a second, and that on all ranks. Works and reducers that still exist answer
 * ABORTED from then on; the last of them that is released or destroyed frees the memory and the
 * device that they shared.
 * Threads: one, no other call under way. Blocks: briefly. */
NORIA_API void noria_comm_destroy(noria_comm* comm);

/* ---- collectives ----------------------------------------------------------------------------- */
/* Ranks call the same collectives in the same order with the same count, dtype, op and root; else
 * all of them fail with ORDER or MISMATCH. `in` may equal `out`, or, where one of them is a block
 * of the other, lie in place; otherwise they do not overlap. Buffers stay valid until the work is
 * done. `work` receives a handle, to be waited for or tested, then released. With a NULL `work` the
 * call blocks until the result is there, which is the fastest way for small sizes: the caller's own
 * thread drives the ring.
 * While a step of a reducer is open on the communicator they answer STATE: use another one.
 * With a stream of CUDA both buffers are memory of the communicator's GPU, else ARG; the call
 * returns when the operation is in the stream; a NULL `work` is fine. Ranks' calls are not
 * compared: those that differ fail with TIMEOUT, or leave what NCCL makes of them.
 * Threads: one at a time per communicator (the order of calls is the order on the wire).
 * Blocks: only with a NULL work. Ownership: release the work. */

NORIA_API noria_status noria_all_reduce(noria_comm* comm, const void* in, void* out, uint64_t count,
                                        noria_dtype dtype, noria_op op, const noria_stream* stream,
                                        noria_work** work);
/* `in` is read on root only, and may be NULL elsewhere. */
NORIA_API noria_status noria_broadcast(noria_comm* comm, const void* in, void* out, uint64_t count,
                                       noria_dtype dtype, int32_t root, const noria_stream* stream,
                                       noria_work** work);
NORIA_API noria_status noria_barrier(noria_comm* comm, const noria_stream* stream,
                                     noria_work** work);
/* The reduction of `in`, size * count elements on each rank, is left in blocks: rank r gets the
 * elements [r * count, (r + 1) * count) in `out`, of count elements. In place: out is in plus
 * rank * count elements, and the other blocks of `in` stay as they are. */
NORIA_API noria_status noria_reduce_scatter(noria_comm* comm, const void* in, void* out,
                                            uint64_t count, noria_dtype dtype, noria_op op,
                                            const noria_stream* stream, noria_work** work);
/* Blocks of different sizes: rank r's has counts[r] elements and lies behind those of the ranks
 * before it. `counts` has size entries, 0 is fine, and is the same on all ranks; it is copied. */
NORIA_API noria_status noria_reduce_scatter_v(noria_comm* comm, const void* in, void* out,
                                              const uint64_t* counts, noria_dtype dtype,
                                              noria_op op, const noria_stream* stream,
                                              noria_work** work);
/* Each rank gives count elements; `out` has size * count, rank r's at r * count. In place: in is
 * out plus rank * count elements. Takes all dtypes. */
NORIA_API noria_status noria_all_gather(noria_comm* comm, const void* in, void* out, uint64_t count,
                                        noria_dtype dtype, const noria_stream* stream,
                                        noria_work** work);

/* Blocks as those of noria_reduce_scatter_v. */
NORIA_API noria_status noria_all_gather_v(noria_comm* comm, const void* in, void* out,
                                          const uint64_t* counts, noria_dtype dtype,
                                          const noria_stream* stream, noria_work** work);

/* OK, IN_PROGRESS, or the failure. Threads: any. Blocks: no. */
NORIA_API noria_status noria_work_test(noria_work* work);
/* Waits at most timeout_ms (0: for ever, within the collective's own time-out). TIMEOUT leaves the
 * work under way. Threads: any. Blocks: yes; the waiting thread helps to drive the ring. */
NORIA_API noria_status noria_work_wait(noria_work* work, uint32_t timeout_ms);
/* Gives the handle back; the collective goes on if it is under way. NULL is fine. Threads: any. */
NORIA_API void noria_work_release(noria_work* work);

#ifdef __cplusplus
}
#endif
#endif
