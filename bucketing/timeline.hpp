// Timeline: the last steps of a communicator's reducers, kept in memory and written as JSON lines.
//
// The first line says whose steps these are, of which group of ranks, and how far the rank's clock
// is from rank 0's; each other line is a step with its buckets, under the names of observe.h. The
// file is there from the start, so that a path that cannot be written is told at once, and it is
// always whole: it is written anew beside itself and moved into place, after steps 1, 2, 4, 8 and
// so on, after every kSteps steps, after a step that failed, and at the end. What is older than
// kSteps steps, or than kBytes, is dropped.
//
// Cost: a step is put into words after its end, some microseconds a bucket; none where no Timeline
// is.
//
// Threads: any; steps of several reducers may end at once.
#pragma once

#include <noria/observe.h>

#include <deque>
#include <memory>
#include <span>
#include <string>

#include "base/mutex.hpp"
#include "base/units.hpp"
#include "bucketing/clock_offset.hpp"
#include "bucketing/failure.hpp"

namespace noria::bucketing {

class Timeline {
 public:
  static constexpr size_t kSteps = 512;
  static constexpr uint64_t kBytes = 16_MiB;

  struct Owner {
    int32_t rank = 0;
    int32_t size = 1;
    std::string group;  // the same on all ranks of the communicator, and of no other
    ClockOffset clock;
  };

  // What makes a group that nobody has: rank 0 calls it for all.
  static std::string make_group();
  // Of a communicator that was not split off another: "", and ".comm1" for the process's second
  // one that asks.
  static std::string next_name();
  // Of one that was: the ranks of a color share it, and no others do.
  static std::string split_name(const std::string& parent, uint32_t split, int32_t color);

  // Writes `path`.rank0.jsonl. ARG where that cannot be written.
  static Outcome<std::unique_ptr<Timeline>> create(const std::string& path, const Owner& owner);
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // `reducer` is its number among the communicator's.
  void on_step(uint64_t reducer, const noria_step_info& step,
               std::span<const noria_bucket_info> buckets);
  void on_failed_step();

  const std::string& file() const { return file_; }

 private:
  Timeline(std::string file, const Owner& owner);
  Outcome<Ok> start();
  Outcome<Ok> write() NORIA_REQUIRES(mutex_);
  void write_or_warn() NORIA_REQUIRES(mutex_);

  const std::string file_;
  const std::string head_;
  Mutex mutex_;
  std::deque<std::string> lines_ NORIA_GUARDED_BY(mutex_);
  uint64_t bytes_ NORIA_GUARDED_BY(mutex_) = 0;  // of lines_
  uint64_t steps_ NORIA_GUARDED_BY(mutex_) = 0;  // recorded so far
  bool has_warned_ NORIA_GUARDED_BY(mutex_) = false;
};

}  // namespace noria::bucketing
