// What NCCL finds of the tuner: one table for each version, made of one function for each
// signature. Each answers success, whatever it found.
#include "plugin/tuner.hpp"

#define NORIA_EXPORT extern "C" [[gnu::visibility("default"), gnu::used]] const

namespace noria::plugin {
namespace {

using abi::Logger;
using abi::Result;

constexpr char kName[] = "noria";
constexpr uint64_t kNoCommunicator = 0;  // versions before 5 do not say which

Result init_v2(size_t ranks, size_t nodes, Logger logger, void** context) {
  init_tuner(context, kNoCommunicator, ranks, nodes, logger, nullptr);
  return Result::success;
}
Result init_v5(void** context, uint64_t communicator, size_t ranks, size_t nodes, Logger logger,
               abi::NvlDomains*, abi::TunerConstants* constants) {
  init_tuner(context, communicator, ranks, nodes, logger, constants);
  return Result::success;
}

Result get_choice_v2(void* context, int collective, size_t bytes, int, int has_nvls, int,
                     int* algorithm, int* protocol, int* channels) {
  get_choice_without_costs(context, collective, bytes, has_nvls != 0, algorithm, protocol,
                           channels);
  return Result::success;
}
Result get_choice_v4(void* context, int collective, size_t bytes, int, float** costs,
                     int algorithms, int protocols, int, int* channels) {
  get_choice(context, collective, bytes, reinterpret_cast<float*>(costs), algorithms, protocols,
             channels);
  return Result::success;
}
Result get_choice_v3(void* context, int collective, size_t bytes, int pipelined, float** costs,
                     int algorithms, int protocols, int* channels) {
  return get_choice_v4(context, collective, bytes, pipelined, costs, algorithms, protocols, 0,
                       channels);
}

Result get_chunk_v6(void* context, int collective, size_t bytes, int algorithm, int protocol, int,
                    size_t* chunk_bytes) {
  get_chunk(context, collective, bytes, algorithm, protocol, chunk_bytes);
  return Result::success;
}

Result finalize(void* context) {
  finalize_tuner(context);
  return Result::success;
}

}  // namespace
}  // namespace noria::plugin

namespace plugin = noria::plugin;
namespace abi = noria::plugin::abi;

NORIA_EXPORT abi::TunerV2 ncclTunerPlugin_v2{.name = plugin::kName,
                                             .init = plugin::init_v2,
                                             .get_choice = plugin::get_choice_v2,
                                             .destroy = plugin::finalize};
NORIA_EXPORT abi::TunerV3 ncclTunerPlugin_v3{.name = plugin::kName,
                                             .init = plugin::init_v2,
                                             .get_choice = plugin::get_choice_v3,
                                             .destroy = plugin::finalize};
NORIA_EXPORT abi::TunerV4 ncclTunerPlugin_v4{.name = plugin::kName,
                                             .init = plugin::init_v2,
                                             .get_choice = plugin::get_choice_v4,
                                             .destroy = plugin::finalize};
NORIA_EXPORT abi::TunerV5 ncclTunerPlugin_v5{.name = plugin::kName,
                                             .init = plugin::init_v5,
                                             .get_choice = plugin::get_choice_v4,
                                             .finalize = plugin::finalize};
NORIA_EXPORT abi::TunerV6 ncclTunerPlugin_v6{.name = plugin::kName,
                                             .init = plugin::init_v5,
                                             .get_choice = plugin::get_choice_v4,
                                             .finalize = plugin::finalize,
                                             .get_chunk = plugin::get_chunk_v6};
