#include "bucketing/reducer_host.hpp"

#include <string>
#include <vector>

#include "base/counters.hpp"

namespace noria::bucketing {

Gather gather_among(const ReducerHost& host, Nanoseconds timeout) {
  return
      [control = host.control, timeout](
          const std::string& what, const std::string& bytes) -> Outcome<std::vector<std::string>> {
        if (control == nullptr) return std::vector<std::string>{bytes};
        return control->all_gather(what, bytes, now_ns() + timeout);
      };
}

uint64_t moved_bytes(Engine& engine) {
  const transport::Domain* domain = engine.domain();
  if (domain == nullptr) return 0;
  return domain->counted(Counter::bytes_sent) + domain->counted(Counter::bytes_read);
}

}  // namespace noria::bucketing
