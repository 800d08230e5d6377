// Words between processes whose ranks are of one world: sockets of this machine, and the thread
// that moves their bytes.
//
// Whoever makes a unique id listens at an address that the id names. A process that joins by it
// calls there, by one line for each world, and the maker passes on what it hears. That a word came
// orders nothing: each process checks its own memory only. A child of fork() is another process: it
// has no lines, and no ids of its own yet.
//
// Threads: as machine.hpp. The thread holds the machine while it hands over a word, and never
// waits for a peer with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/cuda_standin/collective_launch.hpp"

namespace noria::standin {

struct World;

enum class WordKind : uint32_t {
  hello,    // a rank joins: `ranks`, `world`, `device`, and the host's name behind it
  arrival,  // its stream has come to a collective: `part`, and its input behind it
  left,     // it destroyed or aborted its communicator
  lost,     // its process ended without that
};

inline constexpr uint64_t kWordMark = 0x64726f77'6e696e69;
inline constexpr uint64_t kMostBytes = uint64_t{1} << 30;  // of one word's payload
inline constexpr uint32_t kMostRanks = 1024;

// As it lies on the wire, between programs of one build. `bytes` follow it. Whoever says anything
// else, or more than the bounds above, is hung up on.
struct Word {
  uint64_t mark = kWordMark;
  WordKind kind = WordKind::hello;
  uint32_t rank = 0;
  uint32_t ranks = 0;
  int32_t device = 0;
  uint64_t world = 0;
  bool is_makers = false;   // the rank lives where the id was made
  bool is_allowed = false;  // to touch what the part names
  CollectivePart part;
  uint64_t bytes = 0;
};

struct Line : std::enable_shared_from_this<Line> {
  explicit Line(int socket) : fd(socket) {}
  ~Line();
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;
  void close();

  int fd;
  std::shared_ptr<World> world;  // null: it has said no hello
  bool is_leaving = false;       // it ends when all is written
  std::string unwritten;
  size_t written = 0;  // of `unwritten`
  std::string unread;
};

// The bytes of a word.
std::string wire_bytes(Word word, std::string_view payload);

class Exchange {
 public:
  static Exchange& instance();

  // Where this process is called; 0: it cannot listen.
  uint64_t address();
  bool is_own(uint64_t address) const { return address == address_; }
  // A line to whoever has the address; null: nobody has.
  std::shared_ptr<Line> call(uint64_t address);
  // To all lines of the world but one.
  void say(const World& world, const Word& word, std::string_view payload,
           const Line* except = nullptr);
  static void say_to(Line& line, std::string_view bytes) { line.unwritten += bytes; }
  void wake();
  // Until all that was said in the world is written, for the process may end now; a second at most.
  static void flush(const World& world, std::unique_lock<std::mutex>* lock);

 private:
  bool start();
  void run();
  // False: a caller waits for whom there is no descriptor.
  bool accept_all();
  void forget_parent();
  // What there is on the line. False: it is over.
  static bool read(Line& line);
  static bool write(Line& line);
  static bool take_words(Line& line);

  int listener_ = -1;
  int wake_ = -1;
  uint64_t address_ = 0;
  std::vector<std::shared_ptr<Line>> lines_;
};

}  // namespace noria::standin
