// Drives a tuner plugin as NCCL does, through the table of any version: a fresh cost table an
// operation, one array that no other lies in front of or behind, and the least cost wins.
//
// It is meaner than NCCL where the contract allows it: what the plugin is not asked to write holds
// rubbish that has to stay.
//
// Threads: as the plugin's own functions.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "plugin/abi/tuner.hpp"
#include "plugin/tuner/words.hpp"
#include "tests/support/nccl_driver.hpp"

namespace noria::test {

using plugin::tuner::Algorithm;
using plugin::tuner::Collective;
using plugin::tuner::Protocol;

inline constexpr int kOldestTuner = 2;
inline constexpr int kNewestTuner = 6;

// What an operation was done with.
struct Chosen {
  int algorithm = -1;
  int protocol = -1;
  int channels = 0;

  friend bool operator==(const Chosen&, const Chosen&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Chosen& c) {
    return out << c.algorithm << " " << c.protocol << " " << c.channels;
  }
};
inline Chosen chosen(Algorithm algorithm, Protocol protocol, int channels = 0) {
  return {static_cast<int>(algorithm), static_cast<int>(protocol), channels};
}

// NCCL's costs of an operation. At first all cost alike, but Tree with LL, which is NCCL's choice.
class CostTable {
 public:
  explicit CostTable(int version) : algorithms_(version == 3 ? 6 : 7) {
    values_.assign(kGuards + static_cast<size_t>(algorithms_ * kProtocols) + kGuards, kGuard);
    for (int i = 0; i < algorithms_ * kProtocols; ++i) data()[i] = 100;
    of(Algorithm::tree, Protocol::ll) = 50;
  }

  float& of(Algorithm algorithm, Protocol protocol) {
    return data()[static_cast<int>(algorithm) * kProtocols + static_cast<int>(protocol)];
  }
  void ignore_all_but(Protocol protocol) {
    for (int i = 0; i < algorithms_ * kProtocols; ++i)
      if (i % kProtocols != static_cast<int>(protocol)) data()[i] = plugin::abi::kIgnoredCost;
  }
  void ignore_all_but(Algorithm algorithm) {
    for (int i = 0; i < algorithms_ * kProtocols; ++i)
      if (i / kProtocols != static_cast<int>(algorithm)) data()[i] = plugin::abi::kIgnoredCost;
  }
  int algorithms() const { return algorithms_; }
  float* data() { return values_.data() + kGuards; }
  Chosen least() {
    std::optional<int> least;
    for (int i = 0; i < algorithms_ * kProtocols; ++i)
      if (data()[i] >= 0 && (!least || data()[i] < data()[*least])) least = i;
    for (size_t i = 0; i < kGuards; ++i) {
      EXPECT_EQ(values_[i], kGuard);
      EXPECT_EQ(values_[values_.size() - 1 - i], kGuard);
    }
    if (!least) return {};
    return {*least / kProtocols, *least % kProtocols, 0};
  }

  static constexpr int kProtocols = plugin::abi::kTunerProtocols;

 private:
  static constexpr size_t kGuards = 32;
  static constexpr float kGuard = 12345;
  int algorithms_;
  std::vector<float> values_;
};

class TunerPlugin {
 public:
  explicit TunerPlugin(int version, const char* file = NORIA_TUNER_PLUGIN_FILE)
      : version_(version), handle_(dlopen(file, RTLD_NOW | RTLD_LOCAL)) {
    EXPECT_NE(handle_, nullptr) << dlerror();
    table_ = dlsym(handle_, ("ncclTunerPlugin_v" + std::to_string(version)).c_str());
    EXPECT_NE(table_, nullptr) << dlerror();
  }
  ~TunerPlugin() { dlclose(handle_); }
  TunerPlugin(const TunerPlugin&) = delete;
  TunerPlugin& operator=(const TunerPlugin&) = delete;

  template <class Use>
  auto with_table(const Use& use) const {
    switch (version_) {
      case 2: return use(*static_cast<const plugin::abi::TunerV2*>(table_));
      case 3: return use(*static_cast<const plugin::abi::TunerV3*>(table_));
      case 4: return use(*static_cast<const plugin::abi::TunerV4*>(table_));
      case 5: return use(*static_cast<const plugin::abi::TunerV5*>(table_));
      default: return use(*static_cast<const plugin::abi::TunerV6*>(table_));
    }
  }

  int version() const { return version_; }
  void* library() const { return handle_; }
  std::string name() const {
    return with_table([](const auto& t) { return std::string(t.name); });
  }

  void* init(size_t ranks, size_t nodes, plugin::abi::TunerConstants* constants = nullptr,
             plugin::abi::Logger logger = log_line) const {
    void* context = nullptr;
    plugin::abi::NvlDomains domains{1, 8, 8};
    plugin::abi::TunerConstants mine{};
    with_table([&](const auto& t) {
      if constexpr (requires { t.destroy; })
        EXPECT_EQ(t.init(ranks, nodes, logger, &context), Result::success);
      else
        EXPECT_EQ(t.init(&context, 0xabcdef, ranks, nodes, logger, &domains,
                         constants != nullptr ? constants : &mine),
                  Result::success);
    });
    return context;
  }
  void finalize(void* context) const {
    with_table([&](const auto& t) {
      if constexpr (requires { t.destroy; })
        EXPECT_EQ(t.destroy(context), Result::success);
      else
        EXPECT_EQ(t.finalize(context), Result::success);
    });
  }

  // NCCL's choice after the plugin was asked. Version 2 answers with words, which NCCL takes as
  // they are; where it has none, NCCL looks at its costs.
  Chosen choose(void* context, Collective collective, size_t bytes, CostTable& costs) const {
    int algorithm = -1, protocol = -1, channels = 0;
    const int what = static_cast<int>(collective);
    auto** const typed = reinterpret_cast<float**>(costs.data());
    with_table([&](const auto& t) {
      using Choice = decltype(t.get_choice);
      if constexpr (std::is_same_v<Choice, decltype(plugin::abi::TunerV2::get_choice)>)
        EXPECT_EQ(t.get_choice(context, what, bytes, 0, 1, 1, &algorithm, &protocol, &channels),
                  Result::success);
      else if constexpr (std::is_same_v<Choice, decltype(plugin::abi::TunerV3::get_choice)>)
        EXPECT_EQ(t.get_choice(context, what, bytes, 1, typed, costs.algorithms(),
                               CostTable::kProtocols, &channels),
                  Result::success);
      else
        EXPECT_EQ(t.get_choice(context, what, bytes, 1, typed, costs.algorithms(),
                               CostTable::kProtocols, 0, &channels),
                  Result::success);
    });
    if (algorithm >= 0 && protocol >= 0) return {algorithm, protocol, channels};
    Chosen least = costs.least();
    least.channels = channels;
    return least;
  }
  // Of version 6.
  size_t chunk(void* context, Collective collective, size_t bytes, Algorithm algorithm,
               Protocol protocol, size_t of_nccl) const {
    size_t chunk_bytes = of_nccl;
    EXPECT_EQ(static_cast<const plugin::abi::TunerV6*>(table_)->get_chunk(
                  context, static_cast<int>(collective), bytes, static_cast<int>(algorithm),
                  static_cast<int>(protocol), 1, &chunk_bytes),
              Result::success);
    return chunk_bytes;
  }

 private:
  int version_;
  void* handle_;
  void* table_ = nullptr;
};

}  // namespace noria::test
