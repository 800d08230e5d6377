// The receives of our own queue pair, where our own hand places a message.
//
// Every part looks the keys up anew, so that a region that was deregistered is not touched.
//
// Threads: under the receive CQ's list lock.
#pragma once

#include "verbs/soft/queue_pair.hpp"

namespace noria::soft {

struct OwnReceive {
  uint64_t room;  // for a message so long
  bool is_good;   // every key is
};
OwnReceive find_own_receive(const Qp& qp, uint64_t number);

// Puts `bytes` from `offset` on of a message into receive `number`. False if a key is bad or there
// is no such room.
bool place_in_receive(const Qp& qp, uint64_t number, uint64_t offset, const uint8_t* from,
                      uint64_t bytes);

}  // namespace noria::soft
