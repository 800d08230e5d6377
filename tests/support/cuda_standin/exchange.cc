#include "tests/support/cuda_standin/exchange.hpp"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <random>
#include <thread>
#include <utility>

#include "tests/support/cuda_standin/communicator.hpp"
#include "tests/support/cuda_standin/machine.hpp"
#include "tests/support/cuda_standin/say.hpp"

namespace noria::standin {

namespace {

constexpr size_t kAtOnce = size_t{256} << 10;

// No file: an abstract name, which goes with the socket.
std::pair<sockaddr_un, socklen_t> name_of(uint64_t address) {
  const std::string text = say("noria-standin-%016llx", static_cast<unsigned long long>(address));
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  memcpy(name.sun_path + 1, text.data(), text.size());
  return {name, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size())};
}

// Whether it is a word of ours that can be meant; what it says of ranks, hear() looks at.
bool makes_sense(const Word& word) {
  return word.mark == kWordMark && word.kind <= WordKind::lost && word.bytes <= kMostBytes &&
         word.ranks <= kMostRanks;
}

int new_socket() { return ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0); }

}  // namespace

Line::~Line() { close(); }
void Line::close() {
  if (fd >= 0) ::close(std::exchange(fd, -1));
}

std::string wire_bytes(Word word, std::string_view payload) {
  word.bytes = payload.size();
  std::string bytes(reinterpret_cast<const char*>(&word), sizeof word);
  bytes += payload;
  return bytes;
}

Exchange& Exchange::instance() {
  // Never destroyed: its thread goes on until the process ends.
  static Exchange& exchange = *new Exchange;
  return exchange;
}

uint64_t Exchange::address() {
  if (address_ != 0) return address_;
  std::random_device entropy;
  const uint64_t address = (uint64_t{entropy()} << 32U) | entropy() | 1U;
  const auto [name, length] = name_of(address);
  const int fd = new_socket();
  if (fd < 0 || ::bind(fd, reinterpret_cast<const sockaddr*>(&name), length) != 0 ||
      ::listen(fd, SOMAXCONN) != 0 || !start()) {
    ::close(fd);
    return 0;
  }
  listener_ = fd;
  wake();
  return address_ = address;
}

std::shared_ptr<Line> Exchange::call(uint64_t address) {
  const auto [name, length] = name_of(address);
  const int fd = new_socket();
  if (fd < 0) return nullptr;
  auto line = std::make_shared<Line>(fd);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&name), length) != 0 || !start())
    return nullptr;
  lines_.push_back(line);
  wake();
  return line;
}

void Exchange::say(const World& world, const Word& word, std::string_view payload,
                   const Line* except) {
  if (world.lines.empty()) return;
  const std::string bytes = wire_bytes(word, payload);
  for (const std::shared_ptr<Line>& line : world.lines)
    if (line.get() != except) say_to(*line, bytes);
  wake();
}

void Exchange::wake() {
  const uint64_t one = 1;
  static_cast<void>(::write(wake_, &one, sizeof one));
}

void Exchange::flush(const World& world, std::unique_lock<std::mutex>* lock) {
  Machine::instance().changed.wait_for(*lock, std::chrono::seconds(1), [&] {
    return std::all_of(world.lines.begin(), world.lines.end(),
                       [](const auto& line) { return line->unwritten.empty(); });
  });
}

bool Exchange::start() {
  if (wake_ >= 0) return true;
  wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_ < 0) return false;
  static const int watched = ::pthread_atfork([] { Machine::instance().mutex.lock(); },
                                              [] { Machine::instance().mutex.unlock(); },
                                              [] {
                                                instance().forget_parent();
                                                Machine::instance().mutex.unlock();
                                              });
  if (watched != 0) return false;
  std::thread([this] { run(); }).detach();
  return true;
}

// Its sockets are the parent's as well, which goes on with them; the thread is the parent's alone,
// and what that held of the lines is not let go here.
void Exchange::forget_parent() {
  for (int* const fd : {&listener_, &wake_})
    if (*fd >= 0) ::close(std::exchange(*fd, -1));
  address_ = 0;
  for (const std::shared_ptr<Line>& line : lines_) {
    line->close();
    if (const auto world = std::exchange(line->world, nullptr)) world->lines.clear();
  }
  lines_.clear();
}

// ---- the thread ---------------------------------------------------------------------------------

void Exchange::run() {
  Machine& machine = Machine::instance();
  std::unique_lock lock(machine.mutex);
  bool has_room = true;
  for (;;) {
    std::vector<pollfd> polled{{wake_, POLLIN, 0}, {has_room ? listener_ : -1, POLLIN, 0}};
    const std::vector<std::shared_ptr<Line>> lines = lines_;
    for (const std::shared_ptr<Line>& line : lines) {
      const int events = POLLIN | (line->unwritten.empty() ? 0 : POLLOUT);
      polled.push_back({line->fd, static_cast<short>(events), 0});
    }
    lock.unlock();
    // Nothing tells of a descriptor that has become free.
    while (::poll(polled.data(), polled.size(), has_room ? -1 : 100) < 0 && errno == EINTR) {
    }
    lock.lock();
    uint64_t woken = 0;
    static_cast<void>(::read(wake_, &woken, sizeof woken));
    has_room = listener_ < 0 || accept_all();
    for (const std::shared_ptr<Line>& line : lines) {
      const bool goes_on = read(*line) && write(*line);
      if (goes_on && !(line->is_leaving && line->unwritten.empty())) continue;
      std::erase(lines_, line);
      hang_up(line);
      machine.changed.notify_all();
    }
  }
}

bool Exchange::accept_all() {
  pollfd caller{listener_, POLLIN, 0};
  while (::poll(&caller, 1, 0) == 1) {
    const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) return errno != EMFILE && errno != ENFILE;
    lines_.push_back(std::make_shared<Line>(fd));
  }
  return true;
}

bool Exchange::read(Line& line) {
  std::array<char, kAtOnce> part;
  for (;;) {
    const ssize_t n = ::recv(line.fd, part.data(), part.size(), MSG_DONTWAIT);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    if (n == 0) return false;
    line.unread.append(part.data(), static_cast<size_t>(n));
    if (!take_words(line)) return false;
  }
}

bool Exchange::write(Line& line) {
  while (!line.unwritten.empty()) {
    const std::string_view rest = std::string_view(line.unwritten).substr(line.written);
    const ssize_t n = ::send(line.fd, rest.data(), rest.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    line.written += static_cast<size_t>(n);
    if (line.written < line.unwritten.size()) continue;
    line.unwritten.clear();
    line.written = 0;
    Machine::instance().changed.notify_all();
  }
  return true;
}

bool Exchange::take_words(Line& line) {
  size_t taken = 0;
  const auto rest = [&] { return std::string_view(line.unread).substr(taken); };
  while (rest().size() >= sizeof(Word)) {
    Word word;
    memcpy(static_cast<void*>(&word), rest().data(), sizeof word);
    if (!makes_sense(word)) return false;
    if (rest().size() - sizeof word < word.bytes) break;
    if (!hear(line, word, rest().substr(sizeof word, word.bytes))) return false;
    taken += sizeof word + word.bytes;
  }
  line.unread.erase(0, taken);
  return true;
}

}  // namespace noria::standin
