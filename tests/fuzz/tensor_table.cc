// What a rank registers, and how it agrees with others that say anything at all.
#include "bucketing/tensor_table.hpp"

#include "bucketing/agreement.hpp"
#include "bucketing/kernels.hpp"
#include "tests/fuzz/input.hpp"

namespace {

using namespace noria::bucketing;
using noria::fuzz::Input;

// Rows of dtype, elements, length of the name, name.
TensorTable register_tensors(Input& input) {
  TensorTable table;
  uint64_t bytes = 0;
  const int rows = input.take<uint8_t>() % 32;
  for (int i = 0; i < rows; ++i) {
    const noria_dtype dtype = input.take<int8_t>();
    const auto numel = input.take<uint64_t>();
    const std::string name = input.take_text(input.take<uint8_t>());
    const uint32_t before = table.size();
    const auto id = table.add(name, dtype, numel);
    if (!id) {
      NORIA_CHECK(table.size() == before && table.bytes() == bytes, "a refusal leaves no trace");
      NORIA_CHECK(id.failure().code < 0 && !id.failure().text.empty(), "a refusal says why");
      continue;
    }
    NORIA_CHECK(*id == before && table[*id].name == name && table[*id].numel == numel,
                "ids count up, and a tensor is what was registered");
    bytes += numel * dtype_bytes(dtype);
    NORIA_CHECK(table.bytes() == bytes && bytes <= TensorTable::kMaxBytes, "bytes add up");
    NORIA_CHECK(!table.add(name, dtype, numel).is_ok(), "a name is taken once");
  }
  return table;
}

// One peer answers with our own bytes, changed as `input` says: the walk ends, and it ends in
// success only if it was told nothing else than this rank's own words.
void check_agreement(const TensorTable& table, Input& input) {
  bool is_told_the_same = true;
  int rounds = 0;
  const Gather gather = [&](const std::string&,
                            const std::string& mine) -> Outcome<std::vector<std::string>> {
    NORIA_CHECK(++rounds < 16, "a difference is found in a few rounds");
    std::string theirs =
        mine.substr(0, mine.size() - std::min<size_t>(mine.size(), input.take<uint8_t>() % 16));
    for (int edits = input.take<uint8_t>() % 4; edits > 0 && !theirs.empty(); --edits)
      theirs[input.take<uint16_t>() % theirs.size()] = input.take<char>();
    is_told_the_same &= theirs == mine;
    return std::vector<std::string>{mine, theirs};
  };
  const auto agreed = agree(table, {}, gather);
  NORIA_CHECK(agreed.is_ok() == is_told_the_same, "ranks agree when they say the same");
  if (!agreed) {
    NORIA_CHECK(agreed.failure().code == NORIA_E_MISMATCH, "what differs is a mismatch");
    NORIA_CHECK(agreed.failure().text.find("rank") != std::string::npos, "it names ranks");
  }

  const std::string word = input.take_text(12);
  const auto verdict =
      agree_on_success(noria::Ok{}, "fuzz", [&](const std::string&, const std::string& mine) {
        return Outcome<std::vector<std::string>>(std::vector<std::string>{mine, word});
      });
  NORIA_CHECK(verdict.is_ok() == word.empty(), "whoever complains is heard");
  NORIA_CHECK(verdict.is_ok() || verdict.failure().code < 0, "a failure has a failure's code");
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  const TensorTable table = register_tensors(input);
  check_agreement(table, input);
  return 0;
}
