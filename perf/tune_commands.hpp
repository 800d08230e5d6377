// The commands of noria_tune, a file each: tune_check.cc and so on.
//
// argv[0] is the command's own name. Each parses its flags, prints, and answers an exit code; bad
// usage and what is wrong with a file are thrown as ToolError.
//
// Threads: init only.
#pragma once

#include <string>

#include "perf/exit_codes.hpp"
#include "plugin/tuner/words.hpp"

namespace noria::perf {

int tune_buckets(int argc, char** argv);
int tune_check(int argc, char** argv);
int tune_explain(int argc, char** argv);
int tune_fit(int argc, char** argv);
int tune_plot(int argc, char** argv);
int tune_regret(int argc, char** argv);
int tune_rows(int argc, char** argv);
int tune_sweep(int argc, char** argv);

// The value of a flag that takes one of the tuner's words; throws ToolError (usage) that names all.
template <class Word>
Word word_of(const char* flag, const std::string& text) {
  const auto word = plugin::tuner::find_word<Word>(text);
  if (!word)
    throw usage_error(std::string(flag) + ": '" + text + "' is not accepted; it takes " +
                      plugin::tuner::choices_text<Word>());
  return *word;
}

}  // namespace noria::perf
