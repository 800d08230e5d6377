// Names of states, statuses and rates, in words.
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <string>

#include "verbs/soft/export.hpp"

namespace {
template <size_t N>
const char* word(const std::array<const char*, N>& words, int value) {
  return value >= 0 && static_cast<size_t>(value) < N && words[static_cast<size_t>(value)]
             ? words[static_cast<size_t>(value)]
             : "unknown";
}
}  // namespace

NORIA_EXPORT const char* ibv_wc_status_str(ibv_wc_status status) {
  static constexpr std::array<const char*, 24> kWords{"success",
                                                      "local length error",
                                                      "local queue pair operation error",
                                                      "local EE context operation error",
                                                      "local protection error",
                                                      "work request flushed",
                                                      "memory window bind error",
                                                      "bad response",
                                                      "local access error",
                                                      "remote invalid request",
                                                      "remote access error",
                                                      "remote operation error",
                                                      "transport retries exceeded",
                                                      "receiver-not-ready retries exceeded",
                                                      "local RDD violation",
                                                      "remote invalid RD request",
                                                      "remote aborted",
                                                      "invalid EE context number",
                                                      "invalid EE context state",
                                                      "fatal error",
                                                      "response timed out",
                                                      "general error",
                                                      "tag matching error",
                                                      "tag matching rendezvous incomplete"};
  return word(kWords, static_cast<int>(status));
}

NORIA_EXPORT const char* ibv_port_state_str(ibv_port_state state) {
  static constexpr std::array<const char*, 6> kWords{"no state", "down",   "initialising",
                                                     "armed",    "active", "active, deferred"};
  return word(kWords, static_cast<int>(state));
}

NORIA_EXPORT const char* ibv_node_type_str(ibv_node_type type) {
  static constexpr std::array<const char*, 8> kWords{
      nullptr,    "channel adapter", "switch",         "router",
      "RDMA NIC", "usNIC device",    "usNIC over UDP", "unspecified node"};
  return word(kWords, static_cast<int>(type));
}

NORIA_EXPORT const char* ibv_event_type_str(ibv_event_type event) {
  static constexpr std::array<const char*, 20> kWords{"completion queue error",
                                                      "queue pair fatal error",
                                                      "queue pair request error",
                                                      "queue pair access error",
                                                      "communication established",
                                                      "send queue drained",
                                                      "path migrated",
                                                      "path migration failed",
                                                      "device fatal error",
                                                      "port active",
                                                      "port error",
                                                      "LID changed",
                                                      "partition keys changed",
                                                      "subnet manager changed",
                                                      "shared receive queue error",
                                                      "shared receive queue limit reached",
                                                      "last work request of the queue pair reached",
                                                      "client reregistration",
                                                      "GID table changed",
                                                      "work queue fatal error"};
  return word(kWords, static_cast<int>(event));
}

NORIA_EXPORT int ibv_rate_to_mult(ibv_rate rate) {
  switch (rate) {  // in units of 2.5 Gbit/s
    case IBV_RATE_2_5_GBPS: return 1;
    case IBV_RATE_5_GBPS: return 2;
    case IBV_RATE_10_GBPS: return 4;
    case IBV_RATE_20_GBPS: return 8;
    case IBV_RATE_40_GBPS: return 16;
    case IBV_RATE_100_GBPS: return 40;
    case IBV_RATE_200_GBPS: return 80;
    case IBV_RATE_400_GBPS: return 160;
    default: return -1;
  }
}

NORIA_EXPORT int ibv_rate_to_mbps(ibv_rate rate) {
  const int multiple = ibv_rate_to_mult(rate);
  return multiple < 0 ? -1 : multiple * 2500;
}

NORIA_EXPORT const char* ibv_get_sysfs_path(void) { return "/sys"; }

NORIA_EXPORT int ibv_read_sysfs_file(const char* folder, const char* file, char* out,
                                     size_t bytes) {
  const std::string path = std::string(folder) + "/" + file;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  ssize_t n = ::read(fd, out, bytes);
  ::close(fd);
  if (n > 0 && out[n - 1] == '\n') out[--n] = '\0';
  return static_cast<int>(n);
}
