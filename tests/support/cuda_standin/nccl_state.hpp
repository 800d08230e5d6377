// What NCCL's entry points share: groups of a thread, and how a communicator is asked.
//
// Threads: with a Call in hand; NcclThread is each thread's own.
#pragma once

#include <atomic>
#include <vector>

#include "tests/support/cuda_standin/call.hpp"
#include "tests/support/cuda_standin/communicator.hpp"

namespace noria::standin {

inline constexpr int kNcclVersion = 22105;

struct GroupedPart {
  CommunicatorRef communicator;
  Stream* stream;
  CollectivePart part;
};

struct NcclThread {
  int group_depth = 0;
  std::vector<GroupedPart> parts;
  std::vector<CommunicatorRef> initialising;
};
NcclThread& nccl_thread();

std::atomic<int>& nccl_version();

// Null, and a violation: no such.
CommunicatorRef find_communicator(const Call& call, const char* name, void* handle);
int wait_formed(Call* call, const CommunicatorRef& communicator);
// As ncclCommGetAsyncError() tells it. One that does not block goes on by this.
int state_of(Communicator* communicator);

}  // namespace noria::standin
