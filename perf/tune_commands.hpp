// The commands of noria_tune, a file each: tune_check.cc and so on.
//
// argv[0] is the command's own name. Each parses its flags, prints, and answers an exit code; bad
// usage and what is wrong with a file are thrown as ToolError.
//
// Threads: init only.
#pragma once

namespace noria::perf {

int tune_buckets(int argc, char** argv);
int tune_check(int argc, char** argv);
int tune_explain(int argc, char** argv);
int tune_fit(int argc, char** argv);
int tune_plot(int argc, char** argv);
int tune_regret(int argc, char** argv);
int tune_rows(int argc, char** argv);
int tune_sweep(int argc, char** argv);

}  // namespace noria::perf
