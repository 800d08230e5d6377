#include "tests/support/seeded_traffic.hpp"

#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>
#include <memory>
#include <vector>

#include "tests/support/seeded_end.hpp"

namespace noria::test {
namespace {

constexpr size_t kDevices = 4;  // of kSeedDevices: each rail's two ends
constexpr Nanoseconds kStart = 1_s;
constexpr Nanoseconds kLimit = 1000_s;  // of virtual time; the longest wait that is drawn is 0.2 s
constexpr int kIdleRounds = 100;        // without a time to wait for: late queues toss coins

// Two ends and what became of their connection.
struct Pair {
  enum class State { live, ending, resting, over };
  std::unique_ptr<SeededEnd> ends[2];
  State state = State::over;
  uint64_t rest = 0;   // rounds until it is looked at again
  uint64_t lives = 3;  // left
};

class Run {
 public:
  Run(uint64_t seed, Judge& judge) : draw_(seed), judge_(judge), plan_(draw_plan(draw_)) {}
  void go(bool prints);

 private:
  void set_up();
  void act();
  bool poll_all();
  void turn();
  void take_events();
  void tend(Pair& pair, bool is_over);
  void rest(Pair& pair);
  bool drain_round();
  void drain();
  SeededEnd* end_of(uint32_t qpn);
  void connect(Pair& pair);
  void let_time_pass(Nanoseconds to) { judge_.now = std::max(judge_.now, to); }

  Draw draw_;
  Judge& judge_;
  const SeedPlan plan_;
  std::vector<std::unique_ptr<Hca>> hcas_;
  std::vector<Owned<ibv_cq>> cqs_;
  std::vector<Pair> pairs_;
  std::array<ibv_event_type, kDevices> told_{};  // the last event of each device
  Nanoseconds next_ = 0;                         // when something happens without us
};

void Run::go(bool prints) {
  set_world(plan_);
  if (prints)
    std::printf("place %s, %s Gbit/s, %s us, %d pairs a rail, faults '%s'\n", plan_.place.c_str(),
                plan_.rate_gbit.c_str(), plan_.latency_us.c_str(),
                static_cast<int>(plan_.pairs_per_rail), plan_.faults.c_str());
  judge_.now = kStart;
  turn();
  set_up();
  for (uint64_t round = 0; round < plan_.rounds && judge_.is_content(); ++round) {
    act();
    poll_all();
    turn();
    take_events();
    for (Pair& pair : pairs_) tend(pair, false);
    if (draw_.one_in(3) && next_ < kLimit) let_time_pass(next_);
    if (draw_.one_in(8)) let_time_pass(judge_.now + static_cast<Nanoseconds>(draw_.below(100000)));
  }
  drain();
}

void Run::set_up() {
  for (size_t i = 0; i < kDevices; ++i) {
    hcas_.push_back(std::make_unique<Hca>(static_cast<int>(i)));
    ibv_context* context = hcas_.back()->context();
    EXPECT_EQ(::fcntl(context->async_fd, F_SETFL, O_NONBLOCK), 0);
    if (plan_.shares_queues) cqs_.push_back(hcas_.back()->make_cq());
  }
  uint64_t number = 0;
  for (uint64_t i = 0; i < 2 * plan_.pairs_per_rail; ++i) {
    Pair pair;
    for (size_t side = 0; side < 2; ++side) {
      const size_t device = i % 2 * 2 + side;
      if (!plan_.shares_queues) cqs_.push_back(hcas_[device]->make_cq());
      ibv_cq* cq = plan_.shares_queues ? cqs_[device].get() : cqs_.back().get();
      pair.ends[side] = std::make_unique<SeededEnd>(*hcas_[device], cq, plan_, ++number, judge_);
    }
    pair.ends[0]->meet(*pair.ends[1]);
    pair.ends[1]->meet(*pair.ends[0]);
    pairs_.push_back(std::move(pair));
  }
  for (Pair& pair : pairs_) connect(pair);
}

void Run::connect(Pair& pair) {
  const bool is_first = pair.ends[0]->connect();
  const bool is_second = pair.ends[1]->connect();
  pair.state = is_first && is_second ? Pair::State::live : Pair::State::over;
}

// Posts what the draw says on connections that live.
void Run::act() {
  for (uint64_t count = draw_.below(4); count > 0; --count) {
    Pair& pair = pairs_[draw_.below(pairs_.size())];
    SeededEnd& end = *pair.ends[draw_.below(2)];
    const bool sends = draw_.below(5) < 3;
    if (pair.state != Pair::State::live) continue;
    if (sends)
      end.post_some(draw_);
    else
      end.post_receives(draw_.between(1, 8));
  }
}

SeededEnd* Run::end_of(uint32_t qpn) {
  for (Pair& pair : pairs_)
    for (auto& end : pair.ends)
      if (end->qpn() == qpn) return end.get();
  return nullptr;
}

// Whether anything came.
bool Run::poll_all() {
  bool has_come = false;
  const size_t first = draw_.below(cqs_.size());
  for (size_t i = 0; i < cqs_.size(); ++i) {
    if (draw_.one_in(4)) continue;
    std::array<ibv_wc, 8> wcs{};
    const int count = ibv_poll_cq(cqs_[(first + i) % cqs_.size()].get(),
                                  static_cast<int>(draw_.between(1, wcs.size())), wcs.data());
    judge_.expect(count >= 0, "a completion queue cannot be polled");
    for (int k = 0; k < count; ++k) {
      SeededEnd* end = end_of(wcs[static_cast<size_t>(k)].qp_num);
      judge_.expect(end != nullptr, "a completion of no queue pair");
      if (end != nullptr) end->on_completion(wcs[static_cast<size_t>(k)]);
      has_come = true;
    }
  }
  return has_come;
}

void Run::turn() {
  next_ = verbs().noria_turn(judge_.now);
  judge_.see("turn", static_cast<uint64_t>(next_));
}

void Run::take_events() {
  for (size_t i = 0; i < kDevices; ++i) {
    ibv_async_event event{};
    while (verbs().get_async_event(hcas_[i]->context(), &event) == 0) {
      verbs().ack_async_event(&event);
      ++judge_.events;
      judge_.see("event", i, static_cast<uint64_t>(event.event_type));
      const ibv_event_type before = std::exchange(told_[i], event.event_type);
      if (event.event_type == IBV_EVENT_QP_ACCESS_ERR) {
        told_[i] = before;
        judge_.expect(plan_.has_bad_keys, "a peer is said to have broken a rule");
        continue;
      }
      judge_.expect(before != IBV_EVENT_DEVICE_FATAL, "a device that is lost has more to tell", i);
      judge_.expect((event.event_type == IBV_EVENT_PORT_ACTIVE) == (before == IBV_EVENT_PORT_ERR) ||
                        event.event_type == IBV_EVENT_DEVICE_FATAL,
                    "a port comes up that was not down, or goes down twice", i);
    }
  }
}

// Looks after a connection that failed: both ends to error, all that is left, a rest, a new life.
void Run::tend(Pair& pair, bool is_over) {
  SeededEnd& a = *pair.ends[0];
  SeededEnd& b = *pair.ends[1];
  switch (pair.state) {
    case Pair::State::live:
      if (!a.has_failed() && !b.has_failed()) return;
      pair.state = Pair::State::ending;
      pair.rest = 1;
      [[fallthrough]];
    case Pair::State::ending:
      if (pair.rest == 1 && a.end_life() && b.end_life()) pair.rest = 0;
      if (pair.rest == 0 && a.ask_for_last() && b.ask_for_last() && a.has_flushed() &&
          b.has_flushed())
        rest(pair);
      return;
    case Pair::State::resting:
      if (pair.rest > 0) return void(--pair.rest);
      a.expect_remembered();
      b.expect_remembered();
      if (is_over || pair.lives == 0)
        pair.state = Pair::State::over;
      else
        connect(pair);
      return;
    case Pair::State::over: return;
  }
}

void Run::rest(Pair& pair) {
  for (auto& end : pair.ends) end->remember();
  pair.state = Pair::State::resting;
  pair.rest = draw_.below(12);
  --pair.lives;
}

// Nothing new is sent; whether everything is done.
bool Run::drain_round() {
  bool is_done = true;
  for (Pair& pair : pairs_) {
    tend(pair, true);
    if (pair.state == Pair::State::over) continue;
    for (auto& end : pair.ends) {
      if (pair.state != Pair::State::live) continue;
      end->post_receives(4);
      end->ask_for_last();
    }
    is_done = is_done && pair.state == Pair::State::live && pair.ends[0]->has_settled() &&
              pair.ends[1]->has_settled() && !pair.ends[0]->is_awaiting() &&
              !pair.ends[1]->is_awaiting();
  }
  return is_done;
}

void Run::drain() {
  int idle = 0;
  while (judge_.is_content() && !drain_round()) {
    const bool has_come = poll_all();
    turn();
    take_events();
    idle = has_come || next_ < kLimit ? 0 : idle + 1;
    judge_.expect(idle < kIdleRounds, "requests wait, and nothing will ever move");
    judge_.expect(judge_.now < kLimit, "requests wait beyond every limit");
    // A late queue may have lost its toss: the same time once more, now and then.
    if (!has_come && next_ < kLimit && draw_.below(4) != 0) let_time_pass(next_);
  }
}

}  // namespace

SeedReport run_seed(uint64_t seed, bool prints) {
  Judge judge(prints);
  {
    Run run(seed, judge);
    run.go(prints);
  }
  SeedReport report;
  report.trace = judge.trace();
  report.completions = judge.completions;
  report.failures = judge.failures;
  report.events = judge.events;
  std::snprintf(report.wrong, sizeof report.wrong, "%s", judge.wrong().c_str());
  return report;
}

}  // namespace noria::test
