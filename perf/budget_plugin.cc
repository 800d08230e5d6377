// What a call of NCCL's costs in instructions: the plugin as it is built, through the table that
// dlsym() finds, both ends in this thread. On the software HCA a message between two queue pairs of
// one process is there when isend() returns, so that each call succeeds at once, and one call is
// collected at a time.

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/dl.hpp"
#include "base/units.hpp"
#include "perf/budget_operations.hpp"
#include "perf/exit_codes.hpp"
#include "perf/machine.hpp"
#include "plugin/abi/caller.hpp"
#include "plugin/abi/tuner.hpp"

namespace noria::perf {
namespace {

namespace abi = plugin::abi;

using Table = abi::NetV12;
constexpr int kVersion = 12;
constexpr Nanoseconds kPatience = 60_s;  // valgrind is fifty times slower than the machine

void log_nothing(abi::LogLevel, unsigned long, const char*, int, const char*, ...) {}

void require(bool is_true, const char* what) {
  if (!is_true)
    throw ToolError(Exit::environment, std::string(what) + " failed, or did not succeed at once");
}
void require(abi::Result result, const char* what) {
  require(result == abi::Result::success, what);
}

SharedObject open_plugin() {
  auto opened = SharedObject::open(own_folder() + "../lib/libnccl-net-noria.so");
  if (!opened) throw ToolError(Exit::environment, opened.failure());
  return std::move(*opened);
}

// A connection of this process with itself, and memory on both sides.
class PluginPair {
 public:
  explicit PluginPair(uint64_t bytes) : bytes_(bytes), from_(bytes), to_(bytes) {
    abi::Config config{.traffic_class = -1};
    require(table_.init(&context_, 1, &config, log_nothing, nullptr), "init");
    std::array<char, abi::kHandleBytes> handle{};
    void* listener = nullptr;
    require(table_.listen(context_, 0, handle.data(), &listener), "listen");
    const Nanoseconds deadline = now_ns() + kPatience;
    while (sender_ == nullptr || receiver_ == nullptr) {
      require(now_ns() < deadline, "a connection of this process with itself");
      abi::DeviceHandle* none = nullptr;
      if (sender_ == nullptr)
        require(table_.connect(context_, 0, handle.data(), &sender_, &none), "connect");
      if (receiver_ == nullptr) require(table_.accept(listener, &receiver_, &none), "accept");
    }
    require(table_.close_listen(listener), "closeListen");
    require(reg_mr(sender_, from_, &sent_from_), "regMr");
    require(reg_mr(receiver_, to_, &received_to_), "regMr");
  }
  ~PluginPair() {
    for (void* memory : others_) static_cast<void>(table_.dereg_mr(sender_, memory));
    static_cast<void>(table_.dereg_mr(sender_, sent_from_));
    static_cast<void>(table_.dereg_mr(receiver_, received_to_));
    static_cast<void>(table_.close_send(sender_));
    static_cast<void>(table_.close_recv(receiver_));
    static_cast<void>(table_.finalize(context_));
  }
  PluginPair(const PluginPair&) = delete;
  PluginPair& operator=(const PluginPair&) = delete;

  void irecv() {
    void* data = to_.get();
    size_t bytes = bytes_;
    int tag = 0;
    require(table_.irecv(receiver_, 1, &data, &bytes, &tag, &received_to_, nullptr, &received_),
            "irecv");
  }
  void isend() {
    require(table_.isend(sender_, from_.get(), bytes_, 0, sent_from_, nullptr, &sent_), "isend");
  }
  void test_recv() { test(received_); }
  void test_send() { test(sent_); }
  void test_nothing() {
    int is_done = 0, bytes = 0;
    require(table_.test(received_, &is_done, &bytes), "test");
    require(is_done == 0, "a test of what is not there");
  }
  // So many other ranges, of kLeastRange bytes each.
  void register_others(uint64_t count) {
    many_ = Buffer(count * kLeastRange);
    for (uint64_t i = 0; i < count; ++i)
      require(table_.reg_mr(sender_, static_cast<std::byte*>(many_.get()) + i * kLeastRange,
                            kLeastRange, abi::kPointerHost, &others_.emplace_back()),
              "regMr");
  }
  // A range that is registered already.
  void register_again() {
    void* memory = nullptr;
    require(reg_mr(sender_, from_, &memory), "regMr");
    require(table_.dereg_mr(sender_, memory), "deregMr");
  }
  void posted() const { require(received_ != nullptr && sent_ != nullptr, "isend or irecv"); }

 private:
  abi::Result reg_mr(void* comm, const Buffer& buffer, void** memory) {
    return table_.reg_mr(comm, buffer.get(), bytes_, abi::kPointerHost, memory);
  }
  void test(void* request) {
    int is_done = 0, bytes = 0;
    require(table_.test(request, &is_done, &bytes), "test");
    require(is_done == 1, "test");
  }

  const uint64_t bytes_;
  const SharedObject library_ = open_plugin();
  const Table& table_ =
      *static_cast<const Table*>(library_.find(abi::table_symbol(kVersion).c_str()));
  static constexpr uint64_t kLeastRange = 64;
  Buffer from_, to_;
  Buffer many_{kLeastRange};
  std::vector<void*> others_;
  void* context_ = nullptr;
  void* sender_ = nullptr;
  void* receiver_ = nullptr;
  void* sent_from_ = nullptr;
  void* received_to_ = nullptr;
  void* sent_ = nullptr;
  void* received_ = nullptr;
};

enum class Counted { none, send, receive, empty_test };

void run_plugin(uint64_t bytes, Counted counted, uint64_t count) {
  PluginPair pair(bytes);
  const auto message = [&](Counted side) {
    const auto irecv = [&] { pair.irecv(); };
    const auto isend = [&] { pair.isend(); };
    const auto test_recv = [&] { pair.test_recv(); };
    const auto test_send = [&] { pair.test_send(); };
    const auto test_nothing = [&] { pair.test_nothing(); };
    side == Counted::receive ? noria_measured(irecv) : irecv();
    side == Counted::empty_test ? noria_measured(test_nothing) : test_nothing();
    side == Counted::send ? noria_measured(isend) : isend();
    pair.posted();
    side == Counted::receive ? noria_measured(test_recv) : test_recv();
    side == Counted::send ? noria_measured(test_send) : test_send();
  };
  for (uint64_t i = 0; i < kBudgetWarmups; ++i) message(Counted::none);
  for (uint64_t i = 0; i < count; ++i) message(counted);
}

void run_registration(uint64_t others, uint64_t count) {
  PluginPair pair(64_KiB);
  pair.register_others(others);
  const auto register_again = [&] { pair.register_again(); };
  for (uint64_t i = 0; i < kBudgetWarmups; ++i) register_again();
  for (uint64_t i = 0; i < count; ++i) noria_measured(register_again);
}

void run_striped(Counted counted, uint64_t count) {
  ::setenv("NORIA_QPS_PER_CONNECTION", "4", 1);
  run_plugin(512_KiB, counted, count);
}

void run_adaptive(Counted counted, uint64_t count) {
  ::setenv("NORIA_ADAPTIVE_ROUTING", "on", 1);
  run_plugin(512_KiB, counted, count);
}

// ---- the tuner ----

constexpr uint64_t kTableRows = 10'000;

// Rows that all fit, one behind the other from a size of 1 KiB on.
std::string long_table() {
  std::string text = "noria_table,1\n";
  for (uint64_t i = 1; i <= kTableRows; ++i)
    text += "all_reduce," + std::to_string(i) + "K-" + std::to_string(i + 1) + "K,*,*,*,*,*,*," +
            (i % 2 == 0 ? "Ring,Simple" : "Tree,LL") + ",0,0,1,1,x\n";
  return text;
}

// Choices of sizes all over the table, as of messages of one step.
void run_choice(uint64_t count) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("noria_budget_" + std::to_string(::getpid())))
          .string();
  std::ofstream(path) << long_table();
  ::setenv("NORIA_TUNER_TABLE", path.c_str(), 1);
  const SharedObject library = open_plugin();
  const auto& table = *static_cast<const abi::TunerV6*>(library.find("ncclTunerPlugin_v6"));
  void* context = nullptr;
  abi::TunerConstants constants{};
  require(table.init(&context, 1, 16, 2, log_nothing, nullptr, &constants), "init");
  std::filesystem::remove(path);
  std::array<float, size_t{abi::kTunerAlgorithms} * abi::kTunerProtocols> costs{};
  size_t bytes = 0;
  int channels = 0;
  const auto choose = [&] {
    static_cast<void>(table.get_choice(context, 4, bytes, 1,
                                       reinterpret_cast<float**>(costs.data()),
                                       abi::kTunerAlgorithms, abi::kTunerProtocols, 0, &channels));
  };
  for (uint64_t i = 0; i < kBudgetWarmups + count; ++i) {
    costs.fill(7);
    bytes = (i * 7919 % kTableRows + 1) * 1024;
    i < kBudgetWarmups ? choose() : noria_measured(choose);
    require(costs[2] == 0 || costs[5] == 0 || costs[0] == 0, "a choice of the table");
  }
  require(table.finalize(context), "finalize");
}

}  // namespace

std::vector<Operation> plugin_operations() {
  return {
      {"nccl_irecv_8B", "NCCL's irecv of 8 bytes of host memory, which are staged, and its test",
       500, [](uint64_t n) { run_plugin(8, Counted::receive, n); }, true},
      {"nccl_isend_64K", "NCCL's isend of 64 KiB and the test that finds it done", 500,
       [](uint64_t n) { run_plugin(64_KiB, Counted::send, n); }, true},
      {"nccl_irecv_64K", "NCCL's irecv of 64 KiB and the test that finds it done", 500,
       [](uint64_t n) { run_plugin(64_KiB, Counted::receive, n); }, true},
      {"nccl_isend_512K", "the same of 512 KiB", 200,
       [](uint64_t n) { run_plugin(512_KiB, Counted::send, n); }, true},
      {"nccl_irecv_512K", "the same of 512 KiB", 200,
       [](uint64_t n) { run_plugin(512_KiB, Counted::receive, n); }, true},
      {"nccl_isend_4qps", "the same of 512 KiB, split over 4 queue pairs", 200,
       [](uint64_t n) { run_striped(Counted::send, n); }, true},
      {"nccl_irecv_4qps", "the same of 512 KiB, split over 4 queue pairs", 200,
       [](uint64_t n) { run_striped(Counted::receive, n); }, true},
      {"nccl_isend_adaptive", "the same of 512 KiB, routed adaptively: as on InfiniBand", 200,
       [](uint64_t n) { run_adaptive(Counted::send, n); }, true},
      {"nccl_irecv_adaptive", "the same of 512 KiB, routed adaptively: as on InfiniBand", 200,
       [](uint64_t n) { run_adaptive(Counted::receive, n); }, true},
      {"nccl_regmr_hit", "NCCL's regMr and deregMr of a range that is registered already", 500,
       [](uint64_t n) { run_registration(0, n); }, true},
      {"nccl_regmr_hit_10K", "the same beside 10 000 other ranges", 500,
       [](uint64_t n) { run_registration(10'000, n); }, true},
      {"nccl_test_empty", "NCCL's test of a receive that nothing has come for", 1000,
       [](uint64_t n) { run_plugin(8, Counted::empty_test, n); }, true},
      {"nccl_choice_10k", "a choice of NCCL's tuner by a table of 10 000 rows", 1000, run_choice,
       true},
  };
}

}  // namespace noria::perf
