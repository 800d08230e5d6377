/* noria/observe.h: look at noria from outside: parameters, counters, communicators, buckets.
 *
 * The rules of this boundary stand in noria.h. Nothing here changes anything.
 */
#ifndef NORIA_OBSERVE_H
#define NORIA_OBSERVE_H

#include <noria/bucketing.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A parameter, with the value that this process's environment gives it. Texts are cut to fit. */
typedef struct {
  uint32_t struct_size;
  uint32_t is_default;
  char name[64];
  char value[128];
  char default_value[64];
  char accepts[128];
  char sentence[512];
  char nccl_name[64]; /* NCCL's variable that is taken where `name` is unset; empty: none */
  char source[64];    /* "default", or the variable that gave the value */
} noria_param_info;

/* Row `index` of the table; ARG past its end, or when the environment holds a bad value (the text
 * of noria_last_error() names it). Threads: any. Blocks: no. */
NORIA_API noria_status noria_observe_param(uint32_t index, noria_param_info* info);

/* What was decided, and how often, in this process since it started. Texts are cut to fit. */
typedef struct {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t value;
  char name[64];
  char unit[32];
  char sentence[512];
} noria_counter_info;

/* Row `index` of the table; ARG past its end. Threads: any. Blocks: no. */
NORIA_API noria_status noria_observe_counter(uint32_t index, noria_counter_info* info);

typedef struct {
  uint32_t struct_size;
  int32_t rank;
  int32_t size;
  /* How the ring fetches: 0 by messages; 1 by one-sided reads; 2 by reads from a reducer's arena,
   * by messages from the caller's own memory. */
  uint32_t reads;
  uint64_t sent_bytes; /* payload as the device counted it, since the communicator was made */
  uint64_t received_bytes;
  char device[256]; /* "noria0 port 1 (software HCA, cross-memory attach)" */
  char notice[256]; /* what needs saying of the choice of device; may be empty */
  char gpu[128];    /* "CUDA device 0 (NVIDIA H200)"; empty: the communicator is of the host */
  /* 0: none; 1: noria's own communicator; 2: the caller's; 3: the caller's, which was freed by
   * ncclCommAbort() and must not be touched any more. */
  uint32_t nccl;
  uint32_t nccl_version; /* as ncclGetVersion() tells it; 0: none */
} noria_comm_info;

/* Threads: any, no collective under way. Blocks: no. */
NORIA_API noria_status noria_observe_comm(const noria_comm* comm, noria_comm_info* info);

/* A step that succeeded: where its time went on this rank, in ns; points are of CLOCK_MONOTONIC.
 * begin + compute + exposed = end, and backlog + tail + finish = exposed. What communication costs
 * the computation beside it, as by its share of the memory's bandwidth, counts as computation here:
 * compare compute_ns with the same backward pass alone. */
typedef struct {
  uint32_t struct_size;
  uint32_t buckets;
  uint64_t step;            /* counts from 0 */
  uint64_t bytes;           /* of all gradients */
  uint64_t wire_bytes;      /* that this rank sent or fetched meanwhile, 2(n-1)/n of `bytes` and a
                             * verdict, half of that in shards and half where they travel narrow;
                             * other steps that were open beside it included */
  int64_t begin_ns;         /* step_begin */
  int64_t last_gradient_ns; /* the last gradient was given: the end of the backward pass */
  int64_t end_ns;           /* the end of step_end */
  int64_t compute_ns;       /* from begin to the last gradient */
  int64_t communication_ns; /* sum of the buckets' wire times */
  int64_t exposed_ns;       /* from the last gradient to the end; the next three are its parts */
  int64_t backlog_ns;       /* until all buckets but one were done: the link is the slower one */
  int64_t tail_ns;          /* then that last bucket: a smaller one would end sooner */
  int64_t finish_ns;        /* then the ranks' verdict and, in copy mode, results copied out */
  int64_t order_wait_ns;    /* as in noria_step_report: what this rank's order of arrival costs */
} noria_step_info;

/* The last step that succeeded; STATE before the first.
 * Threads: one at a time with the steps. Blocks: no. */
NORIA_API noria_status noria_observe_step(const noria_reducer* reducer, noria_step_info* info);

/* One bucket of the plan of the last step that succeeded, and its times in it, ns of
 * CLOCK_MONOTONIC; of one without bytes, and before any step, 0.
 * On a device start_ns, end_ns and wire_ns are read when step_end() has waited for the results
 * itself, or when a step begins and the GPU is done with the one before. After a step_end() whose
 * consumer is a CUDA stream they are therefore those of the step that was read last, an earlier
 * one; 0 until one was read under this plan, and with one rank. So is communication_ns of a step,
 * and backlog_ns, tail_ns and finish_ns are reckoned from such ends; the rest is the step's. */
typedef struct {
  uint32_t struct_size;
  uint32_t bucket;
  uint32_t tensors;
  noria_dtype dtype;
  uint64_t bytes;
  int64_t ready_ns;  /* last gradient given */
  int64_t start_ns;  /* first piece on the wire: a bucket is sent while it fills */
  int64_t end_ns;    /* last piece reduced and gathered */
  int64_t wire_ns;   /* time with at least one piece of it under way */
  int64_t first_ns;  /* first gradient given */
  int64_t queued_ns; /* first piece complete: from here on it waits for the wire; where a hook sees
                      * it first, for the rest of it and the hook too */
} noria_bucket_info;

/* Writes the first `capacity` buckets in launch order and says how many there are.
 * out[0].struct_size tells the size of every element; it is written to all.
 * Threads: one at a time with the steps. Blocks: no. */
NORIA_API noria_status noria_observe_buckets(const noria_reducer* reducer, noria_bucket_info* out,
                                             uint32_t capacity, uint32_t* count);

#ifdef __cplusplus
}
#endif
#endif
