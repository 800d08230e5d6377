// The transport's wire: structs that come back as they went, control messages however they are cut,
// and what is said of a refusal.
#include "verbs/transport/wire.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "tests/fuzz/input.hpp"
#include "verbs/transport/control.hpp"
#include "verbs/transport/credit.hpp"
#include "verbs/transport/handshake.hpp"

namespace {

using namespace noria::transport;
using noria::fuzz::bytes_of;
using noria::fuzz::Input;
using noria::fuzz::is_one_line;

void check_immediate(uint32_t bits) {
  const auto immediate = wire::Immediate::unpack(bits);
  NORIA_CHECK(immediate.pack() == bits, "every immediate is packed as it came");
  NORIA_CHECK(immediate.sequence < 1u << wire::Immediate::kSequenceBits && immediate.pieces >= 1,
              "fields stay inside their width");
  NORIA_CHECK(wire::Immediate::slot_in(bits) == wire::slot_of(immediate.sequence),
              "both ways to the slot agree");
  NORIA_CHECK(wire::Immediate::message_in(bits) != wire::Immediate::kNoMessage,
              "bits name a message");
}

void check_credit(const wire::Credit& given, uint64_t sequence) {
  wire::Credit slot = given;
  const bool is_whole = slot.sequence == static_cast<uint32_t>(sequence) &&
                        slot.sequence_again == static_cast<uint32_t>(sequence);
  NORIA_CHECK(static_cast<bool>(read_credit(slot, sequence)) == is_whole,
              "a credit counts when both halves are of its message");
  wire::Credit made;
  std::array<uint32_t, kMaxRails> keys;
  std::copy(slot.first_keys.begin(), slot.first_keys.end(), keys.begin());
  std::copy(slot.other_keys.begin(), slot.other_keys.end(), keys.begin() + slot.first_keys.size());
  set_credit(&made, sequence, slot.match, slot.address, slot.bytes, keys);
  const CreditView view = read_credit(made, sequence);
  NORIA_CHECK(view && view.address() == slot.address && view.bytes() == slot.bytes &&
                  view.match() == slot.match,
              "a credit is read as it was made");
  for (unsigned rail = 0; rail < kMaxRails; ++rail)
    NORIA_CHECK(view.rkey(wire::Credit::word_of_key(rail)) == keys[rail],
                "every rail has its own key");
}

void check_terms(Input& input) {
  const Terms ours{input.take<uint16_t>(), input.take<uint8_t>(), input.take<uint64_t>()};
  const Terms theirs{input.take<uint16_t>(), input.take<uint8_t>(), input.take<uint64_t>()};
  const bool are_equal = ours.version == theirs.version &&
                         ours.provider_kind == theirs.provider_kind &&
                         ours.fingerprint == theirs.fingerprint;
  const auto refusal = first_difference(ours, theirs);
  NORIA_CHECK(refusal.has_value() != are_equal, "peers are refused when they differ");
  if (refusal) {
    const auto mirrored = first_difference(theirs, ours);
    NORIA_CHECK(mirrored && explain(*refusal, true) == explain(*mirrored, false),
                "both sides say the same of a difference");
  }
  const auto any = input.take<wire::Refuse>();
  NORIA_CHECK(is_one_line(explain(any, true)) && is_one_line(explain(any, false)),
              "a refusal is explained in one line");
}

// `stream` given in pieces of `step` bytes; every message is a struct that reads as its bytes.
void check_stream(std::string_view stream, size_t step) {
  int fds[2];
  NORIA_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) == 0, "a pair of sockets");
  ControlSocket control{Socket(fds[0])};
  size_t taken = 0;  // bytes of the messages that came out
  Progress progress = Progress::pending;
  while (progress == Progress::pending && !stream.empty()) {
    const std::string_view piece = stream.substr(0, step);
    if (write(fds[1], piece.data(), piece.size()) != static_cast<ssize_t>(piece.size())) break;
    stream.remove_prefix(piece.size());
    while ((progress = control.pump_receive()) == Progress::done) {
      const wire::Control header = control.header();
      NORIA_CHECK(header.magic == wire::kControlMagic, "no message without the magic");
      NORIA_CHECK(header.bytes >= sizeof header && header.bytes <= wire::kMaxControlBytes,
                  "no message past its bound");
      taken += header.bytes;
      const auto hello = control.read<wire::Hello>();
      NORIA_CHECK(bytes_of(hello).substr(0, sizeof header) == bytes_of(header),
                  "every view of a message begins alike");
      for (const char c : text_of(hello.name))
        NORIA_CHECK(c >= ' ' && c <= '~', "a peer's name is fit for a log");
    }
  }
  close(fds[1]);
  NORIA_CHECK(progress != Progress::closed || taken == 0, "nobody closed it");
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  check_immediate(input.take<uint32_t>());
  const auto sequence = input.take<uint64_t>();
  check_credit(input.take<wire::Credit>(), sequence);
  check_terms(input);
  const size_t step = 1 + input.take<uint8_t>();
  check_stream(input.rest().substr(0, 16384), step);
  return 0;
}
