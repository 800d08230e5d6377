// TunerContext: what the tuner knows of one communicator.
//
// Threads: immutable, but for what was said already.
#pragma once

#include <atomic>
#include <memory>

#include "plugin/setup.hpp"
#include "plugin/tuner/index.hpp"

namespace noria::plugin {

struct TunerContext {
  std::shared_ptr<const Setup> setup;  // whose table the index is of
  tuner::Index index;
  bool tears_lines = false;   // over the network a line of 128 bytes may land in parts
  bool user_chooses = false;  // by NCCL_ALGO or NCCL_PROTO
  mutable std::atomic<bool> has_said{false};
};

}  // namespace noria::plugin
