// Peer memory: whether a module of the kernel lets devices look up the addresses of GPU memory.
//
// With one ibv_reg_mr() takes a GPU's address as it takes any other; without, it answers EFAULT.
//
// Threads: any thread. Reads a few names under /sys.
#pragma once

#include <string>

namespace noria::transport {

// The module's name, as "nvidia_peermem"; empty when none is loaded. `root` stands before /sys.
std::string peer_memory_module(const std::string& root = "");

}  // namespace noria::transport
