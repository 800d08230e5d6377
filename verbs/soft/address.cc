#include "verbs/soft/address.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstdio>
#include <cstring>

namespace noria::soft {
namespace {

constexpr uint32_t kLastUnicastLid = 0xbfff;
constexpr uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};  // ::ffff:0:0/96

in_addr_t the_host_address = htonl(INADDR_LOOPBACK);

void set_ipv4(SharedAddress* address, in_addr_t ipv4) {
  std::memcpy(address->gid, kMapped, sizeof kMapped);
  std::memcpy(address->gid + sizeof kMapped, &ipv4, sizeof ipv4);
}

// The last 8 bytes of a GID made here.
void set_guid(SharedAddress* address, uint64_t number) {
  // The bit of addresses that no registry gave.
  const uint64_t guid = (number & ~(uint64_t{1} << 56)) | uint64_t{2} << 56;
  for (int i = 0; i < 8; ++i) address->gid[8 + i] = static_cast<uint8_t>(guid >> (56 - 8 * i));
}

// 100.64.0.0/10, that is shared by networks and routed by none.
bool is_made(const uint8_t* gid) {
  return std::memcmp(gid, kMapped, sizeof kMapped) == 0 && gid[12] == 100 && (gid[13] & 0xc0) == 64;
}

}  // namespace

uint64_t hash_of(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash ^ hash >> 29;
}

void set_host_address(in_addr_t address) { the_host_address = address; }

SharedAddress address_of(const SoftDevice& device) {
  SharedAddress address{};
  std::snprintf(address.name, sizeof address.name, "%s/%s", device.host.c_str(),
                device.name.c_str());
  address.max_message = static_cast<uint32_t>(device.max_message);
  if (!device.is_described) {
    set_ipv4(&address, the_host_address);
    return address;
  }
  const uint64_t number = hash_of(address.name);
  if (!device.is_infiniband) {
    constexpr uint32_t kRange = 100u << 24 | 64u << 16, kInRange = (1u << 22) - 1;
    set_ipv4(&address, htonl(kRange | (static_cast<uint32_t>(number) & kInRange)));
    return address;
  }
  address.lid = 1 + static_cast<uint32_t>(number % kLastUnicastLid);
  address.gid[0] = 0xfe;
  address.gid[1] = 0x80;
  set_guid(&address, number);
  return address;
}

namespace {
bool is_described(const SharedAddress& own) { return own.lid != 0 || is_made(own.gid); }

in_addr_t ipv4_of(const uint8_t* gid) {
  in_addr_t ipv4;
  std::memcpy(&ipv4, gid + sizeof kMapped, sizeof ipv4);
  return ipv4;
}
}  // namespace

bool leaves_host(const ibv_ah_attr& path, const SharedAddress& own) {
  return !is_described(own) && path.is_global == 1 &&
         std::memcmp(path.grh.dgid.raw, kMapped, sizeof kMapped) == 0 &&
         std::memcmp(path.grh.dgid.raw, own.gid, sizeof own.gid) != 0;
}

in_addr_t wire_address(const ibv_ah_attr& path, const SharedAddress& own) {
  return is_described(own) ? htonl(INADDR_LOOPBACK) : ipv4_of(path.grh.dgid.raw);
}

in_addr_t wire_address(const SharedAddress& own) {
  return is_described(own) ? htonl(INADDR_LOOPBACK) : ipv4_of(own.gid);
}

bool is_path(const ibv_ah_attr& path, const SharedAddress& own, bool may_leave_host) {
  if (path.is_global != 0 && path.grh.sgid_index != 0) return false;
  if (own.lid != 0) return path.dlid >= 1 && path.dlid <= kLastUnicastLid;
  if (may_leave_host && leaves_host(path, own)) return !is_made(path.grh.dgid.raw);
  // Else a device without description reaches one host.
  return path.is_global == 1 &&
         (is_made(own.gid) ? is_made(path.grh.dgid.raw)
                           : std::memcmp(path.grh.dgid.raw, own.gid, sizeof own.gid) == 0);
}

bool leads_to(const ibv_ah_attr& path, const SharedAddress& own, const SharedAddress& other) {
  if ((own.lid != 0) != (other.lid != 0)) return false;  // two fabrics
  if (own.lid != 0) return path.dlid == other.lid;
  return std::memcmp(path.grh.dgid.raw, other.gid, sizeof other.gid) == 0;
}

bool collides(const SharedAddress& one, const SharedAddress& other) {
  if (one.name[0] == 0 || other.name[0] == 0 ||
      std::strncmp(one.name, other.name, sizeof one.name) == 0)
    return false;
  if (one.lid != 0 || other.lid != 0) return one.lid == other.lid;
  return std::memcmp(one.gid, other.gid, sizeof one.gid) == 0;
}

std::string collision_text(const SharedAddress& one, const SharedAddress& other) {
  const auto name = [](const SharedAddress& of) {  // a peer may have written it
    return "'" + std::string(of.name, ::strnlen(of.name, sizeof of.name)) + "'";
  };
  std::string text = "devices " + name(one) + " and " + name(other) + " have one ";
  if (one.lid != 0) {
    text += "LID (" + std::to_string(one.lid) + ")";
  } else {
    char ipv4[INET_ADDRSTRLEN] = {};
    ::inet_ntop(AF_INET, one.gid + sizeof kMapped, ipv4, sizeof ipv4);
    text += "GID (" + std::string(ipv4) + ")";
  }
  return text + ", which is made from host and name: give one of them another name";
}

uint64_t guid_of(const SharedAddress& address) {
  uint64_t guid = 0;
  std::memcpy(&guid, address.gid + 8, sizeof guid);
  return guid;
}

}  // namespace noria::soft
