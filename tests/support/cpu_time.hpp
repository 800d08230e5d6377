// What this process has used of its cores. For tests that expect it to sleep.
#pragma once

#include <sys/resource.h>

namespace noria::test {

// Seconds of all its threads, in user and in system mode.
inline double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace noria::test
