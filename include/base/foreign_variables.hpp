// Variables that belong to others and are honoured as they stand: launchers', NCCL's, the loader's.
//
// They are not rows of params.def: noria gives them no meaning of its own, no default and no name.
//
// Threads: any thread.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "base/param_table.hpp"

namespace noria {
namespace detail {

struct ForeignVariable {
  std::string_view name;
  std::string Params::*field;
};
inline constexpr std::array kForeignVariables{
    ForeignVariable{"LD_PRELOAD", &Params::ld_preload},
    ForeignVariable{"XDG_RUNTIME_DIR", &Params::xdg_runtime_dir},
    ForeignVariable{"NCCL_ALGO", &Params::nccl_algo},
    ForeignVariable{"NCCL_PROTO", &Params::nccl_proto},
    ForeignVariable{"RANK", &Params::rank},
    ForeignVariable{"WORLD_SIZE", &Params::world_size},
    ForeignVariable{"LOCAL_RANK", &Params::local_rank},
    ForeignVariable{"MASTER_ADDR", &Params::master_addr},
    ForeignVariable{"MASTER_PORT", &Params::master_port},
    ForeignVariable{"OMPI_COMM_WORLD_RANK", &Params::mpi_rank},
    ForeignVariable{"OMPI_COMM_WORLD_SIZE", &Params::mpi_size},
    ForeignVariable{"OMPI_COMM_WORLD_LOCAL_SIZE", &Params::mpi_local_size},
    ForeignVariable{"PMIX_NAMESPACE", &Params::mpi_job},
    ForeignVariable{"SLURM_PROCID", &Params::slurm_rank},
    ForeignVariable{"SLURM_NTASKS", &Params::slurm_size},
    ForeignVariable{"SLURM_JOB_ID", &Params::slurm_job},
    ForeignVariable{"SLURM_STEP_NODELIST", &Params::slurm_nodes},
};

inline void take_foreign(std::string_view name, std::string_view value, Params* params) {
  for (const ForeignVariable& variable : kForeignVariables)
    if (name == variable.name) params->*variable.field = value;
  // A step may run on some of the job's nodes only.
  if (name == "SLURM_JOB_NODELIST" && params->slurm_nodes.empty()) params->slurm_nodes = value;
}

}  // namespace detail

// Rank and size are told by a launcher whose variables noria knows.
inline bool has_launcher(const Params& params) {
  const auto are_set = [](const std::string& rank, const std::string& size) {
    return !rank.empty() && !size.empty();
  };
  return are_set(params.rank, params.world_size) || are_set(params.mpi_rank, params.mpi_size) ||
         are_set(params.slurm_rank, params.slurm_size);
}

}  // namespace noria
