// What a net plugin says of a device, in the layout of each version.
//
// NCCL hands over memory that holds anything: every field must be written. The order of the fields
// and the sizes are the ABI.
//
// Threads: plain values.
#pragma once

#include <cstddef>
#include <cstdint>

namespace noria::plugin::abi {

inline constexpr int kPointerHost = 0x1;
inline constexpr int kPointerCuda = 0x2;
inline constexpr int kPointerDmabuf = 0x4;
inline constexpr int kMostReceives = 8;  // that NCCL groups into one request
inline constexpr int kDeviceHost = 0;    // no part of the plugin runs on the GPU

// Devices fused into one; a plain device is made of itself.
template <int kMost>
struct VirtualDevices {
  int count;
  int devices[kMost];
};
using VirtualDevicesV9 = VirtualDevices<4>;  // to v11
using VirtualDevicesV12 = VirtualDevices<8>;

struct PropertiesV6 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int pointers;
  int speed_mbps;
  int port;
  float latency_us;
  int max_connections;
  int max_receives;  // grouped into one request
};
static_assert(sizeof(PropertiesV6) == 48 && offsetof(PropertiesV6, speed_mbps) == 28);

struct PropertiesV7 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int pointers;
  int speed_mbps;
  int port;
  float latency_us;
  int max_connections;
  int max_receives;
  int device_type;
  int device_version;
};
static_assert(sizeof(PropertiesV7) == 56 && offsetof(PropertiesV7, device_type) == 48);

struct PropertiesV8 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int pointers;
  int is_registration_global;
  int speed_mbps;
  int port;
  float latency_us;
  int max_connections;
  int max_receives;
  int device_type;
  int device_version;
};
static_assert(sizeof(PropertiesV8) == 64 && offsetof(PropertiesV8, speed_mbps) == 32);

struct PropertiesV9 {  // and v10
  char* name;
  char* pci_path;
  uint64_t guid;
  int pointers;
  int is_registration_global;
  int needs_flush;
  int speed_mbps;
  int port;
  float latency_us;
  int max_connections;
  int max_receives;
  int device_type;
  int device_version;
  VirtualDevicesV9 parts;
  size_t max_message_bytes;
  size_t max_collective_bytes;
};
static_assert(sizeof(PropertiesV9) == 104 && offsetof(PropertiesV9, max_message_bytes) == 88);

struct PropertiesV11 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int pointers;
  int is_registration_global;
  int needs_flush;
  int speed_mbps;
  int port;
  float latency_us;
  int max_connections;
  int max_receives;
  int device_type;
  int device_version;
  VirtualDevicesV9 parts;
  size_t max_message_bytes;
  size_t max_collective_bytes;
  int max_requests_in_one;
};
static_assert(sizeof(PropertiesV11) == 112 && offsetof(PropertiesV11, max_requests_in_one) == 104);

struct PropertiesV12 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int pointers;
  int is_registration_global;
  int needs_flush;
  int speed_mbps;
  int port;
  float latency_us;
  int max_connections;
  int max_receives;
  int device_type;
  int device_version;
  VirtualDevicesV12 parts;
  size_t max_message_bytes;
  size_t max_collective_bytes;
  int max_requests_in_one;
  int16_t rail;  // -1: not known
  int16_t plane;
};
static_assert(sizeof(PropertiesV12) == 128 && offsetof(PropertiesV12, max_message_bytes) == 104 &&
              offsetof(PropertiesV12, rail) == 124);

}  // namespace noria::plugin::abi
