// relax(): what a loop that looks for something does between two looks. It leaves a core's shared
// parts to its other thread for some tens of cycles; the core itself it keeps.
//
// Threads: any thread.
#pragma once

namespace noria {

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace noria
