/* noria/bucketing.h: the gradient reducer, on the communicators of noria/comm.h.
 *
 *   noria_unique_id id; noria_get_unique_id(&id);          on rank 0, then carry it to the others
 *   noria_comm_create(&config, &comm);                     every rank
 *   noria_reducer_create(comm, &rc, &r);                   every rank; same tensors, same order
 *   noria_reducer_add(r, &tensor, &id) ...; noria_reducer_seal(r);
 *   each step:
 *     noria_step_begin(r, 0);
 *     noria_grad_ready(r, id, gradient, NULL);             from each gradient hook, any thread
 *     noria_step_end(r, NULL, &report);                    averaged gradients are in place
 *
 * The rules of this boundary stand in noria.h.
 */
#ifndef NORIA_BUCKETING_H
#define NORIA_BUCKETING_H

#include <noria/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct noria_reducer noria_reducer;

/* ---- the reducer ----------------------------------------------------------------------------- */

/* How tensors are cut into buckets.
 * DDP: as PyTorch's DDP; a bucket closes at or above its cap, and tensors stay whole.
 * STRICT: no bucket is larger than its cap, large tensors are split over several buckets, and the
 * last bucket is small, since what becomes ready last hides behind nothing.
 * PLANNED: as DDP in the first step; from then on by its times and by the link, measured at seal,
 * so that the step ends as early as it can. */
enum { NORIA_PLAN_DDP = 0, NORIA_PLAN_STRICT = 1, NORIA_PLAN_PLANNED = 2 };

/* By what buckets are filled and sent. ARRIVAL: rank 0's order of the first step to which it gives
 * any gradient, for all ranks from its end on; a planned reducer does so anyway. Where any rank of
 * the job has views (arena), and with shards, tensors stay where they are, and what changes is
 * which bucket is sent when, and with it the buckets' numbers. */
enum { NORIA_ORDER_REVERSE = 0, NORIA_ORDER_ARRIVAL = 1 };

/* When an average of floating-point gradients divides.
 * POST: the sum, by the number of ranks: fewest roundings; a sum of float16 may overflow.
 * PRE: each gradient, before it is added: never overflows; small float16 gradients of many ranks
 * vanish. SPLIT_SQRT: each gradient by the power of two next above the root of the number of ranks,
 * which rounds nothing, and the sum by the rest: what suits float16.
 * On a device POST is NCCL's own, which multiplies each gradient by the rounded inverse instead. */
enum { NORIA_AVERAGE_POST = 0, NORIA_AVERAGE_PRE = 1, NORIA_AVERAGE_SPLIT_SQRT = 2 };
/* What becomes of a tensor that took no part in a step on this rank. In every case the others get
 * their average, to which this rank gave zeros. */
enum {
  NORIA_UNUSED_ERROR = 0, /* MISSING, unless noria_grad_unused() said so */
  NORIA_UNUSED_ZERO = 1,  /* as if its gradient were zero */
  NORIA_UNUSED_KEEP = 2   /* the same, but if no rank used it, its gradient stays as it was */
};

/* What becomes of gradients that are infinite or not a number. ERROR costs a look at each gradient
 * before it is sent, and at the results: the step fails on all ranks with NONFINITE, which names
 * the first such bucket of each rank, or the bucket whose sum overflowed. With shards each rank
 * looks at its own sums, of which the ranks then tell each other, over the control sockets. */
enum { NORIA_NONFINITE_PASS = 0, NORIA_NONFINITE_ERROR = 1 };

/* What a rank keeps of each bucket.
 * NONE: the whole reduction. REDUCE_SCATTER: its shard, for optimizers whose state is shared out
 * (ZeRO-1 and -2, FSDP); half the bytes on the wire. The reduction is then found in the shard only,
 * in noria's memory: gradients outside are undefined after step_end, and in copy mode those of the
 * caller stay as they were. A bucket is sent when it is full. Of what no rank used
 * noria_grad_result() tells with KEEP. NORIA_PLAN_PLANNED is refused, as it would share out an
 * optimizer's state anew: load a plan that it made without shards. */
enum { NORIA_SHARD_NONE = 0, NORIA_SHARD_REDUCE_SCATTER = 1 };

typedef struct {
  uint32_t struct_size;
  uint32_t arena;              /* 1: gradients are written into views of noria's memory */
  uint64_t bucket_bytes;       /* 0: 25 MiB. Where a bucket closes */
  uint64_t first_bucket_bytes; /* 0: 1 MiB, so that communication starts early */
  noria_op op;                 /* NORIA_AVG or NORIA_SUM */
  uint32_t step_timeout_ms;    /* without progress in step_end; 0: the communicator's */
  uint32_t plan;               /* NORIA_PLAN_DDP: as the caps above say */
  uint32_t order;              /* NORIA_ORDER_REVERSE: of registration */
  uint64_t last_bucket_bytes;  /* strict plan: the most that the last bucket holds; 0: 1 MiB */
  uint32_t average;            /* NORIA_AVERAGE_POST; of NORIA_SUM there is no other */
  /* 0: gradients travel as they are. NORIA_BFLOAT16 or NORIA_FLOAT16: those of float32 are rounded
   * to it on every hop and added in float32, for half the bytes on the wire; results are the
   * rounded values, the same on all ranks, in float32. Takes half an arena more. */
  noria_dtype wire_dtype;
  uint32_t unused; /* NORIA_UNUSED_ERROR, _ZERO or _KEEP */
  /* 1: how often each tensor fires, and which never do, is learned in the first pass, which is sent
   * in its step_end only; each pass after it must be the same, else the step fails. Which never
   * fire is learned with _ZERO or _KEEP, or where noria_grad_unused() says so, which it may go on
   * doing; their buckets are then sent without waiting for them. */
  uint32_t static_graph;
  uint32_t nonfinite;   /* NORIA_NONFINITE_PASS or _ERROR */
  uint32_t shard;       /* NORIA_SHARD_NONE */
  uint32_t device_kind; /* NORIA_STREAM_HOST, or _CUDA: see "on a device" below */
  /* Copy mode: of how many buckets noria holds copies at once; 0: of all. Each takes as much as the
   * largest. A gradient whose bucket must wait stays in the caller's memory: copies are made, and
   * results written, by the calls that give the next gradients or ask for a result, and by
   * noria_step_end(). With few, a bucket waits for one that was sent before it. A ring of more than
   * 3 ranks cannot go on without some segments that are ready, so that there may be a few more; and
   * never more than 0 takes. On a device: of how many that are packed; 0: of 2. Each rank's own
   * affair. */
  uint32_t max_in_flight;
} noria_reducer_config;
#define NORIA_REDUCER_CONFIG_INIT                                                  \
  {                                                                                \
    (uint32_t)sizeof(noria_reducer_config), 0, 0, 0, NORIA_AVG, 0, NORIA_PLAN_DDP, \
        NORIA_ORDER_REVERSE, 0, NORIA_AVERAGE_POST, 0, NORIA_UNUSED_ERROR, 0,      \
        NORIA_NONFINITE_PASS, 0, NORIA_STREAM_HOST, 0                              \
  }

typedef struct {
  uint32_t struct_size;
  noria_dtype dtype;
  const char* name; /* NUL-terminated; used in errors and compared across ranks; copied */
  uint64_t numel;   /* 0 is fine */
  /* Calls of noria_grad_ready() that make its gradient complete, as where a hook fires once for
   * each use of a shared weight; the last brings the sum. 0: once. */
  uint32_t expected_fires;
  uint32_t reserved;    /* not looked at: the first header's struct ends here with padding */
  uint64_t ndim;        /* 0: not said. What is not contiguous, or not numel elements, is ARG */
  const int64_t* shape; /* and strides, in elements; NULL strides: contiguous */
  const int64_t* strides;
} noria_tensor_desc;
#define NORIA_TENSOR_DESC_INIT \
  { (uint32_t)sizeof(noria_tensor_desc), NORIA_FLOAT32, NULL, 0, 0, 0, 0, NULL, NULL }

typedef struct {
  uint32_t struct_size;
  uint32_t buckets;
  uint64_t step;            /* counts from 0 */
  uint64_t bytes;           /* of all gradients */
  int64_t step_ns;          /* begin to end of step_end */
  int64_t communication_ns; /* sum of the buckets' wire times */
  int64_t exposed_ns;       /* from the last gradient to the end of step_end */
  int64_t order_wait_ns;    /* how long a gradient that is ready here waits, on average over bytes,
                             * for one that is sent before it: what this rank's order costs */
  uint64_t plan_version;    /* plans given up for a better one, this step's end included */
} noria_step_report;
#define NORIA_STEP_REPORT_INIT \
  { (uint32_t)sizeof(noria_step_report), 0, 0, 0, 0, 0, 0, 0, 0 }

/* Threads: init only. Blocks: no. Ownership: destroy the reducer. */
NORIA_API noria_status noria_reducer_create(noria_comm* comm, const noria_reducer_config* config,
                                            noria_reducer** reducer);
/* Registers a tensor, in the framework's registration order; buckets are filled in reverse of it.
 * Names must differ. Threads: init only. Blocks: no. */
NORIA_API noria_status noria_reducer_add(noria_reducer* reducer, const noria_tensor_desc* tensor,
                                         uint32_t* id);
/* ---- hooks: each bucket, seen by a function of the caller's */
/* BEFORE: all gradients of the bucket are in place on this rank, and none of it was sent: what the
 * function leaves in the bucket is what is reduced. AFTER: the reduction is in place, and nobody
 * has seen it: what the function leaves is the result. Compression, clipping, scaling, logging. */
typedef uint32_t noria_hook_moment;
enum { NORIA_HOOK_BEFORE = 0, NORIA_HOOK_AFTER = 1 };

/* A bucket as a hook sees it: [data, data + bytes), which the hook may read and write until it
 * returns. Of a reducer with shards, AFTER shows this rank's shard alone. Made by noria; the arrays
 * have `tensors` entries, in order of offsets, and stay as they are until the plan changes. */
typedef struct {
  uint32_t struct_size;
  uint32_t bucket; /* in launch order, as in noria_bucket_info */
  uint64_t step;   /* counts from 0, as in noria_step_report */
  noria_dtype dtype;
  uint32_t tensors; /* that have elements here */
  uint64_t offset;  /* bytes, in the layout */
  uint64_t bytes;
  void* data;
  const uint32_t* tensor_ids;
  const uint64_t* tensor_firsts;  /* its first element here: 0, unless the tensor is split */
  const uint64_t* tensor_offsets; /* bytes, from data */
  const uint64_t* tensor_bytes;
} noria_hook_bucket;

/* 0, or any other number: then the step fails on all ranks with HOOK, which names this rank, the
 * bucket, the number and what the function wrote to `why`, at most `capacity` bytes with its NUL.
 * The step runs to its end all the same, and noria_reducer_reset() goes on after it.
 * Threads: inside a call of the caller's on this reducer, never on a thread of noria's. BEFORE: in
 * the call that completed the bucket, mostly noria_grad_ready(), for several buckets at once where
 * several threads give; AFTER: in noria_step_end() or noria_step_join(), one at a time, in launch
 * order, while later buckets may be on the wire.
 * It must return: meanwhile this rank counts as not ready, and the others' time-outs run. It must
 * call nothing of noria's but noria_last_error() (noria_step_end() and noria_reducer_reset() answer
 * STATE there), and not leave by an exception or longjmp(). Where
 * the step fails, what AFTER saw may be as undefined as the results. */
typedef int32_t (*noria_bucket_hook)(const noria_hook_bucket* bucket, char* why, size_t capacity,
                                     void* user);

/* Before seal; a NULL `hook` takes it back. Every rank sets the same moments, else seal answers
 * MISMATCH; a rank without wishes gives a function that returns 0. With BEFORE a bucket is sent
 * when it is full, not while it fills. With AFTER, results come with noria_step_end() only, and the
 * ranks then tell each other over the control sockets what it answered; where max_in_flight leaves
 * no slot to a bucket, noria_step_end() sends it. A bucket without bytes is not shown.
 * Threads: init only. Blocks: no. Ownership: `user` stays the caller's, and valid until destroy. */
NORIA_API noria_status noria_reducer_set_hook(noria_reducer* reducer, noria_hook_moment moment,
                                              noria_bucket_hook hook, void* user);
/* Fixes the plan. Collective: the ranks compare what they registered; where they differ all get
 * MISMATCH naming the first difference and the ranks. Averages of integers are refused.
 * Threads: init only. Blocks: up to the start time-out. */
NORIA_API noria_status noria_reducer_seal(noria_reducer* reducer);
/* Writes the plan in use as text, which people can read. What is in the file's place is lost.
 * Threads: one at a time with the steps. Blocks: on the file. */
NORIA_API noria_status noria_reducer_save_plan(const noria_reducer* reducer, const char* path);
/* Before seal, with the same file on every rank: this plan is used, in place of what the caps, plan
 * and order say, and no step is observed. A plan saved after the first step of an earlier run is
 * thus there from the first, and in arena mode tensors lie in its order. What is wrong with the
 * text is ARG as "file:line:column: what"; a plan of other tensors is ARG at seal.
 * Threads: init only. Blocks: on the file. */
NORIA_API noria_status noria_reducer_load_plan(noria_reducer* reducer, const char* path);
/* Arena mode: where the gradient of `id` lives, aligned to its dtype; valid until destroy.
 * Threads: any, after seal. Blocks: no. */
NORIA_API noria_status noria_reducer_view(noria_reducer* reducer, uint32_t id, void** ptr,
                                          uint64_t* bytes);

/* ---- shards ---------------------------------------------------------------------------------- */
/* Rank r's shard of a bucket is one range of it. All have the same length, a multiple of 128 bytes,
 * but the last ones, which are shorter, or empty. Parameters in memory of noria_reducer_layout()'s
 * total_bytes, each at the offset of its gradient, are shared out alike: update the ranges of this
 * rank, then noria_reducer_all_gather() brings those of the others. */

typedef struct {
  uint32_t struct_size;
  noria_dtype dtype;
  uint64_t bucket_offset; /* bytes, in the layout */
  uint64_t bucket_bytes;
  uint64_t offset; /* of this rank's shard, within the bucket */
  uint64_t bytes;
  void* gradient; /* the shard's reduction, after step_end; valid until destroy */
} noria_shard_info;
#define NORIA_SHARD_INFO_INIT \
  { (uint32_t)sizeof(noria_shard_info), 0, 0, 0, 0, 0, NULL }

/* The elements [first, first + count) of a tensor, which lie in this rank's shard of a bucket. */
typedef struct {
  uint32_t struct_size;
  uint32_t bucket;
  uint32_t tensor;
  noria_dtype dtype;
  uint64_t first;
  uint64_t count;
  uint64_t offset; /* bytes, in the layout */
  void* gradient;  /* as in noria_shard_info */
} noria_shard_range;

/* With NORIA_ORDER_ARRIVAL `bucket` is another one once that order is known, as a step's report
 * says by plan_version; where shards lie stays.
 * Threads: any, after seal, but beside no step_end. Blocks: no. */
NORIA_API noria_status noria_reducer_shard(noria_reducer* reducer, uint32_t bucket,
                                           noria_shard_info* info);
/* Writes at most `capacity` ranges, in order of their offsets within each bucket, with the stride
 * of out[0].struct_size, and tells how many there are.
 * Threads, blocks: as noria_reducer_shard(). */
NORIA_API noria_status noria_reducer_shard_ranges(noria_reducer* reducer, noria_shard_range* out,
                                                  uint32_t capacity, uint32_t* count);
/* Where the gradient of `id` lies, and how large the whole is.
 * Threads, blocks: as noria_reducer_shard(). */
NORIA_API noria_status noria_reducer_layout(noria_reducer* reducer, uint32_t id, uint64_t* offset,
                                            uint64_t* total_bytes);
/* Each rank gives its shards of `memory`, which is laid out as the gradients and of their dtypes,
 * and gets all others'. Collective, between steps. The device keeps the memory registered for the
 * next call until one with other memory, or destroy: unmap it no earlier.
 * Threads: as collectives. Blocks: until the result is there. */
NORIA_API noria_status noria_reducer_all_gather(noria_reducer* reducer, void* memory,
                                                uint64_t bytes);
/* The same of parameters that have another dtype than their gradients, as bfloat16 ones with
 * gradients of float32: what lies at an offset of the layout lies, in `memory`, at that offset
 * divided by the size of a gradient's element, times the size of one of `dtype`; so does the total.
 * UNSUPPORTED where gradients' elements differ in size. */
NORIA_API noria_status noria_reducer_all_gather_as(noria_reducer* reducer, void* memory,
                                                   uint64_t bytes, noria_dtype dtype);

/* ---- on a device ----------------------------------------------------------------------------- */
/* With device_kind CUDA gradients, views and results are memory of the communicator's GPU, and who
 * names a stream waits for none of it. A gradient is there when its producer's work so far is done;
 * the producer lives until the step_end that sends it has returned. The call that completes a
 * bucket launches it: packed into one of max_in_flight slots, each as large as the largest bucket,
 * reduced by NCCL, unpacked; views are reduced in place, unless cast or divided before.
 * step_end returns when all ranks have come to it, with their verdict; its consumer, or that of
 * noria_grad_result(), sees results in what it is given next. What was given is nobody else's until
 * then. The view of a tensor that does not come is zeroed behind what step_end's last consumer was
 * given meanwhile, which lives until the next step_end: other readers, and writers of what KEEP is
 * to keep, end before the next step. KEEP with views takes as much memory again as tensors do that
 * a rank left out in some step, allocated in the first one that does.
 * A failure of the GPU, or of NCCL, or its standstill for the step's time-out, ends the
 * communicator. Producers that stand still as long fail a step_end without consumer with TIMEOUT,
 * on this rank alone; noria_reducer_reset() goes on, and what they were to write is in use until
 * they come on.
 * In copy mode the average of what a rank did not give has no place: noria_grad_result() answers
 * UNSUPPORTED. So do hooks and NONFINITE_ERROR; without kernels (built without nvcc, or for other
 * GPUs) wire_dtype and averages that divide before. Times of buckets are the GPU's: after a
 * step_end() with the host as consumer those of that step, after one with a stream, which waits for
 * no GPU, those of an earlier one (observe.h). */

/* A step that only adds to the gradients: nothing is sent, step_end returns at once, and results
 * come with the next step without this flag, to which each rank may come after as many steps of
 * this kind as it likes. What was given in any of them counts as used in that one, and is sent in
 * it, given again or not: in copy mode from the memory that was given last, which stays valid. */
enum { NORIA_STEP_ACCUMULATE = 1 };

/* Opens a step. `flags` is 0 or NORIA_STEP_ACCUMULATE. Several reducers of a communicator may have
 * steps open: all ranks begin these in the same order and end them in that order, else step_end
 * answers STATE; what a later one brings is sent when those before it have ended.
 * Threads: one at a time. Blocks: no. */
NORIA_API noria_status noria_step_begin(noria_reducer* reducer, uint32_t flags);
/* The gradient of `id` is complete. Copy mode: `grad` is read now, and written with the result in
 * step_end. With max_in_flight it is read, and then written, at the latest in step_end. In both it
 * stays valid, and the caller leaves it as it is, until step_end has returned. Arena mode: `grad`
 * is the view, or NULL. More often in a step than expected_fires is DUP_READY, here and in
 * everybody's step_end. While step_end runs, or with no step open: STATE.
 * Threads: any, several at once. Blocks: no; no allocation; a system call only to wake the
 * communication thread when a piece of a bucket became complete and it sleeps. Where a hook sees
 * buckets before they are sent, the call that completes one runs it. */
NORIA_API noria_status noria_grad_ready(noria_reducer* reducer, uint32_t id, const void* grad,
                                        const noria_stream* producer);
/* No gradient of these tensors will come in this step, so that their buckets need not wait for the
 * end. With any policy it is no error. What came before in the step's window is sent, else zeros.
 * One that was given or declared before is DUP_READY, here and in everybody's step_end.
 * Threads: as noria_grad_ready(). Blocks: no. */
NORIA_API noria_status noria_grad_unused(noria_reducer* reducer, const uint32_t* ids,
                                         uint32_t count);
/* Where the result of `id` is. In an open step: waits at most timeout_ms (0: the step's time-out)
 * for the bucket of a tensor that was given here, as an optimiser does that runs in the backward
 * pass; if the step fails later, so did this result. After step_end: of that step, also of tensors
 * that this rank did not give, until the next step begins. Copy mode: in the memory that was given,
 * where it was, which step_end then leaves alone; else in noria's. Arena mode: in the view, which
 * may be read but not written until step_end. NULL with KEEP for a tensor that no rank used. With
 * shards: its first element that is this rank's, of several noria_reducer_shard_ranges() tells the
 * others; NULL too where none is.
 * STATE if step_end is called meanwhile, or runs: what is waited for may come with it only; in an
 * open step also where a hook is to see the results first.
 * Threads: as noria_grad_ready(), for one tensor one at a time. Blocks: in an open step. */
NORIA_API noria_status noria_grad_result(noria_reducer* reducer, uint32_t id,
                                         const noria_stream* consumer, uint32_t timeout_ms,
                                         const void** result);
/* Waits until every bucket is reduced. If a rank missed a tensor, or was ready twice, every rank
 * gets that failure in this same step, naming tensors and ranks; results are then undefined until
 * noria_reducer_reset(). `report` may be NULL. Called again before the next step begins, it gives
 * the same answer.
 * Threads: one at a time. Blocks: until the result is there. */
NORIA_API noria_status noria_step_end(noria_reducer* reducer, const noria_stream* consumer,
                                      noria_step_report* report);
/* For a rank that has no more inputs while others have: a whole step to which it gives nothing but
 * what it accumulated, whatever the policy, where averages divide by all ranks all the same. Call
 * it until *all_joined is 1, which it is on all ranks in the same step: then no rank had inputs,
 * and the step brought nothing. Before, results are those of the others, so that parameters stay
 * alike if each rank applies them: views in arena mode, noria_grad_result() in copy mode.
 * Threads, blocks: as step_end. */
NORIA_API noria_status noria_step_join(noria_reducer* reducer, const noria_stream* consumer,
                                       noria_step_report* report, uint32_t* all_joined);
/* After a failed step, or in the midst of one: back to between steps, and what was accumulated does
 * not count. A step left half-way fails on the other ranks with ABORTED.
 * Threads: one at a time. Blocks: as step_end. */
NORIA_API noria_status noria_reducer_reset(noria_reducer* reducer);
/* Threads: one, no other call under way. Blocks: briefly. */
NORIA_API void noria_reducer_destroy(noria_reducer* reducer);

#ifdef __cplusplus
}
#endif
#endif
