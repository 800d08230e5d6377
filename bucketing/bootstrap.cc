#include "bucketing/bootstrap.hpp"

#include <errno.h>
#include <sys/random.h>

#include <bit>
#include <charconv>
#include <cstring>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "base/value_text.hpp"
#include "bucketing/tcp.hpp"
#include "verbs/transport/interfaces.hpp"

namespace noria::bucketing {
namespace {

constexpr uint64_t kIdMagic = 0x31444941'49524f4e;  // "NORIAID1"
constexpr uint32_t kIdVersion = 1;
constexpr int kTorchPortOffset = 29;

struct IdContents {
  uint64_t magic = kIdMagic;
  uint32_t version = kIdVersion;
  uint16_t port = 0;
  uint16_t reserved = 0;
  uint64_t token_low = 0, token_high = 0;
  char host[64] = {};  // numeric, NUL-terminated
  char reserved_tail[32] = {};
};
static_assert(sizeof(IdContents) == sizeof(noria_unique_id));

struct Reservation {
  uint64_t token_low = 0, token_high = 0;
  Fd socket;
};

// Process-wide, because an id is made before there is any communicator to keep it.
Mutex reservations_mutex;
std::vector<Reservation>& reservations() NORIA_REQUIRES(reservations_mutex) {
  static auto* list = new std::vector<Reservation>;  // never destroyed: ids outlive static order
  return *list;
}

Fd take_reservation(const Rendezvous& rendezvous) {
  const MutexLock lock(reservations_mutex);
  auto& list = reservations();
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i].token_low != rendezvous.token_low || list[i].token_high != rendezvous.token_high)
      continue;
    Fd socket = std::move(list[i].socket);
    list.erase(list.begin() + static_cast<ptrdiff_t>(i));
    return socket;
  }
  return Fd();
}

uint64_t mix(uint64_t hash, const std::string& text) {
  for (const char c : text)
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;  // FNV-1a
  return hash;
}

bool parse_number(const std::string& text, int32_t least, int32_t most, int32_t* number) {
  int32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return false;
  if (value < least || value > most) return false;
  *number = value;
  return true;
}

Failure no_launcher(const std::string& what) {
  return {NORIA_E_ARG,
          what +
              ". Ranks are told who they are by one of\n"
              "  noria_comm_config: rank, size and id\n"
              "  NORIA_ROOT=host:port, with rank and size of the config or of a launcher\n"
              "  torchrun: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT (noria listens on "
              "MASTER_PORT + 29)\n"
              "  mpirun: OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE; NORIA_ROOT too, unless all "
              "ranks are on one host\n"
              "  srun: SLURM_PROCID, SLURM_NTASKS, SLURM_JOB_ID, SLURM_JOB_NODELIST (noria listens "
              "on the first host, port 20000 + job id modulo 20000)"};
}

// A variable of a launcher, for the text of failures.
struct Given {
  const char* name;
  const std::string& value;

  Outcome<int32_t> number(int32_t least, int32_t most, const char* range) const {
    int32_t number = 0;
    if (parse_number(value, least, most, &number)) return number;
    return no_launcher(std::string(name) + ": '" + printable(value) + "' is not a number " + range);
  }
};

enum class Launcher { none, torchrun, mpirun, slurm };

Launcher launcher_of(const Params& params) {
  if (!params.rank.empty() || !params.world_size.empty()) return Launcher::torchrun;
  if (!params.mpi_rank.empty() && !params.mpi_size.empty()) return Launcher::mpirun;
  if (!params.slurm_rank.empty() && !params.slurm_size.empty()) return Launcher::slurm;
  return Launcher::none;
}

Outcome<Ok> take_rank(const Given& rank, const Given& size, Rendezvous* result) {
  constexpr int32_t kMost = 1 << 20;
  NORIA_TRY_ASSIGN(result->size, size.number(1, kMost, "from 1"));
  NORIA_TRY_ASSIGN(result->rank, rank.number(0, kMost, "from 0"));
  return Ok{};
}

// Fills in rank and size, from the caller or else from the launcher.
Outcome<Ok> find_rank(const Params& params, int32_t rank, int32_t size, Rendezvous* result) {
  if ((rank < 0) != (size < 0))
    return Failure{NORIA_E_ARG,
                   "noria_comm_config has " +
                       std::string(rank < 0 ? "a size but no rank" : "a rank but no size") +
                       ": give both, or -1 for both to have the launcher's"};
  if (rank >= 0) {
    result->rank = rank;
    result->size = size;
  } else {
    switch (launcher_of(params)) {
      case Launcher::none: return no_launcher("no launcher: RANK is not set");
      case Launcher::torchrun:
        if (params.rank.empty() || params.world_size.empty())
          return no_launcher(std::string("no launcher: ") +
                             (params.rank.empty() ? "RANK" : "WORLD_SIZE") + " is not set");
        NORIA_TRY(take_rank({"RANK", params.rank}, {"WORLD_SIZE", params.world_size}, result));
        break;
      case Launcher::mpirun:
        NORIA_TRY(take_rank({"OMPI_COMM_WORLD_RANK", params.mpi_rank},
                            {"OMPI_COMM_WORLD_SIZE", params.mpi_size}, result));
        break;
      case Launcher::slurm:
        NORIA_TRY(take_rank({"SLURM_PROCID", params.slurm_rank},
                            {"SLURM_NTASKS", params.slurm_size}, result));
        break;
    }
  }
  if (result->size < 1 || result->rank >= result->size)
    return Failure{NORIA_E_ARG, "rank " + std::to_string(result->rank) + " of " +
                                    std::to_string(result->size) +
                                    " ranks: it goes from 0 to size - 1"};
  return Ok{};
}

constexpr uint16_t kFirstJobPort = 20000;
constexpr uint64_t kJobPorts = 20000;

Outcome<Ok> find_torchruns_root(const Params& params, Rendezvous* result) {
  if (params.master_addr.empty() || params.master_port.empty())
    return no_launcher(std::string("nobody says where rank 0 is: NORIA_ROOT and ") +
                       (params.master_addr.empty() ? "MASTER_ADDR" : "MASTER_PORT") +
                       " are not set");
  constexpr int32_t kMost = 65535 - kTorchPortOffset;
  const Given given{"MASTER_PORT", params.master_port};
  const std::string range = "from 1 to " + std::to_string(kMost);
  NORIA_TRY_ASSIGN(const int32_t port, given.number(1, kMost, range.c_str()));
  result->host = params.master_addr;
  result->port = static_cast<uint16_t>(port + kTorchPortOffset);
  return Ok{};
}

Outcome<Ok> find_mpiruns_root(const Params& params, Rendezvous* result) {
  int32_t here = 0;
  if (!parse_number(params.mpi_local_size, 1, INT32_MAX, &here) || here != result->size)
    return no_launcher(
        "nobody says where rank 0 is: mpirun started ranks on several hosts, and NORIA_ROOT is not "
        "set");
  result->host = "127.0.0.1";
  result->port =
      static_cast<uint16_t>(kFirstJobPort + mix(0xcbf29ce484222325, params.mpi_job) % kJobPorts);
  return Ok{};
}

// "node[01-03,07]-a[1,2],login" begins with "node01-a1".
std::string first_host(const std::string& list) {
  std::string host;
  bool in_bracket = false, is_first = false;
  for (const char c : list) {
    if (c == ',' && !in_bracket) break;
    if (c == '[') {
      in_bracket = is_first = true;
    } else if (c == ']') {
      in_bracket = false;
    } else if (in_bracket && (c == ',' || c == '-')) {
      is_first = false;
    } else if (!in_bracket || is_first) {
      host += c;
    }
  }
  return host;
}

Outcome<Ok> find_slurms_root(const Params& params, Rendezvous* result) {
  const std::string host = first_host(params.slurm_nodes);
  if (host.empty() || params.slurm_job.empty())
    return no_launcher(std::string("nobody says where rank 0 is: NORIA_ROOT and ") +
                       (host.empty() ? "SLURM_JOB_NODELIST" : "SLURM_JOB_ID") + " are not set");
  const Given job{"SLURM_JOB_ID", params.slurm_job};
  NORIA_TRY_ASSIGN(const int32_t id, job.number(0, INT32_MAX, "from 0"));
  result->host = host;
  result->port = static_cast<uint16_t>(kFirstJobPort + static_cast<uint64_t>(id) % kJobPorts);
  return Ok{};
}

Outcome<Ok> find_root(const Params& params, Rendezvous* result) {
  if (!params.root.empty()) {
    if (parse_host_port(params.root, &result->host, &result->port)) return Ok{};
    return Failure{NORIA_E_ARG, "NORIA_ROOT: '" + printable(params.root) +
                                    "' is not accepted; it takes host:port, or [address]:port"};
  }
  if (result->size == 1) return Ok{};
  switch (launcher_of(params)) {
    case Launcher::mpirun: return find_mpiruns_root(params, result);
    case Launcher::slurm: return find_slurms_root(params, result);
    default: return find_torchruns_root(params, result);
  }
}

}  // namespace

Outcome<Rendezvous> rendezvous_from_launcher(const Params& params, int32_t rank, int32_t size) {
  Rendezvous result;
  NORIA_TRY(find_rank(params, rank, size, &result));
  NORIA_TRY(find_root(params, &result));
  const std::string job =
      result.host + ":" + std::to_string(result.port) + "/" + std::to_string(result.size);
  result.token_low = mix(0xcbf29ce484222325, job);
  result.token_high = mix(result.token_low, job);
  return result;
}

Outcome<noria_unique_id> make_unique_id(const Params& params) {
  auto interface = transport::choose_interface(transport::list_interfaces(), params);
  if (!interface) return Failure{NORIA_E_NET, interface.failure()};
  return make_unique_id_at(interface->host);
}

Outcome<noria_unique_id> make_unique_id_at(const std::string& host) {
  TcpAddress address;
  NORIA_CHECK(parse_numeric(host, 0, &address), "an interface's address is a number");
  auto socket = reserve_port(address);
  if (!socket) return Failure{NORIA_E_NET, socket.failure()};

  IdContents contents;
  uint64_t token[2];
  if (::getrandom(token, sizeof token, 0) != sizeof token)
    return Failure{NORIA_E_INTERNAL, std::string("no random numbers: ") + std::strerror(errno)};
  contents.token_low = token[0];
  contents.token_high = token[1];
  contents.port = local_address(*socket).port();
  std::memcpy(contents.host, host.data(), host.size());

  const MutexLock lock(reservations_mutex);
  reservations().push_back({contents.token_low, contents.token_high, std::move(*socket)});
  return std::bit_cast<noria_unique_id>(contents);
}

Outcome<Rendezvous> read_unique_id(const noria_unique_id& id, int32_t rank, int32_t size) {
  if (size < 1 || rank < 0 || rank >= size)
    return Failure{NORIA_E_ARG, "rank " + std::to_string(rank) + " of " + std::to_string(size) +
                                    " ranks: with an id, rank goes from 0 to size - 1"};
  const auto contents = std::bit_cast<IdContents>(id);
  TcpAddress address;
  if (contents.magic != kIdMagic || contents.host[sizeof contents.host - 1] != '\0' ||
      contents.port == 0 || !parse_numeric(contents.host, contents.port, &address))
    return Failure{NORIA_E_ARG,
                   "the 128 bytes of id are not what noria_get_unique_id() made: were they carried "
                   "to this rank whole?"};
  if (contents.version != kIdVersion)
    return Failure{NORIA_E_MISMATCH, "the id has version " + std::to_string(contents.version) +
                                         ", this library makes " + std::to_string(kIdVersion) +
                                         ": use the same noria on all ranks"};
  return Rendezvous{
      rank, size, contents.host, contents.port, contents.token_low, contents.token_high};
}

Outcome<Fd> open_reserved_listener(const Rendezvous& rendezvous) {
  TcpAddress address;
  NORIA_CHECK(parse_numeric(rendezvous.host, rendezvous.port, &address),
              "read_unique_id() takes numbers only");
  // Held until the listener stands, so that nobody else gets the port in between.
  const Fd reservation = take_reservation(rendezvous);
  auto listener = listen_on(address);
  if (!listener)
    return Failure{NORIA_E_NET, "rank 0: " + listener.failure() +
                                    "; the id must be made by the process that becomes rank 0, or "
                                    "by a parent that forks it, and serves one communicator"};
  return std::move(*listener);
}

void drop_reservation(const Rendezvous& rendezvous) {
  static_cast<void>(take_reservation(rendezvous));
}

}  // namespace noria::bucketing
