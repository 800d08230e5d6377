#include "perf/communicator.hpp"

#include <poll.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <future>
#include <thread>

#include "perf/local_ranks.hpp"

namespace noria::perf {

namespace {

// The library's text of the failure that this thread just got.
std::string last_error(noria_status status) {
  std::array<char, 2048> text{};
  noria_last_error(text.data(), text.size());
  return text[0] != '\0' ? text.data() : noria_status_name(status);
}

}  // namespace

void require(noria_status status, const char* what) {
  if (status == NORIA_OK) return;
  throw ToolError(exit_of(status), std::string(what) + ": " + last_error(status));
}

namespace {

// A communicator in the making. The thread that makes it may outlive who waits for it.
struct Joining {
  noria_unique_id id{};
  noria_comm_config config = NORIA_COMM_CONFIG_INIT;
  noria_comm* comm = nullptr;
  std::string failure;
  std::promise<noria_status> promise;

  void run() {
    const noria_status status = noria_comm_create(&config, &comm);
    if (status != NORIA_OK) failure = last_error(status);
    promise.set_value(status);
  }
};

void take_gpu(std::optional<int32_t> gpu, noria_comm_config* config) {
  if (!gpu) return;
  config->device_kind = NORIA_STREAM_CUDA;
  config->device = *gpu;
}

// True when the parent has told of a loss.
bool has_news(const LocalRank& rank) {
  pollfd news{.fd = rank.news(), .events = POLLIN, .revents = 0};
  return ::poll(&news, 1, 0) == 1;
}

}  // namespace

Communicator::Communicator(LocalRank& rank, std::optional<int32_t> gpu) {
  constexpr std::chrono::milliseconds kLook(20);
  constexpr std::chrono::seconds kOwnWord(2);  // the library knows best, where it knows
  const auto joining = std::make_shared<Joining>();
  joining->id = rank.exchange_id();
  joining->config.rank = rank.rank();
  joining->config.size = rank.size();
  joining->config.id = &joining->id;
  take_gpu(gpu, &joining->config);
  std::future<noria_status> end = joining->promise.get_future();
  std::thread([joining] { joining->run(); }).detach();
  while (end.wait_for(kLook) != std::future_status::ready)
    if (has_news(rank) && end.wait_for(kOwnWord) != std::future_status::ready)
      throw ToolError(Exit::peer,
                      "joining the job: " + rank.take_news() + " before all had joined");
  if (const noria_status status = end.get(); status != NORIA_OK) {
    // What the library saw may be the consequence only: another rank's end after it gave up.
    const std::string first_loss = has_news(rank) ? "; " + rank.take_news() : "";
    throw ToolError(exit_of(status), "joining the job: " + joining->failure + first_loss);
  }
  take(joining->comm);
}

Communicator::Communicator(std::optional<int32_t> gpu) {
  noria_comm_config config = NORIA_COMM_CONFIG_INIT;
  take_gpu(gpu, &config);
  noria_comm* comm = nullptr;
  require(noria_comm_create(&config, &comm), "joining the job");
  take(comm);
}

void Communicator::take(noria_comm* comm) {
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
