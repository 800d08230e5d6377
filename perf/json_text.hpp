// JSON as text, whatever bytes its strings hold: what is no UTF-8, as a file's name or a table's
// provenance may be, is written as U+FFFD.
//
// Threads: any thread.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace noria::perf {

inline std::string json_text(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace noria::perf
