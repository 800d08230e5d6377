// Environment variables: NAME=value entries, each ended by a zero byte.
#include "base/params.hpp"

#include "tests/fuzz/input.hpp"

namespace {

using noria::Params;
using noria::Result;

Result<Params, std::string> load(const std::vector<std::string>& entries) {
  std::vector<const char*> environment;
  for (const std::string& entry : entries) environment.push_back(entry.c_str());
  environment.push_back(nullptr);
  return noria::load_params(environment.data());
}

void check_values(const std::string& text) {
  uint64_t number = 0;
  if (noria::detail::parse_uint(text, &number)) {
    uint64_t again = 0;
    NORIA_CHECK(noria::detail::parse_uint(noria::detail::bytes_text(number, "bytes"), &again) &&
                    again == number,
                "a size that is written is read again");
  }
  double real = 0;
  if (noria::detail::parse_real(text, &real)) {
    double again = 0;
    NORIA_CHECK(
        noria::detail::parse_real(noria::detail::number_text(real), &again) && again == real,
        "a number that is written is read again");
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::vector<std::string> entries = noria::fuzz::Input(data, size).take_parts('\0');
  for (const std::string& entry : entries) check_values(entry);

  const auto params = load(entries);
  if (!params) {
    NORIA_CHECK(noria::fuzz::is_one_line(params.failure()), "a refusal is one line");
    NORIA_CHECK(params.failure().find("NORIA_") != std::string::npos, "it names a variable");
    return 0;
  }

  // Written down, what was accepted is accepted again and is the same.
  const std::vector<noria::ParamRow> rows = noria::param_rows(*params);
  std::vector<std::string> written;
  for (const noria::ParamRow& row : rows)
    written.push_back(std::string(row.name) + "=" + row.value);
  const auto again = load(written);
  NORIA_CHECK(again.is_ok(), "what noria_info shows is accepted");
  const std::vector<noria::ParamRow> rows_again = noria::param_rows(*again);
  for (size_t i = 0; i < rows.size(); ++i)
    NORIA_CHECK(rows[i].value == rows_again[i].value, "a value is shown as it was read");
#define NORIA_PARAM_TEXT(field, ...) NORIA_CHECK(params->field == again->field, #field);
#include "base/params.def"
  return 0;
}
