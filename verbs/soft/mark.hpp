// Mark: what an initiator is about to touch, named for as long as the object lives. Whoever revokes
// it afterwards waits (fence.hpp); whoever revoked it before is seen by the checks that follow.
//
// Threads: under Qp::exec.
#pragma once

#include "verbs/soft/queue_pair.hpp"

namespace noria::soft {

class Mark {
 public:
  Mark(Qp& qp, uint32_t key) : word_(qp.shared.mark) {
    // seq_cst, as are the looks at state and key that follow: the mark is visible before they are
    // made; pairs with the fence between revoking and reading marks.
    word_.exchange(make_mark(qp.attr.dest_qp_num, key), std::memory_order_seq_cst);
  }
  ~Mark() { word_.store(0, std::memory_order_release); }  // our copies come before
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;

 private:
  Word64& word_;
};

}  // namespace noria::soft
