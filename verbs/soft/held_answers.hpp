// Held answers: what READs and atomics of a device that places late have brought from their target
// and what has not landed in our memory yet.
//
// They fetch in the order of their posts, and complete in it; among themselves they land in any,
// as on a device with several of them under way. No more of them than max_rd_atomic, and a request
// behind a fence waits until all have landed. Everything else goes on: it may carry what was there
// before. An answer is held until nothing else can move. Longer ones than 64 KiB land as they come.
//
// Threads: under Qp::exec.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <vector>

#include "verbs/soft/placement.hpp"

namespace noria::soft {

struct Qp;
struct Wqe;

struct HeldAnswer {
  uint64_t number;  // of its request
  std::vector<uint8_t> bytes;
  bool has_landed = false;
  ibv_wc_status status = IBV_WC_WR_FLUSH_ERR;  // with which it completes; as it landed
};

struct HeldAnswers {
  std::vector<HeldAnswer> all;  // in the order of their posts
  Coin coin{1};
};

// Before the first step of the next request. False: it waits for others to land.
bool begin_late(Qp& qp, Wqe& wqe);
// Where the bytes of the request that is executed go.
uint8_t* newest_bytes(const Qp& qp);
// Lands one, whichever, of those that were fetched.
void land_one(Qp& qp);
void land_all(Qp& qp);
// Whether request `number` may complete, for all that is held.
bool has_landed(const Qp& qp, uint64_t number);
// Forgets the answer of request `number`. With which status it completes: SUCCESS where none is
// held, a flush where it has not landed.
ibv_wc_status release_answer(Qp& qp, uint64_t number);

}  // namespace noria::soft
