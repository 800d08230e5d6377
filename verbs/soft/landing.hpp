// The far side of a request: where its bytes lie or land at the target.
//
// Threads: under Qp::exec and a mark.
#pragma once

#include "verbs/soft/copy_path.hpp"
#include "verbs/soft/gather.hpp"
#include "verbs/soft/placement.hpp"
#include "verbs/soft/queue_pair.hpp"

namespace noria::soft {

struct Landing {
  Range at[kMaxSge];  // left as they are beyond `count`: clearing them costs more than a small copy
  uint64_t bytes[kMaxSge];
  size_t count = 0;
  uint64_t room = 0;
  bool is_valid = true;    // every key is good
  bool is_direct = true;   // loads and stores reach all of it
  bool is_posted = false;  // of some of it the target keeps writes back: by its hand alone

  void add(const Peer& peer, const std::optional<Range>& range, uint64_t length);
};

// Of a WRITE or READ: what the request names.
Landing find_remote_range(const Qp& qp, const Wqe& wqe);
// Of a SEND: the receive that the next message uses up.
Landing find_receive(const Qp& qp);

// The part of `landing` at the start (or, `from_end`, the end) of `*cut` that is one range; `*cut`
// shrinks to it.
Range one_range(const Landing& landing, Cut* cut, bool from_end);

// Moves the part `cut` of a request between `local` and the landing.
CopyResult transfer(const Peer& peer, Direction direction, const Landing& landing,
                    const Pieces& local, Cut cut);

}  // namespace noria::soft
