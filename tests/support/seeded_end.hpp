// One end of a connection of seeded traffic: posts what is drawn, remembers what must come of it,
// and holds every completion against that.
//
// Each WRITE and READ has bytes and a place of its own, so that whatever lands where it should not
// is seen.
//
// Threads: one.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/seed_plan.hpp"
#include "tests/support/verbs_fixture.hpp"

namespace noria::test {

// Sees the run: its trace, and the first thing that did not hold.
class Judge {
 public:
  explicit Judge(bool prints) : prints_(prints) {}

  void see(const char* what, uint64_t a, uint64_t b = 0, uint64_t c = 0);
  void expect(bool holds, const char* what, uint64_t end = 0, uint64_t id = 0);
  bool is_content() const { return wrong_.empty(); }
  const std::string& wrong() const { return wrong_; }
  uint64_t trace() const { return trace_; }

  Nanoseconds now = 0;
  uint64_t completions = 0, failures = 0, events = 0;

 private:
  bool prints_;
  uint64_t trace_ = 0xcbf29ce484222325;
  std::string wrong_;
};

class SeededEnd {
 public:
  SeededEnd(const Hca& hca, ibv_cq* cq, const SeedPlan& plan, uint64_t number, Judge& judge);

  // Before connect(): who is at the other end. It outlives us.
  void meet(SeededEnd& peer) { peer_ = &peer; }
  // From any state; a new life. False if the device refuses, as one that is lost does.
  bool connect();
  // Goes to error and asks for all that is left; false if it must be tried again.
  bool end_life();
  // Asks for a completion that settles the unsignalled ones before it.
  bool ask_for_last();

  void post_some(Draw& draw);
  void post_receives(uint64_t most);
  void on_completion(const ibv_wc& wc);

  uint64_t number() const { return number_; }
  uint32_t qpn() const { return qp_->qp_num; }
  bool has_failed() const { return has_failed_ || has_flushed_receives_; }
  // Nothing is left that could complete; nothing that its peer was told of is still to come.
  bool has_settled() const;
  bool has_flushed() const { return has_settled() && receives_.empty(); }
  bool is_awaiting() const { return !coming_.empty(); }

  // After the fence: remembers what memory holds, and later that it still does.
  void remember();
  void expect_remembered();

 private:
  struct Sent {
    uint64_t id;
    ibv_wr_opcode opcode;
    uint32_t bytes;
    uint64_t local, remote;
    bool is_signalled;
    uint64_t add;
  };
  struct Coming {
    uint64_t id;
    uint32_t bytes;
    uint64_t at;
    bool is_write, is_acknowledged;
  };
  struct Receive {
    uint64_t id, at;
  };
  bool try_modify(int (*modify)(SeededEnd&));
  void post_one(Draw& draw);
  Sent draw_request(Draw& draw);
  void settle(const Sent& request);
  void on_sent(const ibv_wc& wc);
  void on_received(const ibv_wc& wc);
  void take_message(const ibv_wc& wc, const Receive& receive);
  uint64_t hash_memory() const;
  uint64_t& counter() const { return *reinterpret_cast<uint64_t*>(counter_->data()); }

  const SeedPlan& plan_;
  const uint64_t number_;
  Judge& judge_;
  Owned<ibv_qp> qp_;
  // What we send, what the peer writes, what it may read, where our reads and messages land, and
  // the word that the peer adds to.
  std::unique_ptr<Buffer> out_, in_, library_, landing_, messages_, counter_;
  Address address_{};
  SeededEnd* peer_ = nullptr;

  std::deque<Sent> sent_;
  std::deque<Coming> coming_;
  std::deque<Receive> receives_;
  uint64_t next_id_ = 1;
  uint64_t out_used_ = 0, in_used_ = 0, landing_used_ = 0;  // in_used_: of the peer's
  uint64_t unsignalled_ = 0;
  uint64_t added_ = 0;  // to the peer's counter
  std::vector<uint64_t> may_have_added_;
  uint64_t remembered_ = 0;
  bool has_failed_ = false, has_flushed_receives_ = false, has_asked_ = false;
  bool is_lost_ = false;  // its device is
};

}  // namespace noria::test
