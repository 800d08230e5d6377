#include "perf/net_measure.hpp"

#include <algorithm>

#include "base/units.hpp"
#include "perf/net_warmup.hpp"

namespace noria::perf {
namespace {

// Messages whose rate may be the peak.
constexpr uint64_t kStretch = 64;
// Messages between two looks at the clock, which costs as much as a tenth of a small message: so
// often that a test by time ends soon after its time.
uint64_t messages_a_look(uint64_t bytes) { return std::clamp<uint64_t>(16_MiB / bytes, 1, 64); }
// More than any test gets to, and countable over all connections.
constexpr uint64_t kNoEnd = uint64_t{1} << 48;
// Of a latency test: the newest are kept.
constexpr size_t kMostSamples = size_t{1} << 24;

// Times the sends of one side, over all its connections.
class RateClock {
 public:
  RateClock(uint64_t bytes, uint64_t connections, const NetLength& length,
            const NetProgress& progress)
      : a_look_(messages_a_look(bytes)),
        all_(length.messages * connections),
        length_(length),
        progress_(progress),
        start_(now_ns()),
        last_(start_) {}

  // `done` measured messages have ended; how many of each connection may begin.
  uint64_t goal(uint64_t done) {
    if (done >= looked_ + a_look_) look(done);
    if (length_.messages != 0) return length_.messages;
    return is_time_up_ ? 0 : kNoEnd;
  }
  RateRow row(uint64_t bytes, uint64_t messages) const {
    const double seconds = static_cast<double>(now_ns() - start_) * 1e-9;
    const double average = static_cast<double>(messages) / seconds;
    return {
        .bytes = bytes, .messages = messages, .peak = std::max(peak_, average), .average = average};
  }

 private:
  void look(uint64_t done) {
    const Nanoseconds now = now_ns();
    looked_ = done;
    if (done >= last_done_ + kStretch) {
      const auto time = static_cast<double>(std::max<Nanoseconds>(now - last_, 1));
      peak_ = std::max(peak_, static_cast<double>(done - last_done_) * 1e9 / time);
      last_ = now;
      last_done_ = done;
    }
    const auto passed = static_cast<double>(now - start_);
    is_time_up_ = length_.duration != 0 && now - start_ >= length_.duration;
    progress_(100 * (length_.messages != 0 ? static_cast<double>(done) / static_cast<double>(all_)
                                           : passed / static_cast<double>(length_.duration)));
  }

  const uint64_t a_look_, all_;
  const NetLength length_;
  const NetProgress& progress_;
  const Nanoseconds start_;
  uint64_t looked_ = 0;
  Nanoseconds last_;  // the end of the stretch before
  uint64_t last_done_ = 0;
  double peak_ = 0;
  bool is_time_up_ = false;
};

void start(const NetLink& link, uint64_t bytes) {
  if (link.sender != nullptr) link.sender->start(bytes);
  if (link.receiver != nullptr) link.receiver->start(bytes);
}

}  // namespace

RateRow measure_rate(std::span<const NetLink> links, NetControl& control, uint64_t bytes,
                     const NetLength& length, const NetProgress& progress) {
  for (const NetLink& link : links) start(link, bytes);
  NetPatience patience(control);
  const auto receive = [&] {
    bool has_received = false;
    for (const NetLink& link : links)
      if (link.receiver != nullptr && !link.receiver->is_over() && link.receiver->advance())
        has_received = true;
    return has_received;
  };
  // One step of each direction; `send` is that of a sender.
  const auto step = [&](const auto& send) {
    bool has_sent = false;
    for (const NetLink& link : links) has_sent = send(*link.sender) || has_sent;
    receive() || has_sent ? patience.moved() : patience.nothing_moved();
  };
  const auto sum = [&](uint64_t (NetSender::*count)() const) {
    uint64_t all = 0;
    for (const NetLink& link : links) all += (*link.sender.*count)();
    return all;
  };
  RateRow row{.bytes = bytes};
  if (links.front().sender != nullptr) {
    const auto send_to = [&](uint64_t goal) {
      step([goal](NetSender& sender) { return sender.advance(goal); });
    };
    NetWarmup warmup(bytes, now_ns());
    do {
      while (sum(&NetSender::ended) < warmup.goal() * links.size()) send_to(warmup.goal());
    } while (!warmup.is_enough(now_ns()));
    const uint64_t warmups = warmup.goal();  // of each
    RateClock clock(bytes, links.size(), length, progress);
    while (true) {
      const uint64_t ended = sum(&NetSender::ended);
      const uint64_t goal = warmups + clock.goal(ended - warmups * links.size());
      if (ended >= goal * links.size() && ended == sum(&NetSender::begun)) break;
      send_to(goal);
    }
    row = clock.row(bytes, sum(&NetSender::ended) - warmups * links.size());
    for (const NetLink& link : links) link.sender->finish();
    const auto is_over = [](const NetLink& link) { return link.sender->is_over(); };
    while (!std::all_of(links.begin(), links.end(), is_over))
      step([](NetSender& sender) { return sender.advance_end(); });
  }
  const auto is_over = [](const NetLink& link) {
    return link.receiver == nullptr || link.receiver->is_over();
  };
  while (!std::all_of(links.begin(), links.end(), is_over))
    receive() ? patience.moved() : patience.nothing_moved();
  return row;
}

std::vector<double> measure_latency(NetLink& link, NetControl& control, uint64_t bytes,
                                    const NetLength& length, bool begins,
                                    const NetProgress& progress) {
  start(link, bytes);
  NetSender& sender = *link.sender;
  NetReceiver& receiver = *link.receiver;
  NetPatience patience(control);
  const auto wait = [&](bool has_moved) {
    has_moved ? patience.moved() : patience.nothing_moved();
  };
  const auto send = [&] {
    for (const uint64_t goal = sender.begun() + 1; sender.begun() < goal;)
      wait(sender.advance(goal));
  };
  const auto is_answered = [&] { return receiver.received() >= sender.begun(); };

  // Receives are posted ahead, on both sides, before the first message.
  while (receiver.post()) {
  }
  control.meet();
  std::vector<double> samples;
  if (begins) {
    samples.reserve(std::min<uint64_t>(length.messages, kMostSamples));
    const auto pass = [&] {
      send();
      while (!is_answered()) wait(receiver.advance());
    };
    NetWarmup warmup(bytes, now_ns());
    do {
      while (sender.begun() < warmup.goal()) pass();
    } while (!warmup.is_enough(now_ns()));
    const uint64_t a_look = messages_a_look(bytes);
    const Nanoseconds start_time = now_ns();
    for (uint64_t i = 0;; ++i) {
      const Nanoseconds begin = now_ns();
      if (i % a_look == 0) {
        const double share =
            length.messages != 0
                ? static_cast<double>(i) / static_cast<double>(length.messages)
                : static_cast<double>(begin - start_time) / static_cast<double>(length.duration);
        progress(100 * share);
        if (length.messages == 0 && share >= 1) break;
      }
      if (length.messages != 0 && i == length.messages) break;
      pass();
      const double one_way_us = static_cast<double>(now_ns() - begin) * 0.5e-3;
      if (samples.size() < kMostSamples)
        samples.push_back(one_way_us);
      else
        samples[i % kMostSamples] = one_way_us;
    }
  } else {
    while (true) {
      const uint64_t before = receiver.received();
      while (receiver.received() == before && !receiver.is_ending()) wait(receiver.advance());
      if (receiver.is_ending()) break;
      send();
    }
  }
  sender.finish();
  while (!sender.is_over() || !receiver.is_over()) {
    const bool has_sent = sender.advance_end();
    wait((!receiver.is_over() && receiver.advance()) || has_sent);
  }
  return samples;
}

}  // namespace noria::perf
