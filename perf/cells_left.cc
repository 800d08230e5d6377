#include "perf/cells_left.hpp"

#include <algorithm>
#include <array>

namespace noria::perf {
namespace {

namespace words = plugin::tuner;
using words::Algorithm;
using words::Collective;
using words::Protocol;

// As NCCL names its functions, in any case.
constexpr std::array<std::string_view, words::kCollectives.size()> kFunctions{
    "broadcast", "reduce", "allgather", "reducescatter", "allreduce"};

bool is_same(std::string_view text, std::string_view lower) {
  return std::equal(text.begin(), text.end(), lower.begin(), lower.end(), [](char a, char b) {
    return (a >= 'A' && a <= 'Z' ? static_cast<char>(a + 32) : a) == b;
  });
}

std::string_view take_until(char end, std::string_view* text) {
  const std::string_view taken = text->substr(0, text->find(end));
  text->remove_prefix(std::min(taken.size() + 1, text->size()));
  return taken;
}

// A bit for each word of a list, or for each that is not in it.
template <class Word>
uint32_t words_of(std::string_view list) {
  const bool is_without = list.starts_with('^');
  if (is_without) list.remove_prefix(1);
  uint32_t named = 0;
  while (!list.empty())
    if (const auto word = words::find_word<Word>(take_until(',', &list)))
      named |= uint32_t{1} << static_cast<uint32_t>(*word);
  return is_without ? ~named : named;
}

template <class Word>
uint32_t words_left(Collective collective, std::string_view setting) {
  uint32_t left = ~uint32_t{0};
  while (!setting.empty()) {
    std::string_view list = take_until(';', &setting);
    if (list.find(':') != std::string_view::npos &&
        !is_same(take_until(':', &list), kFunctions[static_cast<size_t>(collective)]))
      continue;
    left = words_of<Word>(list);
  }
  return left;
}

}  // namespace

Cells cells_left(Collective collective, std::string_view nccl_algo, std::string_view nccl_proto) {
  const uint32_t algorithms = words_left<Algorithm>(collective, nccl_algo);
  const uint32_t protocols = words_left<Protocol>(collective, nccl_proto);
  Cells left = 0;
  for (size_t cell = 0; cell < words::kCells; ++cell) {
    const Algorithm algorithm = words::algorithm_of(cell);
    const Protocol protocol = words::protocol_of(cell);
    if (words::is_possible(collective, algorithm) && words::is_possible(algorithm, protocol) &&
        (algorithms >> static_cast<uint32_t>(algorithm) & 1) != 0 &&
        (protocols >> static_cast<uint32_t>(protocol) & 1) != 0)
      left |= Cells{1} << cell;
  }
  return left;
}

Cells cells_of(std::optional<Algorithm> algorithm, std::optional<Protocol> protocol) {
  Cells cells = 0;
  for (size_t cell = 0; cell < words::kCells; ++cell)
    if (algorithm.value_or(words::algorithm_of(cell)) == words::algorithm_of(cell) &&
        protocol.value_or(words::protocol_of(cell)) == words::protocol_of(cell))
      cells |= Cells{1} << cell;
  return cells;
}

}  // namespace noria::perf
