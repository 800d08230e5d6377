// Completion queues, with a channel to sleep on where somebody will.
//
// poll() is a call through the context, no more. arm() asks for one event at the next completion;
// completions that are there already give none, so poll once more after arming. Events taken from
// the channel must be acknowledged before the queue is destroyed: CompletionQueue keeps that count.
// A channel costs a descriptor; without one arm() answers Code::unsupported, and fd() is -1.
//
// Threads: poll() one at a time; the rest the owner.
#pragma once

#include <fcntl.h>

#include "base/check.hpp"
#include "verbs/handle.hpp"

namespace noria::verbs {

enum class Waiting : uint8_t { by_polling, by_sleeping };

class CompletionQueue {
 public:
  static Result<CompletionQueue> make(const Api& api, ibv_context* context, int entries,
                                      Waiting waiting) {
    CompletionQueue made(api);
    if (waiting == Waiting::by_sleeping) {
      NORIA_TRY_ASSIGN(made.channel_,
                       (create<Channel, &Symbols::create_comp_channel>(api, context, context)));
      // Reading an event must never block: several wake-ups may share one.
      const int flags = fcntl(made.channel_->fd, F_GETFL);
      if (flags < 0 || fcntl(made.channel_->fd, F_SETFL, flags | O_NONBLOCK) < 0)
        return Status(Code::internal);
    }
    NORIA_TRY_ASSIGN(made.cq_, (create<Cq, &Symbols::create_cq>(api, context, context, entries,
                                                                static_cast<void*>(nullptr),
                                                                made.channel_.get(), 0)));
    return made;
  }

  // At most `capacity` completions; negative when the queue itself failed.
  NORIA_HOT int poll(ibv_wc* out, int capacity) { return ibv_poll_cq(cq_.get(), capacity, out); }

  Status arm() {
    if (channel_ == nullptr) return Status(Code::unsupported);
    const int error = ibv_req_notify_cq(cq_.get(), 0);
    return error == 0 ? Status() : Status::from_errno(code_of_errno(error), error);
  }

  // Takes and acknowledges every event that waits.
  void drain_events() {
    unsigned taken = 0;
    while (true) {
      const auto cq = api_->next_cq_event(channel_.get());
      if (!cq.is_ok() || *cq == nullptr) break;
      ++taken;
    }
    if (taken > 0) api_->call<&Symbols::ack_cq_events>(nullptr, cq_.get(), taken);
  }

  ibv_cq* get() const { return cq_.get(); }
  int fd() const { return channel_ != nullptr ? channel_->fd : -1; }

 private:
  explicit CompletionQueue(const Api& api) : api_(&api) {}

  const Api* api_;
  Channel channel_;
  Cq cq_;
};

}  // namespace noria::verbs
