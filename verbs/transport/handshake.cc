#include "verbs/transport/handshake.hpp"

#include <unistd.h>

#include <cstdio>

#include "verbs/transport/domain_state.hpp"

namespace noria::transport {
namespace {

const char* kind_name(uint64_t kind) {
  return kind == static_cast<uint64_t>(verbs::ProviderKind::software) ? "software HCA"
                                                                      : "RDMA device";
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
  if (listener.rails != connector.rails)
    return differ(wire::Reason::rails, listener.rails, connector.rails);
  return std::nullopt;
}

std::string explain(const wire::Refuse& refuse, bool is_listener) {
  const uint64_t ours = is_listener ? refuse.listener_value : refuse.connector_value;
  const uint64_t theirs = is_listener ? refuse.connector_value : refuse.listener_value;
  const auto ours_number = static_cast<unsigned long long>(ours);
  const auto theirs_number = static_cast<unsigned long long>(theirs);
  char text[256];
  switch (refuse.reason) {
    case wire::Reason::version:
      std::snprintf(text, sizeof text,
                    "wire versions differ: ours %llu, the peer's %llu: install the same noria on "
                    "both hosts",
                    ours_number, theirs_number);
      break;
    case wire::Reason::provider_kind:
      std::snprintf(text, sizeof text,
                    "devices differ: ours is a %s, the peer's a %s: set NORIA_SOFT alike on all "
                    "ranks",
                    kind_name(ours), kind_name(theirs));
      break;
    case wire::Reason::fingerprint:
      std::snprintf(text, sizeof text,
                    "fingerprints differ: ours 0x%016llx, the peer's 0x%016llx: give all ranks the "
                    "same build and NORIA_ variables",
                    ours_number, theirs_number);
      break;
    case wire::Reason::rails:
      std::snprintf(text, sizeof text,
                    "rails differ: ours %llu, the peer's %llu: use the same number of ports on "
                    "both hosts",
                    ours_number, theirs_number);
      break;
    case wire::Reason::no_resources:
      if (refuse.listener_value == 0)
        std::snprintf(text, sizeof text,
                      "%s could not use the queue pairs that were offered: are both ends of one "
                      "build, and their ports on one kind of link?",
                      is_listener ? "we" : "the peer");
      else
        std::snprintf(text, sizeof text,
                      "%s could not set up queue pairs (errno %llu): see its log",
                      is_listener ? "we" : "the peer",
                      static_cast<unsigned long long>(refuse.listener_value));
      break;
    default:
      std::snprintf(text, sizeof text, "refused for reason %u, which this build does not know",
                    static_cast<unsigned>(refuse.reason));
      break;
  }
  return text;
}

Terms terms_of(Domain& domain, const ConnectOptions& options) {
  return {.provider_kind = static_cast<uint64_t>(domain.state().rails()->provider->kind()),
          .fingerprint = options.fingerprint,
          .rails = domain.rails()};
}

std::array<char, 64> own_name() {
  char host[48] = "";
  if (gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
  std::array<char, 64> name{};
  std::snprintf(name.data(), name.size(), "%s:%d", host, static_cast<int>(getpid()));
  return name;
}

std::string text_of(std::array<char, 64> name) {
  name.back() = '\0';
  std::string text(name.data());
  // It goes into logs: whatever a peer sent, a line stays a line.
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
