// PCIe: how fast the bus between a device and its host can be.
//
// A port is no faster than the slowest link on the way to it: a 400 Gb/s adapter behind sixteen
// lanes of the fourth generation moves 234. What sysfs does not say (no PCI device, a virtual
// function, an unknown speed) limits nothing.
//
// Threads: any thread; pcie_mbps() reads files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace noria::verbs {

// Payload in Mb/s of one link, from what sysfs has in current_link_speed and current_link_width, as
// "16.0 GT/s PCIe" and "16". 0: not known.
uint32_t pcie_link_mbps(std::string_view speed, std::string_view lanes);

// Of the slowest link between the root and `device_path`, a folder or a link to one, as
// /sys/class/infiniband/mlx5_0/device. 0: not known.
uint32_t pcie_mbps(const std::string& device_path);

}  // namespace noria::verbs
