#include "verbs/transport/handshake.hpp"

#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "verbs/transport/domain_state.hpp"
#include "verbs/transport/listener.hpp"

namespace noria::transport {
namespace {

const char* kind_name(uint64_t kind) {
  return kind == static_cast<uint64_t>(verbs::ProviderKind::software) ? "software HCA"
                                                                      : "RDMA device";
}

std::string hex(uint64_t value) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%016llx", static_cast<unsigned long long>(value));
  return text;
}

std::string differing(const char* what, const std::string& ours, const std::string& theirs,
                      const char* advice) {
  return std::string(what) + " differ: ours " + ours + ", the peer's " + theirs + ": " + advice;
}

}  // namespace

std::optional<wire::Refuse> first_difference(const Terms& listener, const Terms& connector) {
  const auto differ = [](wire::Reason reason, uint64_t ours, uint64_t theirs) {
    wire::Refuse refuse;
    refuse.reason = reason;
    refuse.listener_value = ours;
    refuse.connector_value = theirs;
    return refuse;
  };
  if (listener.version != connector.version)
    return differ(wire::Reason::version, listener.version, connector.version);
  if (listener.provider_kind != connector.provider_kind)
    return differ(wire::Reason::provider_kind, listener.provider_kind, connector.provider_kind);
  if (listener.fingerprint != connector.fingerprint)
    return differ(wire::Reason::fingerprint, listener.fingerprint, connector.fingerprint);
  return std::nullopt;
}

Status refused_for(wire::Reason reason) {
  const Code code = reason != wire::Reason::no_resources ? Code::mismatch : Code::peer_lost;
  return Status(code, Origin::none, static_cast<int32_t>(reason));
}

bool are_fingerprints_unlike(const Status& failure) {
  return failure == refused_for(wire::Reason::fingerprint);
}

std::string explain(const wire::Refuse& refuse, bool is_listener) {
  const uint64_t ours = is_listener ? refuse.listener_value : refuse.connector_value;
  const uint64_t theirs = is_listener ? refuse.connector_value : refuse.listener_value;
  switch (refuse.reason) {
    case wire::Reason::version:
      return differing("wire versions", std::to_string(ours), std::to_string(theirs),
                       "install the same noria on both hosts");
    case wire::Reason::provider_kind:
      return differing("devices", std::string("is a ") + kind_name(ours),
                       std::string("a ") + kind_name(theirs), "set NORIA_SOFT alike on all ranks");
    case wire::Reason::fingerprint:
      return differing("fingerprints", hex(ours), hex(theirs),
                       "give all ranks the same build and NORIA_ variables");
    case wire::Reason::no_resources: {
      const std::string who = is_listener ? "we" : "the peer";
      if (refuse.listener_value == 0)
        return who +
               " could not use the queue pairs that were offered: are both ends of one build, and "
               "their ports on one kind of link?";
      return who + " could not set up queue pairs (errno " + std::to_string(refuse.listener_value) +
             "): see its log";
    }
  }
  return "refused for reason " + std::to_string(static_cast<unsigned>(refuse.reason)) +
         ", which this build does not know";
}

Terms terms_of(Domain& domain, const ConnectOptions& options) {
  return {.provider_kind = static_cast<uint64_t>(domain.state().rails()->provider().kind()),
          .fingerprint = options.fingerprint};
}

std::array<char, 64> own_name() {
  char host[48] = "";
  if (gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
  std::array<char, 64> name{};
  std::snprintf(name.data(), name.size(), "%s:%d", host, static_cast<int>(getpid()));
  return name;
}

std::string line_of(const char* words, size_t capacity) {
  std::string text(words, strnlen(words, capacity));
  for (char& c : text)
    if (c < ' ' || c > '~') c = '?';
  return text;
}

bool is_same_token(const wire::Token& a, const wire::Token& b) {
  std::byte difference{};
  for (size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ b[i];
  return difference == std::byte{};
}

}  // namespace noria::transport
