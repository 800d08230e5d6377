// Which algorithms and protocols a user's NCCL_ALGO and NCCL_PROTO leave to NCCL.
//
// As NCCL reads them: a list ("Ring,Tree"), all but a list ("^NVLS,NVLSTree"), and since 2.24 both
// for one function, behind others that are for all ("ring;allreduce:tree,nvls"), of which the last
// that is for the collective counts. Upper and lower case are the same; an unknown word is none.
//
// Threads: any thread; pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "plugin/tuner/words.hpp"

namespace noria::perf {

// A bit for each cell of NCCL's cost table, by cell_of().
using Cells = uint32_t;
inline constexpr Cells kAllCells = (Cells{1} << plugin::tuner::kCells) - 1;

constexpr bool has_cell(Cells cells, size_t cell) { return (cells >> cell & 1) != 0; }

// Of those that NCCL has for the collective; an empty text leaves all of them.
Cells cells_left(plugin::tuner::Collective collective, std::string_view nccl_algo,
                 std::string_view nccl_proto);

// Those of one algorithm, of one protocol, or of both.
Cells cells_of(std::optional<plugin::tuner::Algorithm> algorithm,
               std::optional<plugin::tuner::Protocol> protocol);

}  // namespace noria::perf
