#include "perf/budget_ranks.hpp"

#include <string>
#include <thread>

#include "perf/exit_codes.hpp"

namespace noria::perf {

void require(noria_status status, const char* what) {
  if (status == NORIA_OK || status == NORIA_IN_PROGRESS) return;
  std::string text(noria_last_error(nullptr, 0), '\0');
  noria_last_error(text.data(), text.size() + 1);
  throw ToolError(exit_of(status), std::string(what) + ": " + text);
}

void run_rank_pair(uint32_t device_kind, const std::function<void(noria_comm*, int rank)>& body) {
  noria_unique_id id;
  require(noria_get_unique_id(&id), "noria_get_unique_id");
  const auto rank_of = [&](int rank) {
    noria_comm_config config = NORIA_COMM_CONFIG_INIT;
    config.id = &id;
    config.rank = rank;
    config.size = 2;
    config.device_kind = device_kind;
    if (device_kind == NORIA_STREAM_CUDA) config.device = rank;
    noria_comm* comm = nullptr;
    require(noria_comm_create(&config, &comm), "noria_comm_create");
    body(comm, rank);
    noria_comm_destroy(comm);
  };
  std::string failure;
  std::thread peer([&] {
    try {
      rank_of(1);
    } catch (const ToolError& error) {
      failure = error.what();
    }
  });
  try {
    rank_of(0);
  } catch (...) {
    peer.join();  // the communicator's own bounds end it
    throw;
  }
  peer.join();
  if (!failure.empty()) throw ToolError(Exit::environment, "rank 1: " + failure);
}

}  // namespace noria::perf
