// The private sysfs tree of described devices: what programs read beside the verbs API (PCI path,
// NUMA node, link, GID type), where ibv_device::ibdev_path points.
//
//   <base>/noria-soft-<uid>/<description>/<host>/class/infiniband/<name>       as under /sys
//   ..../devices/pci0000:17/0000:17:00.0/{class,numa_node,...}, infiniband/<name>/ports/1/...
//
// <base> is XDG_RUNTIME_DIR, else /tmp. The tree is a cache: one per user and description, named by
// a hash of it, reused by every process and owned by none. So a killed process leaves nothing that
// was not there for the next one anyway, and nothing has to be swept up. It takes no lock: every
// process makes what is missing (mkdir and symlink are atomic; a file is written over in place, by
// everybody with the same bytes), and hands out the path only then. The mode of its root is 0700,
// and a root that is another user's or open to others is not used.
//
// Threads: any thread.
#pragma once

#include <string>
#include <vector>

#include "base/result.hpp"
#include "base/soft_devices.hpp"

namespace noria::soft {

// Makes what is missing. The paths of the devices, in order; or a line for people.
Result<std::vector<std::string>, std::string> make_device_tree(
    const std::vector<SoftDevice>& devices, const std::string& runtime_dir);

}  // namespace noria::soft
