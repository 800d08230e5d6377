// The table of params.def as types: Params with a field for each row, and the rows to walk over.
//
// for_each_param() is the one way to walk: reading, showing and naming are visitors of it.
//
// Threads: values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/param_kinds.hpp"
#include "base/units.hpp"

namespace noria {

#define NORIA_PARAM_TEXT(field, ...) field,
enum class ParamId : size_t {
#include "base/params.def"
  count
};

enum class ParamSource : uint8_t { by_default, noria, nccl };

struct Params {
#define NORIA_PARAM_TEXT(field, def, ...) std::string field = def;
#define NORIA_PARAM_BOOL(field, def, ...) bool field = def;
#define NORIA_PARAM_UINT(field, def, ...) uint64_t field = def;
#define NORIA_PARAM_AUTO(field, ...) std::optional<uint64_t> field;
#define NORIA_PARAM_REAL(field, def, ...) double field = def;
#include "base/params.def"

  // Of each row, where its value comes from.
  std::array<ParamSource, static_cast<size_t>(ParamId::count)> sources{};
  // A line for each value of NCCL's in the place of which another is taken.
  std::vector<std::string> notices;

  // Variables of other programs, as they stand.
  std::string ld_preload, xdg_runtime_dir;
  // Set where the user chooses NCCL's algorithms or protocols.
  std::string nccl_algo, nccl_proto;
  // What a launcher says of this process; empty where absent.
  std::string rank, world_size, local_rank, master_addr, master_port;
  std::string mpi_rank, mpi_size, mpi_local_size, mpi_job;     // mpirun of OpenMPI
  std::string slurm_rank, slurm_size, slurm_job, slurm_nodes;  // srun
};

namespace detail {

// The two names of a row, and NCCL's words for noria's.
struct ParamNames {
  const char* noria;
  std::string_view nccl, nccl_words;  // "0=off ..=on", "17..128=16 *"
  const char* sentence;

  ParamNames(const char* own, std::string_view other, const char* says)
      : noria(own), nccl(take_until(&other, ' ')), nccl_words(other), sentence(says) {}

  // What NCCL's word is in ours; itself where they speak alike.
  std::string_view translated(std::string_view word) const {
    std::string_view rest = nccl_words;
    while (!rest.empty()) {
      std::string_view pair = take_until(&rest, ' ');
      if (pair == "*") return word;
      const std::string_view theirs = take_until(&pair, '=');
      if (theirs == word || is_in_range(word, theirs)) return pair;
    }
    return nccl_words.empty() ? word : std::string_view();
  }
  // Whether some of NCCL's numbers are out of our range.
  bool has_range() const { return nccl_words.ends_with('*'); }
  // "0|1|any other number", of NCCL's words.
  std::string nccl_accepts(std::string otherwise) const {
    if (nccl_words.empty() || has_range()) return otherwise;
    std::string text;
    for (std::string_view rest = nccl_words; !rest.empty();) {
      std::string_view pair = take_until(&rest, ' ');
      const std::string_view theirs = take_until(&pair, '=');
      text += (text.empty() ? "" : "|") + std::string(theirs == ".." ? "any other number" : theirs);
    }
    return text;
  }

 private:
  // Whether `word` is a number of "17..128", of "17.." or of "..".
  static bool is_in_range(std::string_view word, std::string_view range) {
    const size_t dots = range.find("..");
    int64_t number = 0, least = INT64_MIN, most = INT64_MAX;
    if (dots == std::string_view::npos || !parse_nccl_int(word, &number)) return false;
    const std::string_view first = range.substr(0, dots), last = range.substr(dots + 2);
    return (first.empty() || parse_nccl_int(first, &least)) &&
           (last.empty() || parse_nccl_int(last, &most)) && least <= number && number <= most;
  }
};

// Calls visit(ParamId, const ParamNames&, field&, kind) for each row, in table order.
template <class AnyParams, class Visit>
void for_each_param(AnyParams& p, const Visit& visit) {
#define NORIA_PARAM_ROW(field, name, nccl, sentence, ...) \
  visit(ParamId::field, ParamNames(name, nccl, sentence), p.field, __VA_ARGS__);
#define NORIA_PARAM_TEXT(field, def, name, nccl, form, sentence) \
  NORIA_PARAM_ROW(field, name, nccl, sentence, TextKind{form})
#define NORIA_PARAM_CHOICE(field, def, name, nccl, choices, sentence) \
  NORIA_PARAM_ROW(field, name, nccl, sentence, ChoiceKind{choices})
#define NORIA_PARAM_BOOL(field, def, name, nccl, sentence) \
  NORIA_PARAM_ROW(field, name, nccl, sentence, BoolKind{})
#define NORIA_PARAM_UINT(field, def, min, max, unit, name, nccl, sentence) \
  NORIA_PARAM_ROW(field, name, nccl, sentence, UintKind{min, max, unit})
#define NORIA_PARAM_AUTO(field, min, max, name, nccl, sentence) \
  NORIA_PARAM_ROW(field, name, nccl, sentence, AutoKind{min, max})
#define NORIA_PARAM_REAL(field, def, min, max, unit, name, nccl, sentence) \
  NORIA_PARAM_ROW(field, name, nccl, sentence, RealKind{min, max, unit})
#include "base/params.def"
#undef NORIA_PARAM_ROW
}

}  // namespace detail

}  // namespace noria
