// Addresses: what the port of a device is called on the fabric, and which of them a path leads to.
//
// Without a description there is one RoCE device whose GID is this host's IPv4 address. Described
// devices (NORIA_SOFT_DEVICES) get addresses made from host and name, the same in every process:
// over Ethernet a GID in 100.64.0.0/10, which no host routes; over InfiniBand a LID, and a GID with
// the link-local prefix. A path reaches the device that it names and no other.
//
// Threads: any thread.
#pragma once

#include <infiniband/verbs.h>
#include <netinet/in.h>

#include <string>
#include <string_view>

#include "base/soft_devices.hpp"
#include "verbs/soft/shared_layout.hpp"

namespace noria::soft {

static_assert(kMaxDevices == kMaxSoftDevices);

// Of the device without description; said once, before address_of() (host_address.hpp).
void set_host_address(in_addr_t address);

SharedAddress address_of(const SoftDevice& device);

// Whether a queue pair of a device at `own` may be given this path at all: as hardware, which needs
// a GID on Ethernet and a LID on InfiniBand.
bool is_path(const ibv_ah_attr& path, const SharedAddress& own, bool may_leave_host);
// Whether it leads to another host: only from a device without description, by its IPv4 address.
bool leaves_host(const ibv_ah_attr& path, const SharedAddress& own);
// The IPv4 address where the host that the path leads to is found, and our own; described devices
// are of this host. In network byte order.
in_addr_t wire_address(const ibv_ah_attr& path, const SharedAddress& own);
in_addr_t wire_address(const SharedAddress& own);
// Whether the path leads from a device at `own` to the one at `other`.
bool leads_to(const ibv_ah_attr& path, const SharedAddress& own, const SharedAddress& other);

// Whether two devices of different names have one address: a path to either may be to the other.
// Names are made into 22 bits of an Ethernet address and less of a LID, so that it happens.
bool collides(const SharedAddress& one, const SharedAddress& other);
// For people: what it is that both have, and what to do.
std::string collision_text(const SharedAddress& one, const SharedAddress& other);

// In network byte order.
uint64_t guid_of(const SharedAddress& address);

// FNV-1a: the same number for the same text, in every process.
uint64_t hash_of(std::string_view text);

}  // namespace noria::soft
