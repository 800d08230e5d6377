// Ranks of one job as processes of this machine.
//
// The parent forks before anybody calls noria, makes no noria call itself, and only collects: exit
// codes, and what each rank reports through a pipe. A rank dies with its parent. Ctrl-C (INT, TERM,
// HUP) kills all ranks at once. When a rank was lost, the others are told, as they cannot know of a
// rank that had not joined yet; they have kGrace to name it and end, and whoever still runs then is
// killed.
//
// Threads: the parent must have one thread.
#pragma once

#include <noria/bucketing.h>

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "perf/exit_codes.hpp"

namespace noria::perf {

// What a forked rank knows of itself.
class LocalRank {
 public:
  struct Pipes {
    int id_read, id_write;
    int report;  // write end
    int news;    // read end
  };
  LocalRank(int rank, int size, const Pipes& pipes) : rank_(rank), size_(size), pipes_(pipes) {}

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Rank 0 makes the id, here the ranks learn it. Once per rank.
  noria_unique_id exchange_id();
  // To the parent. May be called often; the pieces are joined.
  void report(std::string_view text);

  // Readable once the parent knows of a rank's loss.
  int news() const { return pipes_.news; }
  // "rank 1 (pid 4711) was killed by signal 9 (Killed)". Once, when news() is readable.
  std::string take_news();

 private:
  int rank_, size_;
  Pipes pipes_;
};

struct LocalJob {
  const char* tool = "";
  int size = 1;
  // Set in each rank before its first call of noria.
  std::vector<std::pair<std::string, std::string>> environment;
};

struct LocalResult {
  Exit exit = Exit::ok;              // the worst of all ranks
  std::vector<std::string> reports;  // by rank
};

// Runs `body` in each rank; what it returns, or throws as ToolError, becomes the rank's exit code.
LocalResult run_local_ranks(const LocalJob& job, const std::function<Exit(LocalRank&)>& body);

}  // namespace noria::perf
