// The optional symbols by which a verbs provider may offer more than the verbs API has.
//
// They are looked up by name and version IBVERBS_NORIA_1.0, like every other symbol, and are absent
// from libibverbs: a caller must do without them. The software HCA has them all.
//
//   ibv_noria_features  what the device is good at (VerbsFeature bits)
//   ibv_noria_alloc     zeroed, page-aligned memory that peers map: reads and writes of it are
//                       loads and stores. It is ordinary memory: register it like any other.
//   ibv_noria_free      gives it back; deregister first. 0, or an errno value
//   ibv_noria_stats     counters of the port since the context was opened. 0, or an errno value
//   ibv_noria_describe  one line for people: "software HCA, cross-memory attach"
//   ibv_noria_turn      for tests of one process with one thread: the clock of its devices stands
//                       at `now` (ns, never back), and the call does what their thread would do. It
//                       returns when it is to be made next, INT64_MAX if nothing waits for a time.
//                       First called before a device is opened, else -1 with errno EBUSY; from then
//                       on the process is alone on its host, and the same calls give the same run.
//
// Threads: any thread.
#pragma once

#include <cstddef>
#include <cstdint>

struct ibv_context;

namespace noria {

enum VerbsFeature : uint64_t {
  // A one-sided READ costs no more than a WRITE of the same bytes and lands in the reader's cache,
  // so that an adder should pull.
  kReadsAreCheap = 1u << 0,
  // Writes do not land in address order within a 128-byte line (LL128 must not be used).
  kTearsLines = 1u << 1,
};

struct VerbsStats {
  uint64_t struct_size = sizeof(VerbsStats);
  uint64_t sent_bytes = 0;      // payload that left this process's port, headers apart
  uint64_t received_bytes = 0;  // payload that came in; a small message when it is polled
  uint64_t sent_messages = 0;
  uint64_t received_messages = 0;
};

using IbvNoriaFeatures = uint64_t (*)(ibv_context*);
using IbvNoriaAlloc = void* (*)(ibv_context*, size_t bytes);
using IbvNoriaFree = int (*)(ibv_context*, void* base);
using IbvNoriaStats = int (*)(ibv_context*, VerbsStats*);
using IbvNoriaDescribe = int (*)(ibv_context*, char* text, size_t capacity);

using IbvNoriaTurn = int64_t (*)(int64_t now);

constexpr const char* kVerbsExtensionVersion = "IBVERBS_NORIA_1.0";

}  // namespace noria
