// The stand-in as NCCL between processes: sums, hosts, and what becomes of a rank that dies.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "base/fd.hpp"
#include "tests/support/cpu_time.hpp"
#include "tests/support/crew.hpp"
#include "tests/support/cuda_standin/communicator.hpp"
#include "tests/support/cuda_standin/nccl.hpp"
#include "tests/support/cuda_standin/on_device.hpp"
#include "tests/support/no_descriptors.hpp"

// The thread sanitizer lets no child of a process with threads make threads, unless it is told so:
// the child here makes one, and takes over none of what its parent's were at.
extern "C" const char* __tsan_default_options();  // NOLINT(bugprone-reserved-identifier)
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }

namespace noria::standin {
namespace {

using test::Post;

constexpr int kFloat32 = 7;
constexpr int kSum = 0;

void* place(uint64_t address) { return reinterpret_cast<void*>(address); }

// The first process makes the id, and the test hands it to the others.
UniqueId meet(Post& post) {
  if (post.side != 0) return post.parent.recv<UniqueId>();
  UniqueId id;
  EXPECT_EQ(ncclGetUniqueId(&id), kNcclSuccess);
  post.parent.send(id);
  return id;
}

// One process a side, each of which meets the others first.
class Processes : public test::Crew {
 public:
  Processes(size_t count, const test::Body& body)
      : Crew(std::vector<test::Body>(count, body)), count_(count) {
    const auto id = wire(0).recv<UniqueId>();
    for (size_t other = 1; other < count; ++other) wire(other).send(id);
  }
  void meet_all() {
    for (size_t side = 0; side < count_; ++side) wire(side).recv<uint8_t>();
    for (size_t side = 0; side < count_; ++side) wire(side).send(uint8_t{1});
  }
  void expect_good_end(size_t side) { EXPECT_EQ(wait(side).exit_code, 0) << "process " << side; }
  void expect_good_ends() {
    for (size_t side = 0; side < count_; ++side) expect_good_end(side);
  }

 private:
  size_t count_;
};

// A rank on its device: `body` is given its communicator and a stream.
struct Rank {
  Rank(const UniqueId& id, int ranks, int number) : rank(number), device(number) {
    EXPECT_EQ(ncclCommInitRank(&comm, ranks, id, number), kNcclSuccess) << ncclGetLastError(comm);
    stream = device.stream();
    at = device.memory<float>(count);
  }
  // Of `values` of this rank's.
  void all_reduce(float value) {
    device.write(stream, at, std::vector<float>(count, value));
    ASSERT_EQ(ncclAllReduce(place(at), place(at), count, kFloat32, kSum, comm, stream),
              kNcclSuccess);
  }
  std::vector<float> result() { return device.read<float>(stream, at, count); }

  static constexpr size_t count = 300'000;  // more than a socket takes at once
  const int rank;
  OnDevice device;
  void* comm = nullptr;
  void* stream = nullptr;
  uint64_t at = 0;
};

TEST(Nccl_between_processes, All_kinds_are_computed_in_each_of_them) {
  Processes crew(2, [](Post& post) {
    reset(static_cast<uint64_t>(post.side) + 1);
    Rank own(meet(post), 2, post.side);
    for (float step = 0; step < 4; ++step) {
      own.all_reduce(step + static_cast<float>(post.side));
      EXPECT_EQ(own.result(), std::vector<float>(Rank::count, 2 * step + 1));
    }
    const uint64_t both = own.device.memory<float>(4);
    own.device.write<float>(own.stream, both, {1, 2, 3, 4});
    ASSERT_EQ(
        ncclReduceScatter(place(both), place(own.at), 2, kFloat32, kSum, own.comm, own.stream),
        kNcclSuccess);
    ASSERT_EQ(ncclAllGather(place(own.at), place(both), 2, kFloat32, own.comm, own.stream),
              kNcclSuccess);
    EXPECT_EQ(own.device.read<float>(own.stream, both, 4), (std::vector<float>{2, 4, 6, 8}));
    own.device.write<float>(own.stream, both, {static_cast<float>(post.side)});
    ASSERT_EQ(ncclBroadcast(place(both), place(both), 1, kFloat32, 1, own.comm, own.stream),
              kNcclSuccess);
    EXPECT_EQ(own.device.read<float>(own.stream, both, 1), std::vector<float>{1});
    ASSERT_EQ(ncclCommDestroy(own.comm), kNcclSuccess);
    EXPECT_EQ(violations(), std::vector<std::string>());
  });
  crew.expect_good_ends();
}

TEST(Nccl_between_processes, Ranks_may_be_threads_of_either) {
  Processes crew(2, [](Post& post) {
    const UniqueId id = meet(post);
    const auto rank = [&](int number) {
      Rank own(id, 4, number);
      own.all_reduce(static_cast<float>(number));
      EXPECT_EQ(own.result(), std::vector<float>(Rank::count, 6));
      ASSERT_EQ(ncclCommDestroy(own.comm), kNcclSuccess);
    };
    std::thread second(rank, post.side + 2);
    rank(post.side);
    second.join();
  });
  crew.expect_good_ends();
}

TEST(Nccl_between_processes, Two_ranks_share_a_device_only_as_two_hosts) {
  for (const bool are_two : {false, true}) {
    Processes crew(2, [are_two](Post& post) {
      setenv("NCCL_HOSTID", are_two && post.side == 1 ? "b" : "a", 1);
      const UniqueId id = meet(post);
      const OnDevice device(0);
      void* comm = nullptr;
      // Expect: as NCCL, an invalid usage that says why.
      EXPECT_EQ(ncclCommInitRank(&comm, 2, id, post.side),
                are_two ? kNcclSuccess : kNcclInvalidUsage);
      EXPECT_EQ(std::string(ncclGetLastError(comm)).find("Duplicate GPU") == 0, !are_two);
      ASSERT_EQ(ncclCommAbort(comm), kNcclSuccess);
    });
    crew.expect_good_ends();
  }
}

TEST(Nccl_between_processes, What_does_not_fit_together_is_an_error_in_both) {
  Processes crew(2, [](Post& post) {
    Rank own(meet(post), 2, post.side);
    ASSERT_EQ(ncclAllReduce(place(own.at), place(own.at), post.side == 0 ? 4 : 3, kFloat32, kSum,
                            own.comm, own.stream),
              kNcclSuccess);
    int error = 0;
    while (error == kNcclSuccess) {
      ASSERT_EQ(cuStreamQuery(own.stream), kNotReady);
      ASSERT_EQ(ncclCommGetAsyncError(own.comm, &error), kNcclSuccess);
    }
    EXPECT_EQ(error, kNcclInternalError);
    post.parent.meet();  // else its end is the other's error
    ASSERT_EQ(ncclCommAbort(own.comm), kNcclSuccess);
  });
  crew.meet_all();
  crew.expect_good_ends();
}

TEST(Nccl_between_processes, A_rank_that_dies_is_an_error_on_all_others) {
  for (const size_t victim : {size_t{0}, size_t{2}}) {
    Processes crew(3, [victim](Post& post) {
      Rank own(meet(post), 3, post.side);
      own.all_reduce(1);
      EXPECT_EQ(own.result(), std::vector<float>(Rank::count, 3));
      post.parent.meet();
      // Arrange: the victim never comes to the second one.
      if (static_cast<size_t>(post.side) == victim) post.parent.meet();
      own.all_reduce(1);
      post.parent.send(uint8_t{1});
      int error = 0;
      while (error == kNcclSuccess) {
        ASSERT_EQ(cuStreamQuery(own.stream), kNotReady);
        ASSERT_EQ(ncclCommGetAsyncError(own.comm, &error), kNcclSuccess);
      }
      EXPECT_EQ(error, kNcclRemoteError);
      const std::string text = ncclGetLastError(own.comm);
      EXPECT_EQ(text.find("rank " + std::to_string(victim) + "'s process ended"), 0U) << text;
      ASSERT_EQ(ncclCommAbort(own.comm), kNcclSuccess);
      ASSERT_EQ(cuStreamSynchronize(own.stream), kSuccess);
    });
    crew.meet_all();
    for (size_t side = 0; side < 3; ++side) crew.wire(side).recv<uint8_t>();
    crew.kill(victim, SIGKILL);
    for (size_t process = 0; process < 3; ++process)
      if (process != victim) crew.expect_good_end(process);
  }
}

TEST(Nccl_between_processes, Who_leaves_first_is_not_lost) {
  Processes crew(3, [](Post& post) {
    Rank own(meet(post), 3, post.side);
    own.all_reduce(1);
    EXPECT_EQ(own.result(), std::vector<float>(Rank::count, 3));
    if (post.side != 0) post.parent.meet();  // behind the maker's end
    int error = -1;
    EXPECT_EQ(ncclCommGetAsyncError(own.comm, &error), kNcclSuccess);
    EXPECT_EQ(error, kNcclSuccess) << ncclGetLastError(own.comm);
    ASSERT_EQ(ncclCommDestroy(own.comm), kNcclSuccess);
  });
  crew.expect_good_end(0);
  for (const size_t process : {1U, 2U}) {
    crew.wire(process).meet();
    crew.expect_good_end(process);
  }
}

TEST(Nccl_between_processes, An_id_whose_maker_is_gone_is_refused) {
  Processes crew(2, [](Post& post) {
    const UniqueId id = meet(post);
    if (post.side == 0) return;
    post.parent.meet();
    const OnDevice device(1);
    void* comm = nullptr;
    EXPECT_EQ(ncclCommInitRank(&comm, 2, id, 1), kNcclSystemError);
  });
  crew.expect_good_end(0);
  crew.wire(1).meet();
  crew.expect_good_end(1);
}

// Who calls where an id's maker listens, without being a process of NCCL's.
class Stranger {
 public:
  explicit Stranger(const UniqueId& id) {
    std::memcpy(&world_, id.bytes + kWorldAt, sizeof world_);
    const timeval patience{.tv_sec = 20, .tv_usec = 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  }
  void call() const {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    const int length = std::snprintf(name.sun_path + 1, sizeof name.sun_path - 1,
                                     "noria-standin-%016lx", world_.address);
    ASSERT_EQ(::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&name),
                        static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 +
                                               static_cast<size_t>(length))),
              0);
  }
  // As rank 1 of 2, of that id or of one made after it.
  Word hello(uint64_t later = 0) const {
    return {
        .kind = WordKind::hello, .rank = 1, .ranks = 2, .world = world_.number + later, .part = {}};
  }
  void say(const Word& word) const {
    ASSERT_EQ(::send(socket_.get(), &word, sizeof word, MSG_NOSIGNAL), ssize_t{sizeof word});
  }
  bool is_hung_up_on() const {
    char byte = 0;
    return ::recv(socket_.get(), &byte, sizeof byte, 0) <= 0 && errno != EAGAIN;
  }

 private:
  static constexpr size_t kWorldAt = 16;  // behind the mark
  WorldId world_;
  const Fd socket_{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
};

TEST(Nccl_between_processes, Who_says_what_none_of_them_would_say_is_hung_up_on) {
  Processes crew(1, [](Post& post) {
    const UniqueId id = meet(post);
    const auto is_refused = [&](const auto& change) {
      const Stranger caller(id);
      caller.call();
      Word word = caller.hello();
      change(&word);
      caller.say(word);
      errno = 0;
      return caller.is_hung_up_on();
    };
    // Expect: at the first word, whatever it announces.
    EXPECT_TRUE(is_refused([](Word* word) { word->mark = 0; }));
    EXPECT_TRUE(is_refused([](Word* word) { word->bytes = UINT64_MAX; }));
    EXPECT_TRUE(is_refused([](Word* word) { word->ranks = UINT32_MAX; }));
    EXPECT_TRUE(is_refused([](Word* word) { word->rank = 2; }));
    EXPECT_TRUE(is_refused([](Word* word) { word->kind = static_cast<WordKind>(77); }));
    EXPECT_TRUE(is_refused([](Word* word) { word->kind = WordKind::arrival; }));
  });
  crew.expect_good_ends();
}

TEST(Nccl_between_processes, A_part_whose_input_has_another_length_is_not_taken) {
  Processes crew(1, [](Post& post) {
    const UniqueId id = meet(post);
    uint64_t later = 0;
    for (const size_t count : {size_t{0}, size_t{1000}, SIZE_MAX}) {
      const Stranger caller(id);
      caller.call();
      caller.say(caller.hello(later++));  // in one world the rank is taken now
      caller.say({.kind = WordKind::arrival,
                  .rank = 1,
                  .is_allowed = true,
                  .part = {.count = count, .dtype = count == 0 ? 77 : kFloat32}});
      errno = 0;
      EXPECT_TRUE(caller.is_hung_up_on()) << count;
    }
  });
  crew.expect_good_ends();
}

TEST(Nccl_between_processes, A_caller_for_whom_there_is_no_descriptor_waits_and_costs_no_core) {
  Processes crew(1, [](Post& post) {
    const UniqueId id = meet(post);
    const Stranger caller(id);
    {
      const test::NoDescriptors none;
      caller.call();
      const double before = test::cpu_seconds();
      ::poll(nullptr, 0, 500);
      // Expect: asleep. A thread that spins uses all of it.
      EXPECT_LT(test::cpu_seconds() - before, 0.2);
    }
    // Expect: heard once there is one.
    Word word;
    word.mark = 0;
    caller.say(word);
    EXPECT_TRUE(caller.is_hung_up_on());
  });
  crew.expect_good_ends();
}

TEST(Nccl_between_processes, A_child_of_fork_joins_by_its_parents_id_and_makes_its_own) {
  Processes crew(1, [](Post& post) {
    const UniqueId id = meet(post);
    const auto take_part = [&](int number) {
      Rank own(id, 2, number);
      own.all_reduce(static_cast<float>(number + 1));
      EXPECT_EQ(own.result(), std::vector<float>(Rank::count, 3));
      EXPECT_EQ(ncclCommDestroy(own.comm), kNcclSuccess);
    };
    const pid_t child = ::fork();
    if (child == 0) {
      UniqueId other;
      EXPECT_EQ(ncclGetUniqueId(&other), kNcclSuccess);
      EXPECT_NE(std::memcmp(&other, &id, sizeof id), 0);
      take_part(1);
      _exit(testing::Test::HasFailure() ? 1 : 0);
    }
    take_part(0);
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  });
  crew.expect_good_ends();
}

}  // namespace
}  // namespace noria::standin
