/* noria: statuses, versions and errors, shared by all public headers.
 *
 * The rules of this boundary:
 *  1. Handles are opaque and come in create/destroy pairs; destroy accepts NULL.
 *  2. Every struct begins with struct_size, set by its NORIA_..._INIT. The library reads no further
 *     than that, and refuses less than 8 bytes and more than 64 KiB; fields are only ever appended.
 *     Zero in a field that says so means its default.
 *  3. Functions return noria_status. Out-parameters come last and are written only on success.
 *  4. Nothing allocated here is freed by you, and the other way round, but for handles.
 *  5. Times are uint32_t milliseconds or int64_t nanoseconds of CLOCK_MONOTONIC; sizes are uint64_t
 *     bytes.
 *  6. Each declaration says Threads, Blocks, Ownership.
 *  7. A child of fork() may not use what its parent made: every call on it answers STATE, destroy
 *     and release leave it alone, and views are not mapped. The parent is not harmed, however the
 *     child ends. The child may make its own communicators.
 */
#ifndef NORIA_NORIA_H
#define NORIA_NORIA_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define NORIA_API __attribute__((visibility("default")))
#else
#define NORIA_API
#endif

#define NORIA_VERSION_MAJOR 0
#define NORIA_VERSION_MINOR 1
#define NORIA_VERSION_PATCH 0

#ifdef __cplusplus
extern "C" {
#endif

/* 0 is success, 1 means not finished, negative values are failures. Values are never reused. */
typedef int32_t noria_status;
enum {
  NORIA_OK = 0,
  NORIA_IN_PROGRESS = 1,
  NORIA_E_ARG = -1,       /* an argument, configuration or NORIA_ variable is not acceptable */
  NORIA_E_STATE = -2,     /* not now: the object is in another phase */
  NORIA_E_ORDER = -3,     /* ranks called collectives in different order */
  NORIA_E_MISMATCH = -4,  /* ranks disagree on what must agree */
  NORIA_E_DUP_READY = -5, /* a tensor was ready twice in a step */
  NORIA_E_MISSING = -6,   /* a tensor, or a rank, did not come */
  NORIA_E_TIMEOUT = -7,   /* no progress within the bound */
  NORIA_E_PEER = -8,      /* another rank died or failed */
  NORIA_E_NET = -9,       /* the network failed */
  NORIA_E_DEVICE = -10,   /* the device failed, or there is none */
  NORIA_E_NOMEM = -11,
  NORIA_E_ABORTED = -12,     /* noria_comm_abort() was called, here or elsewhere */
  NORIA_E_UNSUPPORTED = -13, /* not built, or not for this dtype or device */
  NORIA_E_NONFINITE = -14,
  NORIA_E_INTERNAL = -15,
  NORIA_E_HOOK = -16 /* a function of the caller's, called by noria, reported a failure */
};

/* "NORIA_E_PEER"; "unknown status" for a value that is none.
 * Threads: any. Blocks: no. Ownership: static text. */
NORIA_API const char* noria_status_name(noria_status status);

/* The text of the calling thread's last failure: object, peer, cause, what to try. Copies at most
 * capacity - 1 bytes and a NUL; returns the length of the whole text. Empty when nothing failed
 * yet.
 * Threads: any; each has its own. Blocks: no. Ownership: the caller's buffer. */
NORIA_API size_t noria_last_error(char* text, size_t capacity);

/* major * 10000 + minor * 100 + patch of the library that is loaded.
 * Threads: any. Blocks: no. */
NORIA_API uint32_t noria_version(void);

#ifdef __cplusplus
}
#endif
#endif
