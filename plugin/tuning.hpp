// Tuning: the rows that are of use on this machine, and what of them peers must agree on.
//
// First those of the table that NORIA_TUNER_TABLE names, then those that come with noria: the files
// of the folder noria/tables beside the library, in order of their names. The first that fits is
// the choice. Rows for other hardware are left out, and one INFO line says how many were kept.
//
// A table of the user's that cannot be read or is not understood leaves all choices to NCCL, with
// one WARN line that says file, line and column: which rows were meant nobody knows. One that came
// with noria is left out, with the same line; so are all of them where their folder cannot be read.
// Where there is no such folder there are none.
//
// Threads: init only; afterwards immutable.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/params.hpp"
#include "plugin/abi/result.hpp"
#include "plugin/tuner/table.hpp"
#include "verbs/provider.hpp"

namespace noria::plugin {

struct Tuning {
  tuner::Hardware hardware;
  tuner::Table table;
  uint64_t fingerprint = 0;  // 0: nothing that ranks could disagree on

  static Tuning load(const Params& params, const tuner::Hardware& hardware);
};

// The fastest of the ports, how many there are of them, the GPU of this process, and the NCCL that
// the logger belongs to.
tuner::Hardware find_hardware(const std::vector<verbs::PortInfo>& ports, abi::Logger logger);

}  // namespace noria::plugin
