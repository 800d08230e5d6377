// Who am I, and where is rank 0: the 128 bytes of an id, and a launcher's variables.
#include <noria/bucketing.h>

#include "bucketing/bootstrap.hpp"
#include "bucketing/tcp.hpp"
#include "tests/fuzz/input.hpp"

namespace {

using namespace noria::bucketing;
using noria::fuzz::Input;
using noria::fuzz::is_one_line;

void check_place(const Rendezvous& place) {
  NORIA_CHECK(place.size >= 1 && place.rank >= 0 && place.rank < place.size,
              "a rank is one of its job");
}

void check_id(const noria_unique_id& id, int32_t rank, int32_t size) {
  const auto read = read_unique_id(id, rank, size);
  if (!read) {
    NORIA_CHECK(read.failure().code == NORIA_E_ARG || read.failure().code == NORIA_E_MISMATCH,
                "an id is no id, or of another version");
    NORIA_CHECK(is_one_line(read.failure().text), "a refusal is one line");
    return;
  }
  check_place(*read);
  NORIA_CHECK(read->rank == rank && read->size == size, "rank and size are the caller's");
  TcpAddress address;
  NORIA_CHECK(read->port != 0 && parse_numeric(read->host, read->port, &address),
              "an id says where to connect to");
  NORIA_CHECK(address.port() == read->port, "the port is the id's");
  const std::string_view bytes(id.bytes, sizeof id.bytes);
  NORIA_CHECK(bytes.find(read->host) != std::string_view::npos, "the host stands in the id");
}

void check_host_port(const std::string& text) {
  std::string host;
  uint16_t port = 0;
  if (!noria::parse_host_port(text, &host, &port)) return;
  NORIA_CHECK(!host.empty() && port != 0, "there is a host and a port");
  const bool has_colon = host.find(':') != std::string::npos;
  const std::string again = (has_colon ? "[" + host + "]" : host) + ":" + std::to_string(port);
  std::string host_again;
  uint16_t port_again = 0;
  NORIA_CHECK(noria::parse_host_port(again, &host_again, &port_again) && host_again == host &&
                  port_again == port,
              "what is accepted is accepted again as the same");
}

void check_launcher(const std::vector<std::string>& values, int32_t rank, int32_t size) {
  noria::Params params;
  std::string* const fields[] = {&params.root, &params.rank, &params.world_size,
                                 &params.master_addr, &params.master_port};
  for (size_t i = 0; i < std::size(fields) && i < values.size(); ++i) *fields[i] = values[i];
  const auto place = rendezvous_from_launcher(params, rank, size);
  if (!place) {
    NORIA_CHECK(place.failure().code == NORIA_E_ARG && !place.failure().text.empty(),
                "variables that make no sense are an argument's fault");
    return;
  }
  check_place(*place);
  NORIA_CHECK(place->size == 1 || (place->port != 0 && !place->host.empty()),
              "several ranks know where to meet");
  // Every rank of the job computes the same token.
  for (const int32_t other : {0, place->size - 1}) {
    const auto again = rendezvous_from_launcher(params, other, place->size);
    NORIA_CHECK(again && again->token_low == place->token_low &&
                    again->token_high == place->token_high && again->port == place->port,
                "all ranks find each other");
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  const auto rank = input.take<int32_t>();
  const auto ranks = input.take<int32_t>();
  check_id(input.take<noria_unique_id>(), rank, ranks);
  check_host_port(std::string(input.rest()));
  check_launcher(input.take_parts('\n'), rank, ranks);
  return 0;
}
