// Collectives, algorithms and protocols: NCCL's numbers, and how people write them.
//
// Algorithms and protocols are written as in NCCL_ALGO and NCCL_PROTO, collectives as nccl-tests
// names its programs; upper and lower case are the same.
//
// Threads: plain values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace noria::plugin::tuner {

enum class Collective : uint8_t { broadcast, reduce, all_gather, reduce_scatter, all_reduce };
enum class Algorithm : uint8_t { tree, ring, collnet_direct, collnet_chain, nvls, nvls_tree, pat };
enum class Protocol : uint8_t { ll, ll128, simple };
// By compute capability 7, 8, 9 and 10 and above: the rows of NCCL's own constants.
enum class Gpu : uint8_t { volta, ampere, hopper, blackwell };

inline constexpr std::array<std::string_view, 5> kCollectives{"broadcast", "reduce", "all_gather",
                                                              "reduce_scatter", "all_reduce"};
inline constexpr std::array<std::string_view, 7> kAlgorithms{
    "Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"};
inline constexpr std::array<std::string_view, 3> kProtocols{"LL", "LL128", "Simple"};
inline constexpr std::array<std::string_view, 4> kGpus{"volta", "ampere", "hopper", "blackwell"};

// An algorithm with a protocol is a cell of NCCL's cost table.
inline constexpr size_t kCells = kAlgorithms.size() * kProtocols.size();
constexpr size_t cell_of(Algorithm algorithm, Protocol protocol) {
  return static_cast<size_t>(algorithm) * kProtocols.size() + static_cast<size_t>(protocol);
}
constexpr Algorithm algorithm_of(size_t cell) {
  return static_cast<Algorithm>(cell / kProtocols.size());
}
constexpr Protocol protocol_of(size_t cell) {
  return static_cast<Protocol>(cell % kProtocols.size());
}

// What NCCL has kernels for.
constexpr bool is_possible(Collective collective, Algorithm algorithm) {
  const bool is_all_reduce = collective == Collective::all_reduce;
  const bool is_gather =
      collective == Collective::all_gather || collective == Collective::reduce_scatter;
  switch (algorithm) {
    case Algorithm::ring: return true;
    case Algorithm::tree:
    case Algorithm::collnet_chain:
    case Algorithm::nvls_tree: return is_all_reduce;
    case Algorithm::collnet_direct:
    case Algorithm::nvls: return is_all_reduce || is_gather;
    case Algorithm::pat: return is_gather;
  }
  return false;
}
constexpr bool is_possible(Algorithm algorithm, Protocol protocol) {
  return protocol == Protocol::simple || algorithm == Algorithm::tree ||
         algorithm == Algorithm::ring;
}

// NCCL rounds a chunk down to a multiple of this, and divides by what is left.
constexpr uint32_t grain_of(Protocol protocol) {
  constexpr std::array<uint32_t, 3> kGrains{16, 1920, 512};
  return kGrains[static_cast<size_t>(protocol)];
}

template <class Word>
constexpr std::span<const std::string_view> names_of() {
  if constexpr (std::is_same_v<Word, Collective>) return kCollectives;
  if constexpr (std::is_same_v<Word, Algorithm>) return kAlgorithms;
  if constexpr (std::is_same_v<Word, Protocol>) return kProtocols;
  if constexpr (std::is_same_v<Word, Gpu>) return kGpus;
}

template <class Word>
constexpr std::string_view name_of(Word word) {
  return names_of<Word>()[static_cast<size_t>(word)];
}

// Nothing when it is none of the names.
template <class Word>
std::optional<Word> find_word(std::string_view text) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  const auto names = names_of<Word>();
  for (size_t i = 0; i < names.size(); ++i) {
    bool is_same = names[i].size() == text.size();
    for (size_t at = 0; is_same && at < text.size(); ++at)
      is_same = lower(names[i][at]) == lower(text[at]);
    if (is_same) return static_cast<Word>(i);
  }
  return std::nullopt;
}

// "Tree, Ring or PAT", for the text of a refusal.
template <class Word>
std::string choices_text() {
  const auto names = names_of<Word>();
  std::string text(names.front());
  for (size_t i = 1; i < names.size(); ++i)
    text += (i + 1 == names.size() ? " or " : ", ") + std::string(names[i]);
  return text;
}

}  // namespace noria::plugin::tuner
