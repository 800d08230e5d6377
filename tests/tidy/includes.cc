// The arrows of the house: two front doors, one machine room, and no way round.
#include <algorithm>
#include <array>
#include <cctype>
#include <regex>

#include "tests/tidy/rules.hpp"

namespace noria::tidy {

namespace {

// The first row whose folder holds the file applies, so the inner folders come first.
struct Room {
  std::string_view folder;
  std::vector<std::string_view> ours;    // prefixes of "quoted" includes
  std::vector<std::string_view> angles;  // prefixes of <angled> includes beside std and system
  std::string_view reason;
};

const std::vector<Room>& rooms() {
  static const std::vector<Room> table{
      {"include/noria/", {}, {"noria/"}, "installed headers stand alone: C11 and each other"},
      {"include/base/", {"base/"}, {"noria/"}, "base is below every room and knows none of them"},
      {"verbs/soft/",
       {"verbs/soft/", "base/"},
       {"infiniband/"},
       "the software HCA is a device: it knows verbs.h and nothing of who uses it"},
      {"verbs/transport/",
       {"verbs/transport/", "verbs/", "base/"},
       {"infiniband/"},
       "the transport stands on verbs and speaks to peers; gradients and NCCL are above it"},
      {"verbs/",
       {"verbs/", "base/"},
       {"infiniband/"},
       "verbs is the machine room: queue pairs, regions, completions, and base"},
      {"plugin/",
       {"plugin/", "verbs/transport/", "verbs/provider.hpp", "base/"},
       {},
       "plugin speaks messages through the transport, and never to the other front door"},
      {"bucketing/",
       {"bucketing/", "verbs/transport/", "verbs/provider.hpp", "base/"},
       {"noria/", "hwy/"},
       "bucketing speaks gradients; bytes go through the transport, and it does not know verbs"},
      {"examples/", {}, {"noria/"}, "an example is what a user can write: installed headers only"},
  };
  return table;
}

bool is_one_of(std::string_view name, const std::vector<std::string_view>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [name](std::string_view prefix) { return name.starts_with(prefix); });
}

// verbs/ reads as a prefix of its inner rooms, which are rooms of their own.
bool leads_into_inner_room(const SourceFile& file, std::string_view name) {
  constexpr std::array<std::string_view, 2> kInner{"verbs/soft/", "verbs/transport/"};
  return std::any_of(kInner.begin(), kInner.end(), [&](std::string_view inner) {
    return name.starts_with(inner) && !file.is_under(inner) && file.is_under("verbs/");
  });
}

bool is_system_folder(std::string_view name) {
  static const std::vector<std::string_view> kSystem{"sys/",  "net/",   "netinet/",
                                                     "arpa/", "linux/", "asm/"};
  return name.find('/') == std::string_view::npos || is_one_of(name, kSystem);
}

std::string allowed_text(const Room& room) {
  std::string text;
  for (const auto& prefix : room.ours)
    text += (text.empty() ? "\"" : ", \"") + std::string(prefix) + "\"";
  for (const auto& prefix : room.angles)
    text += (text.empty() ? "<" : ", <") + std::string(prefix) + ">";
  return text;
}

void check_room(const SourceFile& file, size_t line, const Room& room, bool is_quoted,
                const std::string& name, Violations* out) {
  const std::string shown = is_quoted ? "\"" + name + "\"" : "<" + name + ">";
  const bool is_allowed = is_quoted
                              ? is_one_of(name, room.ours) && !leads_into_inner_room(file, name)
                              : is_one_of(name, room.angles) || is_system_folder(name);
  if (is_allowed) return;
  out->push_back({"arrows", file.path, line,
                  "includes " + shown + "; " + std::string(room.folder) + " may include " +
                      allowed_text(room) + " and the system: " + std::string(room.reason)});
}

}  // namespace

Violations check_includes(const SourceFile& file) {
  static const std::regex kInclude(R"rx(^\s*#\s*include\s*(["<])([^">]+)[">])rx");
  static const std::regex kOurs("^(base|verbs|plugin|bucketing|perf|tests)/.*");
  Violations out;
  if (!file.is_cpp()) return out;
  const auto room = std::find_if(rooms().begin(), rooms().end(),
                                 [&](const Room& r) { return file.is_under(r.folder); });
  for (size_t i = 0; i < file.lines.size(); ++i) {
    std::smatch match;
    // The code view says that the line is no comment; only the plain view still has the name.
    if (file.code[i].find("include") == std::string::npos ||
        !std::regex_search(file.lines[i], match, kInclude))
      continue;
    const bool is_quoted = match[1] == "\"";
    const std::string name = match[2];
    if (is_quoted != std::regex_match(name, kOurs)) {
      out.push_back({"arrows", file.path, i + 1,
                     "includes " + name + (is_quoted ? " in quotes" : " in angle brackets") +
                         "; quotes mean ours, named from the root; angle brackets mean a public "
                         "promise: the system's, a library's, or <noria/...>"});
    } else if (room != rooms().end()) {
      check_room(file, i + 1, *room, is_quoted, name, &out);
    } else if (file.is_under("perf/") && name.starts_with("infiniband/")) {
      out.push_back({"arrows", file.path, i + 1,
                     "includes <" + name +
                         ">; the verbs headers are read under verbs/ only, so "
                         "that one folder knows how verbs calls report failure"});
    }
  }
  return out;
}

}  // namespace noria::tidy
