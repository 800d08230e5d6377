#include "tests/support/cuda_standin/exchange.hpp"

#include <poll.h>
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

constexpr size_t kAtOnce = 256 * 1024;

// No file: an abstract name, which goes with the socket.
std::pair<sockaddr_un, socklen_t> name_of(uint64_t address) {
  const std::string text = say("noria-standin-%016llx", static_cast<unsigned long long>(address));
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  memcpy(name.sun_path + 1, text.data(), text.size());
  return {name, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size())};
}

int new_socket() { return ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0); }

}  // namespace

Line::~Line() { ::close(fd); }

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
  std::thread([this] { run(); }).detach();
  return true;
}

// ---- the thread ---------------------------------------------------------------------------------

void Exchange::run() {
  Machine& machine = Machine::instance();
  std::unique_lock lock(machine.mutex);
  for (;;) {
    std::vector<pollfd> polled{{wake_, POLLIN, 0}, {listener_, POLLIN, 0}};
    const std::vector<std::shared_ptr<Line>> lines = lines_;
    for (const std::shared_ptr<Line>& line : lines) {
      const int events = POLLIN | (line->unwritten.empty() ? 0 : POLLOUT);
      polled.push_back({line->fd, static_cast<short>(events), 0});
    }
    lock.unlock();
    while (::poll(polled.data(), polled.size(), -1) < 0 && errno == EINTR) {
    }
    lock.lock();
    uint64_t woken = 0;
    static_cast<void>(::read(wake_, &woken, sizeof woken));
    if (listener_ >= 0) accept_all();
    for (const std::shared_ptr<Line>& line : lines) {
      const bool goes_on = read(*line) && write(*line);
      if (goes_on && !(line->is_leaving && line->unwritten.empty())) continue;
      std::erase(lines_, line);
      hang_up(line);
      machine.changed.notify_all();
    }
  }
}

void Exchange::accept_all() {
  pollfd caller{listener_, POLLIN, 0};
  while (::poll(&caller, 1, 0) == 1) {
    const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) return;
    lines_.push_back(std::make_shared<Line>(fd));
  }
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
    memcpy(&word, rest().data(), sizeof word);
    if (rest().size() - sizeof word < word.bytes) break;
    if (!hear(line, word, rest().substr(sizeof word, word.bytes))) return false;
    taken += sizeof word + word.bytes;
  }
  line.unread.erase(0, taken);
  return true;
}

}  // namespace noria::standin
