// Bootstrap: who am I, and where is rank 0.
//
// From a unique id that rank 0 made, or from the launcher's variables:
//
//   NORIA_ROOT=host:port                      where rank 0 is; wins over the launcher's address
//   torchrun: RANK, WORLD_SIZE                who this is
//             MASTER_ADDR, MASTER_PORT + 29   where rank 0 is (torch's store owns MASTER_PORT)
//   mpirun:   OMPI_COMM_WORLD_RANK, _SIZE     who this is
//             OMPI_COMM_WORLD_LOCAL_SIZE      as large: all ranks are on this host, and meet at a
//                                             port that PMIX_NAMESPACE tells; else NORIA_ROOT
//   srun:     SLURM_PROCID, SLURM_NTASKS      who this is
//             SLURM_STEP_NODELIST, or _JOB_   rank 0 is on the first of its hosts,
//             SLURM_JOB_ID                    at port 20000 + this modulo 20000
//
// The first launcher of this order whose rank and size are set counts: torchrun and mpirun run
// inside allocations of Slurm.
//
// The token that a caller shows at rank 0 is random in a unique id. From variables it is a hash of
// host, port and size: it keeps apart jobs and stray connections, not an attacker.
//
// Threads: any thread.
#pragma once

#include <noria/bucketing.h>

#include <cstdint>
#include <string>

#include "base/fd.hpp"
#include "base/params.hpp"
#include "bucketing/failure.hpp"

namespace noria::bucketing {

struct Rendezvous {
  int32_t rank = 0;
  int32_t size = 1;
  std::string host;  // of rank 0; empty for a single rank that nobody needs to find
  uint16_t port = 0;
  uint64_t token_low = 0, token_high = 0;
};

// Reserves a port on the chosen interface. The reservation lives in this process until take_
// or drop_reservation(), and in children across fork.
Outcome<noria_unique_id> make_unique_id(const Params& params);
// The same on an interface of this host by its numeric address.
Outcome<noria_unique_id> make_unique_id_at(const std::string& host);
// ARG when the bytes are no unique id.
Outcome<Rendezvous> read_unique_id(const noria_unique_id& id, int32_t rank, int32_t size);
// Rank 0: a listener on the id's port, in place of the reservation.
Outcome<Fd> open_reserved_listener(const Rendezvous& rendezvous);
// The other ranks: gives up the copy that a fork left here.
void drop_reservation(const Rendezvous& rendezvous);

// Pure. `rank` and `size` of the caller, -1 for unknown. The failure prints the table above.
Outcome<Rendezvous> rendezvous_from_launcher(const Params& params, int32_t rank, int32_t size);

}  // namespace noria::bucketing
