#include "tests/support/cuda_standin/checker.hpp"

#include <algorithm>

#include "tests/support/cuda_standin/say.hpp"

namespace noria::standin {

namespace {

bool is_ordered(const Actor& actor, const VectorClock& clock, uint32_t part, const Actor& before,
                uint32_t before_part) {
  if (actor.number == before.number) return part == before_part;
  return clock.at(before.clock_id) >= before.time;
}

}  // namespace

void Checker::touch(const Actor& actor, const VectorClock& clock, const Access& access,
                    std::vector<std::string>* violations) {
  if (access.bytes == 0) return;
  const uint64_t end = access.first + access.bytes;
  split(access.first);
  split(end);
  fill_gaps(access.first, end);
  const auto from = cells_.lower_bound(access.first);
  const auto to = cells_.lower_bound(end);
  for (auto cell = from; cell != to; ++cell) {
    const uint64_t at = cell->first;
    for (const Touch& touch : cell->second.writer)
      compare(actor, clock, access, touch, true, at, cell->second.end, violations);
    std::vector<Touch>& readers = cell->second.readers;
    if (access.writes) {
      for (const Touch& touch : readers)
        compare(actor, clock, access, touch, false, at, cell->second.end, violations);
      continue;
    }
    const auto own = std::find_if(readers.begin(), readers.end(), [&](const Touch& touch) {
      return touch.actor.clock_id == actor.clock_id;
    });
    if (own != readers.end()) readers.erase(own);
    readers.push_back({actor, access.part});
  }
  if (!access.writes) return;
  cells_.erase(from, to);
  cells_.emplace(access.first, Cell{end, {{actor, access.part}}, {}});
}

void Checker::forget(uint64_t first, uint64_t bytes) {
  split(first);
  split(first + bytes);
  cells_.erase(cells_.lower_bound(first), cells_.lower_bound(first + bytes));
}

void Checker::clear() {
  cells_.clear();
  told_.clear();
}

void Checker::split(uint64_t at) {
  auto cell = cells_.upper_bound(at);
  if (cell == cells_.begin()) return;
  --cell;
  if (cell->first == at || cell->second.end <= at) return;
  Cell rest = cell->second;
  cell->second.end = at;
  cells_.emplace(at, std::move(rest));
}

void Checker::fill_gaps(uint64_t first, uint64_t end) {
  uint64_t at = first;
  while (at < end) {
    const auto next = cells_.lower_bound(at);
    if (next != cells_.end() && next->first == at) {
      at = next->second.end;
      continue;
    }
    const uint64_t until = next == cells_.end() ? end : std::min(end, next->first);
    cells_.emplace(at, Cell{until, {}, {}});
    at = until;
  }
}

void Checker::compare(const Actor& actor, const VectorClock& clock, const Access& access,
                      const Touch& before, bool before_wrote, uint64_t at, uint64_t end,
                      std::vector<std::string>* violations) {
  if (is_ordered(actor, clock, access.part, before.actor, before.part)) return;
  const auto pair = std::minmax(actor.number, before.actor.number);
  if (!told_.insert(pair).second) return;
  violations->push_back(say("%s %s bytes 0x%llx to 0x%llx, which %s %s, and nothing orders the two",
                            actor.name->c_str(), access.writes ? "writes" : "reads",
                            static_cast<unsigned long long>(at),
                            static_cast<unsigned long long>(end), before.actor.name->c_str(),
                            before_wrote ? "writes" : "reads"));
}

}  // namespace noria::standin
