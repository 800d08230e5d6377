#include "bucketing/timeline.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/clock.hpp"
#include "base/fd.hpp"
#include "base/log.hpp"

namespace noria::bucketing {
namespace {

using Field = std::pair<const char*, int64_t>;

int64_t number(uint64_t value) { return static_cast<int64_t>(value); }

// "a":1,"b":2
std::string fields(std::span<const Field> all) {
  std::string text;
  for (const auto& [name, value] : all)
    text += (text.empty() ? "\"" : ",\"") + std::string(name) + "\":" + std::to_string(value);
  return text;
}

std::string words_of(const noria_bucket_info& bucket) {
  return "{" +
         fields(std::array<Field, 10>{{{"bucket", bucket.bucket},
                                       {"tensors", bucket.tensors},
                                       {"dtype", bucket.dtype},
                                       {"bytes", number(bucket.bytes)},
                                       {"first_ns", bucket.first_ns},
                                       {"queued_ns", bucket.queued_ns},
                                       {"ready_ns", bucket.ready_ns},
                                       {"start_ns", bucket.start_ns},
                                       {"end_ns", bucket.end_ns},
                                       {"wire_ns", bucket.wire_ns}}}) +
         "}";
}

std::string words_of(uint64_t reducer, const noria_step_info& step,
                     std::span<const noria_bucket_info> buckets) {
  std::string text = "{" +
                     fields(std::array<Field, 14>{{{"reducer", number(reducer)},
                                                   {"step", number(step.step)},
                                                   {"bytes", number(step.bytes)},
                                                   {"wire_bytes", number(step.wire_bytes)},
                                                   {"begin_ns", step.begin_ns},
                                                   {"last_gradient_ns", step.last_gradient_ns},
                                                   {"end_ns", step.end_ns},
                                                   {"compute_ns", step.compute_ns},
                                                   {"communication_ns", step.communication_ns},
                                                   {"exposed_ns", step.exposed_ns},
                                                   {"backlog_ns", step.backlog_ns},
                                                   {"tail_ns", step.tail_ns},
                                                   {"finish_ns", step.finish_ns},
                                                   {"order_wait_ns", step.order_wait_ns}}}) +
                     ",\"buckets\":[";
  for (const noria_bucket_info& bucket : buckets)
    text += (&bucket == buckets.data() ? "" : ",") + words_of(bucket);
  return text + "]}\n";
}

// A host name has no character that JSON would want escaped; what has is none.
std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "";
  for (const char c : std::string(name.data()))
    if (c < ' ' || c == '"' || c == '\\') return "";
  return name.data();
}

std::string head_of(const Timeline::Owner& owner) {
  return "{\"noria_trace\":1,\"host\":\"" + host_name() + "\",\"group\":\"" + owner.group + "\"," +
         fields(std::array<Field, 6>{{{"pid", ::getpid()},
                                      {"rank", owner.rank},
                                      {"ranks", owner.size},
                                      {"clock_offset_ns", owner.clock.offset},
                                      {"clock_error_ns", owner.clock.error},
                                      {"clock_measured_ns", owner.clock.measured}}}) +
         "}\n";
}

bool write_all(int fd, const std::string& text) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

}  // namespace

Timeline::Timeline(std::string file, const Owner& owner)
    : file_(std::move(file)), head_(head_of(owner)) {}

Timeline::~Timeline() {
  const MutexLock lock(mutex_);
  write_or_warn();
}

std::string Timeline::make_group() {
  return std::to_string(::getpid()) + "-" + std::to_string(now_ns());
}

std::string Timeline::next_name() {
  static constinit std::atomic<uint32_t> communicators{0};
  const uint32_t before = communicators.fetch_add(1, std::memory_order_relaxed);
  return before == 0 ? "" : ".comm" + std::to_string(before);
}

std::string Timeline::split_name(const std::string& parent, uint32_t split, int32_t color) {
  return parent + ".split" + std::to_string(split) + ".color" + std::to_string(color);
}

Outcome<std::unique_ptr<Timeline>> Timeline::create(const std::string& path, const Owner& owner) {
  std::unique_ptr<Timeline> timeline(
      new Timeline(path + ".rank" + std::to_string(owner.rank) + ".jsonl", owner));
  NORIA_TRY(timeline->start());
  return timeline;
}

Outcome<Ok> Timeline::start() {
  const MutexLock lock(mutex_);
  Outcome<Ok> written = write();
  has_warned_ = !written.is_ok();  // the caller says so
  return written;
}

void Timeline::on_step(uint64_t reducer, const noria_step_info& step,
                       std::span<const noria_bucket_info> buckets) {
  const MutexLock lock(mutex_);
  lines_.push_back(words_of(reducer, step, buckets));
  bytes_ += lines_.back().size();
  while (lines_.size() > kSteps || (bytes_ > kBytes && lines_.size() > 1)) {
    bytes_ -= lines_.front().size();
    lines_.pop_front();
  }
  if (std::has_single_bit(++steps_) || steps_ % kSteps == 0) write_or_warn();
}

void Timeline::on_failed_step() {
  const MutexLock lock(mutex_);
  write_or_warn();
}

Outcome<Ok> Timeline::write() {
  const std::string part = file_ + ".part";
  const Fd fd(::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  bool is_good = fd.get() >= 0 && write_all(fd.get(), head_);
  for (const std::string& line : lines_) is_good = is_good && write_all(fd.get(), line);
  if (is_good && std::rename(part.c_str(), file_.c_str()) == 0) return Ok{};
  return Failure{NORIA_E_ARG, "NORIA_TRACE: cannot write " + file_ + ": " + std::strerror(errno)};
}

// A step that went well does not fail for its picture.
void Timeline::write_or_warn() {
  const Outcome<Ok> written = write();
  if (written || has_warned_) return;
  has_warned_ = true;
  log(LogLevel::warn, "%s", written.failure().text.c_str());
}

}  // namespace noria::bucketing
