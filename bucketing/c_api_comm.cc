// The C functions of noria.h and comm.h.
#include <noria/comm.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bucketing/bootstrap.hpp"
#include "bucketing/c_boundary.hpp"
#include "bucketing/comm.hpp"
#include "bucketing/kernels.hpp"

extern char** environ;

namespace noria::bucketing {
namespace {

std::string named(const char* function, const char* argument) {
  return std::string(function) + ": " + argument;
}

Failure null_argument(const char* function, const char* name) {
  return {NORIA_E_ARG, named(function, name) + " is NULL"};
}

// What each buffer call is checked for before anybody is asked to move.
struct Buffers {
  const char* function;
  const void* in;
  void* out;
  uint64_t in_count, out_count;
  noria_dtype dtype;
  bool must_have_in = true;
  // In place, element in_at of `in` is element out_at of `out`.
  uint64_t in_at = 0, out_at = 0;
};

// No count, nor sum of counts, comes near: memory of these addresses does not exist.
constexpr uint64_t kMostBytes = uint64_t{1} << 62;

Outcome<uint32_t> element_of(const char* function, noria_dtype dtype) {
  const uint32_t element = dtype_bytes(dtype);
  if (element != 0) return element;
  return Failure{NORIA_E_ARG, std::string(function) + ": dtype " + std::to_string(dtype) +
                                  " is none: see noria_dtype"};
}

Failure too_many(const char* function, const std::string& count) {
  return {NORIA_E_ARG,
          std::string(function) + ": count " + count + " is more than memory can hold"};
}

// Without blocks; count is that of the larger buffer.
Outcome<Part> make_part(const Buffers& given, noria_op op) {
  NORIA_TRY_ASSIGN(const uint32_t element, element_of(given.function, given.dtype));
  const uint64_t count = std::max(given.in_count, given.out_count);
  if (count > kMostBytes / element) return too_many(given.function, std::to_string(count));
  const uint64_t in_bytes = given.in_count * element, out_bytes = given.out_count * element;
  if (out_bytes > 0 && given.out == nullptr) return null_argument(given.function, "out");
  if (in_bytes > 0 && given.must_have_in && given.in == nullptr)
    return null_argument(given.function, "in");
  const auto* in = static_cast<const std::byte*>(given.in);
  auto* out = static_cast<std::byte*>(given.out);
  const bool is_in_place = in + given.in_at * element == out + given.out_at * element;
  if (in != nullptr && !is_in_place && in < out + out_bytes && out < in + in_bytes)
    return Failure{NORIA_E_ARG, std::string(given.function) +
                                    ": in and out overlap: they must be " +
                                    (given.in_count == given.out_count
                                         ? "the same or apart"
                                         : "apart, or the smaller one this rank's block of the "
                                           "larger")};
  return Part{.in = in, .out = out, .count = count, .dtype = given.dtype, .op = op};
}

// The ranks' blocks lie behind each other; `counts` says how long each is.
Outcome<std::vector<uint64_t>> edges_of(const char* function, const uint64_t* counts, int32_t size,
                                        noria_dtype dtype) {
  if (counts == nullptr) return null_argument(function, "counts");
  NORIA_TRY_ASSIGN(const uint32_t element, element_of(function, dtype));
  std::vector<uint64_t> edges{0};
  for (int32_t rank = 0; rank < size; ++rank) {
    if (counts[rank] > kMostBytes / element - edges.back())
      return too_many(function, std::to_string(counts[rank]) + " of rank " + std::to_string(rank));
    edges.push_back(edges.back() + counts[rank]);
  }
  return edges;
}

Outcome<std::vector<uint64_t>> even_edges_of(const char* function, uint64_t count, int32_t size,
                                             noria_dtype dtype) {
  const std::vector<uint64_t> counts(static_cast<size_t>(size), count);
  return edges_of(function, counts.data(), size, dtype);
}

Outcome<Ok> check_reduction(const char* function, noria_dtype dtype, noria_op op) {
  if (op < NORIA_SUM || op > NORIA_AVG)
    return Failure{NORIA_E_ARG,
                   std::string(function) + ": op " + std::to_string(op) + " is none: see noria_op"};
  if (dtype_bytes(dtype) != 0 && !is_reducible(dtype))
    return Failure{NORIA_E_UNSUPPORTED,
                   std::string(function) + ": " + dtype_name(dtype) +
                       " is not reduced in this version: use int32, int64, float16, bfloat16, "
                       "float32 or float64"};
  if (op == NORIA_AVG && is_integer(dtype))
    return Failure{NORIA_E_ARG, std::string(function) + ": averages of " + dtype_name(dtype) +
                                    " are not defined: sum, and divide as you mean it"};
  return Ok{};
}

// With a NULL `work` the host's call waits, else it hands the work out.
Outcome<Ok> start(const char* function, noria_comm* comm, const noria_stream* stream,
                  noria_work** work, Kind kind, int32_t root, const Part* part) {
  if (stream != nullptr) {
    NORIA_TRY_ASSIGN(const std::optional<cuda::Stream> on_gpu, comm->comm->read_stream(stream));
    if (on_gpu) {
      NORIA_TRY_ASSIGN(noria_work* const made,
                       comm->comm->launch_on(*on_gpu, function, kind, root, part, work != nullptr));
      if (work != nullptr) *work = made;
      return Ok{};
    }
  }
  if (work == nullptr) return comm->comm->run(kind, root, part);
  NORIA_TRY_ASSIGN(*work, comm->comm->launch(kind, root, part));
  return Ok{};
}

Outcome<Ok> reduce_scatter(const char* function, noria_comm* comm, const void* in, void* out,
                           const Outcome<std::vector<uint64_t>>& edges, noria_dtype dtype,
                           noria_op op, const noria_stream* stream, noria_work** work) {
  NORIA_TRY(check_reduction(function, dtype, op));
  if (!edges) return edges.failure();
  const auto rank = static_cast<size_t>(comm->comm->rank());
  NORIA_TRY_ASSIGN(Part part, make_part({.function = function,
                                         .in = in,
                                         .out = out,
                                         .in_count = edges->back(),
                                         .out_count = (*edges)[rank + 1] - (*edges)[rank],
                                         .dtype = dtype,
                                         .in_at = (*edges)[rank]},
                                        op));
  part.phases = Phases::reduce;
  part.edges = *edges;
  return start(function, comm, stream, work, Kind::reduce_scatter, 0, &part);
}

Outcome<Ok> all_gather(const char* function, noria_comm* comm, const void* in, void* out,
                       const Outcome<std::vector<uint64_t>>& edges, noria_dtype dtype,
                       const noria_stream* stream, noria_work** work) {
  if (!edges) return edges.failure();
  const auto rank = static_cast<size_t>(comm->comm->rank());
  NORIA_TRY_ASSIGN(Part part, make_part({.function = function,
                                         .in = in,
                                         .out = out,
                                         .in_count = (*edges)[rank + 1] - (*edges)[rank],
                                         .out_count = edges->back(),
                                         .dtype = dtype,
                                         .out_at = (*edges)[rank]},
                                        NORIA_SUM));
  part.phases = Phases::gather;
  part.edges = *edges;
  return start(function, comm, stream, work, Kind::all_gather, 0, &part);
}

noria_status answer(const Outcome<Ok>& outcome) {
  return outcome ? NORIA_OK : refuse(outcome.failure());
}

// A deadline of who does not wait.
constexpr noria::Nanoseconds kPast = 0;

// Waits until the deadline at most; one that has passed: does not wait.
noria_status result_of(noria_work& work, noria::Nanoseconds deadline) {
  if (work.device_work) {
    const auto is_done = work.device_work->wait(*work.engine, deadline);
    if (!is_done) return refuse(is_done.failure());
    return *is_done ? NORIA_OK : NORIA_IN_PROGRESS;
  }
  if (!work.collective.is_done() &&
      (deadline == kPast || !work.engine->wait(work.collective, deadline)))
    return NORIA_IN_PROGRESS;
  const Failure& failure = work.collective.failure;
  return failure.code == NORIA_OK ? NORIA_OK : refuse(failure);
}

}  // namespace
}  // namespace noria::bucketing

using namespace noria::bucketing;  // NOLINT: this file is where the C names are made of these

// ---- noria.h ------------------------------------------------------------------------------------

const char* noria_status_name(noria_status status) {
  switch (status) {
    case NORIA_OK: return "NORIA_OK";
    case NORIA_IN_PROGRESS: return "NORIA_IN_PROGRESS";
    case NORIA_E_ARG: return "NORIA_E_ARG";
    case NORIA_E_STATE: return "NORIA_E_STATE";
    case NORIA_E_ORDER: return "NORIA_E_ORDER";
    case NORIA_E_MISMATCH: return "NORIA_E_MISMATCH";
    case NORIA_E_DUP_READY: return "NORIA_E_DUP_READY";
    case NORIA_E_MISSING: return "NORIA_E_MISSING";
    case NORIA_E_TIMEOUT: return "NORIA_E_TIMEOUT";
    case NORIA_E_PEER: return "NORIA_E_PEER";
    case NORIA_E_NET: return "NORIA_E_NET";
    case NORIA_E_DEVICE: return "NORIA_E_DEVICE";
    case NORIA_E_NOMEM: return "NORIA_E_NOMEM";
    case NORIA_E_ABORTED: return "NORIA_E_ABORTED";
    case NORIA_E_UNSUPPORTED: return "NORIA_E_UNSUPPORTED";
    case NORIA_E_NONFINITE: return "NORIA_E_NONFINITE";
    case NORIA_E_INTERNAL: return "NORIA_E_INTERNAL";
    case NORIA_E_HOOK: return "NORIA_E_HOOK";
    default: return "unknown status";
  }
}

size_t noria_last_error(char* text, size_t capacity) {
  const std::string& last = last_refusal();
  if (text != nullptr && capacity > 0) {
    const size_t bytes = std::min(last.size(), capacity - 1);
    std::memcpy(text, last.data(), bytes);
    text[bytes] = '\0';
  }
  return last.size();
}

uint32_t noria_version(void) {
  return NORIA_VERSION_MAJOR * 10000 + NORIA_VERSION_MINOR * 100 + NORIA_VERSION_PATCH;
}

// ---- communicators ------------------------------------------------------------------------------

noria_status noria_get_unique_id(noria_unique_id* id) {
  if (id == nullptr) return refuse(null_argument("noria_get_unique_id", "id"));
  const auto params = noria::load_params(environ);
  if (!params) return refuse({NORIA_E_ARG, params.failure()});
  const auto made = make_unique_id(*params);
  if (!made) return refuse(made.failure());
  *id = *made;
  return NORIA_OK;
}

noria_status noria_comm_create(const noria_comm_config* config, noria_comm** comm) {
  if (comm == nullptr) return refuse(null_argument("noria_comm_create", "comm"));
  const auto copy = read_struct(config, "noria_comm_config");
  if (!copy) return refuse(copy.failure());
  auto made = Comm::create(*copy);
  if (!made) return refuse(made.failure());
  *comm = new noria_comm{std::move(*made)};
  return NORIA_OK;
}

noria_status noria_comm_split(noria_comm* comm, int32_t color, int32_t key, noria_comm** child) {
  if (!is_usable(comm)) return refuse(unusable(comm, named("noria_comm_split", "comm")));
  if (child == nullptr) return refuse(null_argument("noria_comm_split", "child"));
  auto made = comm->comm->split(color, key);
  if (!made) return refuse(made.failure());
  *child = *made == nullptr ? nullptr : new noria_comm{std::move(*made)};
  return NORIA_OK;
}

noria_status noria_comm_rank(const noria_comm* comm, int32_t* rank) {
  if (!is_usable(comm)) return refuse(unusable(comm, named("noria_comm_rank", "comm")));
  if (rank == nullptr) return refuse(null_argument("noria_comm_rank", "rank"));
  *rank = comm->comm->rank();
  return NORIA_OK;
}

noria_status noria_comm_size(const noria_comm* comm, int32_t* size) {
  if (!is_usable(comm)) return refuse(unusable(comm, named("noria_comm_size", "comm")));
  if (size == nullptr) return refuse(null_argument("noria_comm_size", "size"));
  *size = comm->comm->size();
  return NORIA_OK;
}

noria_status noria_comm_abort(noria_comm* comm, const char* why) {
  if (!is_usable(comm)) return refuse(unusable(comm, named("noria_comm_abort", "comm")));
  comm->comm->abort(why != nullptr ? why : "");
  return NORIA_OK;
}

noria_status noria_comm_status(const noria_comm* comm) {
  if (!is_usable(comm)) return refuse(unusable(comm, named("noria_comm_status", "comm")));
  return answer(comm->comm->status());
}

// A child's copy stays as it is: what it would give back, and say goodbye to, is its parent's.
void noria_comm_destroy(noria_comm* comm) {
  if (!is_usable(comm)) return;
  comm->comm->end();
  delete comm;
}

// ---- collectives --------------------------------------------------------------------------------

noria_status noria_all_reduce(noria_comm* comm, const void* in, void* out, uint64_t count,
                              noria_dtype dtype, noria_op op, const noria_stream* stream,
                              noria_work** work) {
  constexpr const char* kName = "noria_all_reduce";
  if (!is_usable(comm)) return refuse(unusable(comm, named(kName, "comm")));
  if (auto checked = check_reduction(kName, dtype, op); !checked) return refuse(checked.failure());
  const auto part = make_part({kName, in, out, count, count, dtype}, op);
  if (!part) return refuse(part.failure());
  return answer(start(kName, comm, stream, work, Kind::all_reduce, 0, &*part));
}

noria_status noria_broadcast(noria_comm* comm, const void* in, void* out, uint64_t count,
                             noria_dtype dtype, int32_t root, const noria_stream* stream,
                             noria_work** work) {
  constexpr const char* kName = "noria_broadcast";
  if (!is_usable(comm)) return refuse(unusable(comm, named(kName, "comm")));
  if (root < 0 || root >= comm->comm->size())
    return refuse({NORIA_E_ARG, std::string(kName) + ": root " + std::to_string(root) +
                                    " is no rank: they go from 0 to " +
                                    std::to_string(comm->comm->size() - 1)});
  const bool is_root = root == comm->comm->rank();
  // Elsewhere the input is not looked at, wherever it points.
  const auto part =
      make_part({kName, is_root ? in : out, out, count, count, dtype, is_root}, NORIA_SUM);
  if (!part) return refuse(part.failure());
  return answer(start(kName, comm, stream, work, Kind::broadcast, root, &*part));
}

noria_status noria_barrier(noria_comm* comm, const noria_stream* stream, noria_work** work) {
  constexpr const char* kName = "noria_barrier";
  if (!is_usable(comm)) return refuse(unusable(comm, named(kName, "comm")));
  return answer(start(kName, comm, stream, work, Kind::barrier, 0, nullptr));
}

noria_status noria_reduce_scatter(noria_comm* comm, const void* in, void* out, uint64_t count,
                                  noria_dtype dtype, noria_op op, const noria_stream* stream,
                                  noria_work** work) {
  constexpr const char* kName = "noria_reduce_scatter";
  if (!is_usable(comm)) return refuse(unusable(comm, named(kName, "comm")));
  const auto edges = even_edges_of(kName, count, comm->comm->size(), dtype);
  return answer(reduce_scatter(kName, comm, in, out, edges, dtype, op, stream, work));
}

noria_status noria_reduce_scatter_v(noria_comm* comm, const void* in, void* out,
                                    const uint64_t* counts, noria_dtype dtype, noria_op op,
                                    const noria_stream* stream, noria_work** work) {
  constexpr const char* kName = "noria_reduce_scatter_v";
  if (!is_usable(comm)) return refuse(unusable(comm, named(kName, "comm")));
  const auto edges = edges_of(kName, counts, comm->comm->size(), dtype);
  return answer(reduce_scatter(kName, comm, in, out, edges, dtype, op, stream, work));
}

noria_status noria_all_gather(noria_comm* comm, const void* in, void* out, uint64_t count,
                              noria_dtype dtype, const noria_stream* stream, noria_work** work) {
  constexpr const char* kName = "noria_all_gather";
  if (!is_usable(comm)) return refuse(unusable(comm, named(kName, "comm")));
  const auto edges = even_edges_of(kName, count, comm->comm->size(), dtype);
  return answer(all_gather(kName, comm, in, out, edges, dtype, stream, work));
}

noria_status noria_all_gather_v(noria_comm* comm, const void* in, void* out, const uint64_t* counts,
                                noria_dtype dtype, const noria_stream* stream, noria_work** work) {
  constexpr const char* kName = "noria_all_gather_v";
  if (!is_usable(comm)) return refuse(unusable(comm, named(kName, "comm")));
  const auto edges = edges_of(kName, counts, comm->comm->size(), dtype);
  return answer(all_gather(kName, comm, in, out, edges, dtype, stream, work));
}

// ---- works --------------------------------------------------------------------------------------

noria_status noria_work_test(noria_work* work) {
  if (!is_usable(work)) return refuse(unusable(work, named("noria_work_test", "work")));
  return result_of(*work, kPast);
}

noria_status noria_work_wait(noria_work* work, uint32_t timeout_ms) {
  if (!is_usable(work)) return refuse(unusable(work, named("noria_work_wait", "work")));
  const noria::Nanoseconds deadline =
      timeout_ms == 0 ? noria::kNever
                      : noria::now_ns() + static_cast<noria::Nanoseconds>(timeout_ms) * 1'000'000;
  const noria_status status = result_of(*work, deadline);
  if (status != NORIA_IN_PROGRESS) return status;
  return refuse({NORIA_E_TIMEOUT, "the work is still under way after " +
                                      std::to_string(timeout_ms) + " ms; wait for it again"});
}

void noria_work_release(noria_work* work) {
  if (!is_usable(work)) return;
  const std::shared_ptr<Comm> comm = std::move(work->comm);  // this may have been its last holder
  // release: this thread's last look; pairs with the communicator's sweep.
  work->is_released.store(true, std::memory_order_release);
}
