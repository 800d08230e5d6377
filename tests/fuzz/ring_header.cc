// One rank of a ring whose neighbour says anything: a right header and right notices, or a right
// line, changed as the input says, on a transport without a device. Whatever comes, the ring ends
// or waits; it ends well only behind the header, or the line, of this very collective; and memory
// that is not its own is not touched (the transport breaks the connection, the sanitizer the
// process).
#include <array>
#include <memory>

#include "bucketing/kernels.hpp"
#include "bucketing/ring.hpp"
#include "bucketing/ring_lines.hpp"
#include "bucketing/ring_mismatch.hpp"
#include "bucketing/ring_wire.hpp"
#include "tests/fuzz/input.hpp"
#include "tests/support/fake_transport.hpp"

namespace {

using namespace noria::bucketing;
using noria::fuzz::bytes_of;
using noria::fuzz::Input;
namespace transport = noria::transport;

constexpr uint32_t kRanks = 2;

// The neighbour's ends of the connections, and the memory that it offers.
struct Neighbour {
  std::unique_ptr<transport::Domain> domain = noria::test::make_fake_domain();
  std::unique_ptr<transport::SendConnection> reduce_out, gather_out;
  std::unique_ptr<transport::RecvConnection> reduce_in, gather_in;
  transport::Region memory = domain->allocate(64 << 10).value();
  transport::Region lines =
      domain->allocate(RingLines::bytes_of(kRanks), transport::Watched::yes).value();
  transport::RemoteRegion lines_out;
};

// Few elements of few types: what is asked for is not what is tried here.
struct Job {
  explicit Job(Input& input) : memory(64 << 10) {
    const auto choice = input.take<uint8_t>();
    collective.kind = choice % 3 == 0   ? Kind::all_reduce
                      : choice % 3 == 1 ? Kind::broadcast
                                        : Kind::barrier;
    collective.root = choice / 4 % kRanks;
    Part part;
    part.count = input.take<uint16_t>() % 4096;
    part.dtype = NORIA_FLOAT32;
    part.in = part.out = memory.data();
    if (collective.kind != Kind::barrier) collective.parts = {part};
    prepare(collective, kRanks);
  }
  bool goes_by_line() const { return RingLines::fit(collective); }
  LineCall line_call() const {
    LineCall call{.kind = collective.kind};
    if (call.kind == Kind::barrier) return call;
    const Part& part = collective.parts.front();
    call.dtype = static_cast<uint8_t>(part.dtype);
    call.op = static_cast<uint8_t>(part.op);
    call.count = static_cast<uint8_t>(part.count);
    return call;
  }
  std::vector<std::byte> memory;
  Collective collective;
};

// Of a job that goes by lines it is as right as one can be that does not.
RingHeader right_header(const Job& job, const Neighbour& neighbour, bool pulls) {
  if (job.goes_by_line()) {
    RingHeader header = header_of(job.line_call());
    header.sequence = 1;
    return header;
  }
  RingHeader header;
  const Part& part = job.collective.parts.front();
  header.kind = job.collective.kind;
  header.sequence = 1;
  header.fingerprint = job.collective.fingerprint;
  header.parts = 1;
  header.root = job.collective.root;
  header.dtype = static_cast<uint8_t>(part.dtype);
  header.op = static_cast<uint8_t>(part.op);
  header.count = part.count;
  if (pulls && header.kind != Kind::broadcast) {
    header.flags = kAllReady | kHasRemote;
    header.part.in_region = header.part.out_region = neighbour.memory.remote();
  }
  return header;
}

// The next message of the neighbour: the right bytes, a few of them changed, or cut.
std::string changed(std::string bytes, Input& input) {
  for (int edits = input.take<uint8_t>() % 4; edits > 0; --edits) {
    const auto at = input.take<uint16_t>();
    bytes[at % bytes.size()] = input.take<char>();
  }
  const auto cut = input.take<uint8_t>();
  if (cut < bytes.size() && cut % 8 == 7) bytes.resize(cut);
  return bytes;
}

void send(Neighbour& neighbour, transport::SendConnection& to, const std::string& bytes) {
  if (bytes.size() > neighbour.memory.bytes()) return;
  std::memcpy(neighbour.memory.base(), bytes.data(), bytes.size());
  for (int i = 0; i < 8; ++i)
    if (to.try_send(neighbour.memory, 0, bytes.size()) != nullptr) break;
  for (int i = 0; i < 8; ++i) neighbour.domain->poll();
}

// The first message: the header, and behind it now and then the first chunk.
std::string first_message(RingHeader header, const Job& job, Input& input) {
  if ((header.flags & kHasRemote) != 0) return std::string(bytes_of(header));
  const bool carries_chunk =
      input.take<uint8_t>() % 2 == 0 && !job.goes_by_line() && !job.collective.segments.empty();
  if (carries_chunk) header.flags |= kCarriesChunk;
  std::string said(bytes_of(header).substr(0, kShortHeaderBytes));
  if (!carries_chunk) return said;
  const Chunk chunk =
      chunk_of(job.collective.segments.front(), RingPlace{0, kRanks}.fetched_chunk(0), kRanks,
               dtype_bytes(job.collective.parts.front().dtype));
  said.resize(kHeaderRoom);
  return said + std::string(chunk.count * dtype_bytes(job.collective.parts.front().dtype), 'c');
}

// The neighbour's line of the first collective, and where it belongs.
RingLine write_line(Neighbour& neighbour, const Job& job, Input& input) {
  RingLine line;
  line.call = job.line_call();
  line.sequence = 1;
  line.set_number(1);
  std::string said = changed(std::string(bytes_of(line)), input);
  said.resize(sizeof line);
  std::memcpy(static_cast<void*>(&line), said.data(), sizeof line);
  const uint64_t second_set = (kRanks - 1) * sizeof line;
  for (int i = 0; i < 8; ++i)
    if (neighbour.reduce_out->try_write_line(neighbour.lines_out, second_set, &line)) break;
  return line;
}

void run(Ring& ring, Neighbour& neighbour, Job& job, bool pulls, Input& input) {
  const RingHeader header = right_header(job, neighbour, pulls);
  const bool goes_by_line = job.goes_by_line();
  RingLine line;
  if (goes_by_line) line = write_line(neighbour, job, input);
  const std::string said = changed(first_message(header, job, input), input);
  ring.start(job.collective);
  for (int i = 0; i < 64; ++i) {
    neighbour.reduce_in->try_recv(neighbour.memory, 0, neighbour.memory.bytes());
    neighbour.gather_in->try_recv(neighbour.memory, 0, neighbour.memory.bytes());
  }
  if (!goes_by_line || input.take<uint8_t>() % 4 == 0) send(neighbour, *neighbour.reduce_out, said);
  auto progress = Ring::Progress::none;
  for (int turn = 0;
       turn < 400 && progress != Ring::Progress::finished && progress != Ring::Progress::failed;
       ++turn) {
    if (turn % 16 == 0 && !input.is_empty()) {
      const auto choice = input.take<uint8_t>();
      const RingNotice notice{.ready = input.take<uint8_t>()};
      // A chunk is as long as the input says; a right one can be met.
      const std::string message =
          choice % 2 == 0 ? std::string(bytes_of(notice))
                          : std::string(static_cast<size_t>(input.take<uint16_t>()) % 16384, 'c');
      send(neighbour, choice % 4 < 2 ? *neighbour.reduce_out : *neighbour.gather_out,
           changed(message.empty() ? "x" : message, input));
    }
    progress = ring.advance();
    neighbour.domain->poll();
  }
  if (progress == Ring::Progress::failed) {
    NORIA_CHECK(ring.failure().code < 0, "a failure has a failure's code");
    NORIA_CHECK(noria::fuzz::is_one_line(ring.failure().text), "a failure is one line");
  }
  if (progress == Ring::Progress::finished && goes_by_line) {
    NORIA_CHECK(line.has_landed(1) && line.sequence == 1 && line.call == job.line_call(),
                "the line was of this very collective");
  } else if (progress == Ring::Progress::finished) {
    RingHeader heard;
    NORIA_CHECK(said.size() >= kShortHeaderBytes, "no collective ends without its header");
    std::memcpy(static_cast<void*>(&heard), said.data(), kShortHeaderBytes);
    NORIA_CHECK(heard.type == RingMessage::header && heard.sequence == header.sequence &&
                    heard.fingerprint == header.fingerprint,
                "the header was of this very collective");
  }
  NORIA_CHECK(progress == Ring::Progress::finished || progress == Ring::Progress::failed ||
                  !ring.waiting_for().empty(),
              "who waits can say for what");
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  const bool pulls = input.take<uint8_t>() % 2 == 0;
  const auto fetch = pulls ? RingFetch::read : RingFetch::message;
  noria::test::seed_fake_transport(input.take<uint8_t>());
  noria::test::set_fake_chances(80, 5);
  {
    Job job(input);
    Neighbour neighbour;
    auto domain = noria::test::make_fake_domain();
    RingLinks links;
    const auto connect = [&](auto& from, auto& to, transport::Domain& a, transport::Domain& b) {
      auto link = noria::test::connect_fake(a, b);
      from = std::move(link.send);
      to = std::move(link.recv);
    };
    connect(neighbour.reduce_out, links.reduce_in, *neighbour.domain, *domain);
    connect(neighbour.gather_out, links.gather_in, *neighbour.domain, *domain);
    connect(links.reduce_out, neighbour.reduce_in, *domain, *neighbour.domain);
    connect(links.gather_out, neighbour.gather_in, *domain, *neighbour.domain);
    links.lines_in = domain->allocate(RingLines::bytes_of(kRanks), transport::Watched::yes).value();
    neighbour.lines_out = links.lines_in.remote();
    links.lines_out = neighbour.lines.remote();
    auto ring = Ring::over(*domain, {0, kRanks}, std::move(links), fetch, nullptr).value();
    run(*ring, neighbour, job, pulls, input);
    ring->close();
  }
  NORIA_CHECK(noria::test::fake_regions_alive() == 0, "all memory was given back");
  return 0;
}
