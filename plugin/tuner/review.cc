#include "plugin/tuner/review.hpp"

#include <algorithm>

namespace noria::plugin::tuner {
namespace {

bool covers(const Link& all, const Link& part) {
  return all.kind == LinkKind::any ||
         (all.kind == part.kind && (all.gbit == 0 || all.gbit == part.gbit));
}
bool meets(const Link& a, const Link& b) { return covers(a, b) || covers(b, a); }

bool covers_but_for_sizes(const Row& all, const Row& part) {
  return all.nodes.covers(part.nodes) && all.ranks_per_node.covers(part.ranks_per_node) &&
         all.nics.covers(part.nics) && all.nccl.covers(part.nccl) && covers(all.link, part.link) &&
         (!all.gpu || all.gpu == part.gpu);
}
bool covers(const Row& all, const Row& part) {
  return all.bytes.covers(part.bytes) && covers_but_for_sizes(all, part);
}

bool meets(const Row& a, const Row& b) {
  return a.bytes.meets(b.bytes) && a.nodes.meets(b.nodes) &&
         a.ranks_per_node.meets(b.ranks_per_node) && a.nics.meets(b.nics) && a.nccl.meets(b.nccl) &&
         meets(a.link, b.link) && (!a.gpu || !b.gpu || a.gpu == b.gpu);
}

bool says_the_same(const Row& a, const Row& b) {
  return a.channels == b.channels && a.chunk_bytes == b.chunk_bytes &&
         a.is_predicted == b.is_predicted && a.fixed_us == b.fixed_us &&
         a.us_per_mib == b.us_per_mib;
}

std::string line_of(const Row& row) { return "line " + std::to_string(row.line); }

// Of the sizes at which both fit: times are straight lines, so the ends are enough. An end that is
// open is looked at from 1 GiB on.
bool is_slower(const Row& earlier, const Row& later, uint64_t* at) {
  constexpr uint64_t kOpenEnd = uint64_t{1} << 30;
  const uint64_t first = std::max(earlier.bytes.first, later.bytes.first);
  const uint64_t last = std::min(earlier.bytes.last, later.bytes.last);
  for (const uint64_t bytes : {first, last == UINT64_MAX ? std::max(first, kOpenEnd) : last}) {
    *at = bytes;
    if (earlier.predicted_us(bytes) > later.predicted_us(bytes) * (1 + earlier.max_regret))
      return true;
  }
  return false;
}

// Empty, or what is wrong with the two.
std::string compare(const Row& earlier, const Row& later) {
  if (earlier.collective != later.collective || !meets(earlier, later)) return "";
  if (earlier.cell() == later.cell()) {
    if (covers(earlier, later))
      return line_of(later) + " is never reached: " + line_of(earlier) +
             " has the same choice and fits wherever it does";
    if (says_the_same(earlier, later)) return "";
    return line_of(later) + " contradicts " + line_of(earlier) +
           ": both have this choice where both fit, and say different things of it";
  }
  uint64_t at = 0;
  if (earlier.is_predicted && later.is_predicted && is_slower(earlier, later, &at))
    return line_of(earlier) + " counts before " + line_of(later) +
           ", and is predicted to be slower at " + std::to_string(at) + " bytes";
  return "";
}

// Whether earlier rows of the same choice, each of some of its sizes, leave a row none.
bool is_covered_in_parts(const std::vector<Row>& rows, size_t later) {
  const Row& row = rows[later];
  std::vector<Range> parts;
  for (size_t i = 0; i < later; ++i)
    if (rows[i].collective == row.collective && rows[i].cell() == row.cell() &&
        rows[i].bytes.meets(row.bytes) && covers_but_for_sizes(rows[i], row))
      parts.push_back(rows[i].bytes);
  std::sort(parts.begin(), parts.end(),
            [](const Range& a, const Range& b) { return a.first < b.first; });
  uint64_t next = row.bytes.first;
  for (const Range& part : parts) {
    if (part.first > next) return false;
    if (part.last >= row.bytes.last) return true;
    next = std::max(next, part.last + 1);
  }
  return false;
}

}  // namespace

std::vector<std::string> review(const Table& table, size_t most) {
  std::vector<std::string> findings;
  for (size_t later = 0; later < table.rows.size(); ++later) {
    std::string finding;  // the first row that stands in its way is enough
    for (size_t earlier = 0; earlier < later && finding.empty(); ++earlier)
      finding = compare(table.rows[earlier], table.rows[later]);
    if (finding.empty() && is_covered_in_parts(table.rows, later))
      finding = line_of(table.rows[later]) +
                " is never reached: earlier lines have the same choice and fit wherever it does";
    if (finding.empty()) continue;
    findings.push_back(std::move(finding));
    if (findings.size() == most) return findings;
  }
  return findings;
}

}  // namespace noria::plugin::tuner
