#include "perf/communicator.hpp"

#include <array>
#include <cstdio>

#include "perf/local_ranks.hpp"

namespace noria::perf {

void require(noria_status status, const char* what) {
  if (status == NORIA_OK) return;
  std::array<char, 2048> text{};
  noria_last_error(text.data(), text.size());
  throw ToolError(exit_of(status), std::string(what) + ": " +
                                       (text[0] != '\0' ? text.data() : noria_status_name(status)));
}

Communicator::Communicator(LocalRank& rank) {
  const noria_unique_id id = rank.exchange_id();
  noria_comm_config config = NORIA_COMM_CONFIG_INIT;
  config.rank = rank.rank();
  config.size = rank.size();
  config.id = &id;
  join(config);
}

Communicator::Communicator() { join(NORIA_COMM_CONFIG_INIT); }

void Communicator::join(const noria_comm_config& config) {
  noria_comm* comm = nullptr;
  require(noria_comm_create(&config, &comm), "joining the job");
  comm_.reset(comm);
  require(noria_comm_rank(comm, &rank_), "noria_comm_rank");
  require(noria_comm_size(comm, &size_), "noria_comm_size");
}

noria_comm_info Communicator::info() const {
  noria_comm_info info{};
  info.struct_size = sizeof info;
  require(noria_observe_comm(comm_.get(), &info), "noria_observe_comm");
  return info;
}

void Communicator::barrier() { require(noria_barrier(comm_.get(), nullptr, nullptr), "barrier"); }

std::vector<double> Communicator::largest(std::vector<double> values) {
  require(noria_all_reduce(comm_.get(), values.data(), values.data(), values.size(), NORIA_FLOAT64,
                           NORIA_MAX, nullptr, nullptr),
          "collecting times");
  return values;
}

std::vector<double> Communicator::sum(std::vector<double> values) {
  require(noria_all_reduce(comm_.get(), values.data(), values.data(), values.size(), NORIA_FLOAT64,
                           NORIA_SUM, nullptr, nullptr),
          "collecting counts");
  return values;
}

std::vector<std::string> Communicator::gather(const std::string& text) {
  std::vector<std::string> texts;
  for (int root = 0; root < size_; ++root) {
    std::array<char, 512> buffer{};
    if (root == rank_) std::snprintf(buffer.data(), buffer.size(), "%s", text.c_str());
    require(noria_broadcast(comm_.get(), buffer.data(), buffer.data(), buffer.size(), NORIA_UINT8,
                            root, nullptr, nullptr),
            "collecting names");
    texts.emplace_back(buffer.data());
  }
  return texts;
}

}  // namespace noria::perf
