// The software HCA in a process that has run out of descriptors, of addresses, or of threads.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/cpu_time.hpp"
#include "tests/support/crew.hpp"
#include "tests/support/no_descriptors.hpp"
#include "tests/support/no_threads.hpp"
#include "tests/support/refused_accepts.hpp"
#include "tests/support/verbs_fixture.hpp"

namespace noria::test {
namespace {

std::vector<int> take_all_descriptors() {
  const rlimit limit{256, 256};
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  std::vector<int> taken;
  for (int fd = ::dup(0); fd >= 0; fd = ::dup(0)) taken.push_back(fd);
  return taken;
}

// What the process writes to standard error while it lives.
class Told {
 public:
  Told() { testing::internal::CaptureStderr(); }
  ~Told() {
    const std::string text = testing::internal::GetCapturedStderr();
    // Expect: the lack, by its name, once for however many rounds it lasts.
    EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 1) << text;
    EXPECT_TRUE(text.empty() || text.find("ulimit -n") != std::string::npos) << text;
  }
  Told(const Told&) = delete;
  Told& operator=(const Told&) = delete;
};

// A call needs a descriptor for its socket and then some for what comes over it: here there is one
// for the socket alone.
class OneDescriptor {
 public:
  OneDescriptor() {
    ::close(taken_.back());
    taken_.pop_back();
  }
  ~OneDescriptor() {
    for (const int fd : taken_) ::close(fd);
  }
  OneDescriptor(const OneDescriptor&) = delete;
  OneDescriptor& operator=(const OneDescriptor&) = delete;

 private:
  std::vector<int> taken_ = take_all_descriptors();
};

// No addresses for another process's segment, whose 200 MB are room for 1023 peers.
class FewAddresses {
 public:
  FewAddresses() {
    EXPECT_EQ(::getrlimit(RLIMIT_AS, &before_), 0);
    rlim_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    rlimit limit = before_;
    limit.rlim_cur = pages * static_cast<rlim_t>(::getpagesize()) + (rlim_t{64} << 20);
    EXPECT_EQ(::setrlimit(RLIMIT_AS, &limit), 0);
  }
  ~FewAddresses() { EXPECT_EQ(::setrlimit(RLIMIT_AS, &before_), 0); }
  FewAddresses(const FewAddresses&) = delete;
  FewAddresses& operator=(const FewAddresses&) = delete;

 private:
  rlimit before_{};
};

struct Introduction {
  Address address;
  Region region;
};

struct End {
  Hca hca;
  Owned<ibv_cq> cq = hca.make_cq();
  Owned<ibv_qp> qp = hca.make_qp(cq.get());
  std::unique_ptr<Buffer> buffer = hca.make_buffer(4096);

  Introduction introduction() const {
    return {hca.address_of(qp.get()), {buffer->address(), buffer->rkey()}};
  }
};

TEST(SoftDescriptors, A_caller_that_finds_none_is_let_in_later_and_costs_no_core_until_then) {
  run_pair(
      [](Post& p) {
        End end;
        const auto caller = p.peer.exchange(end.introduction());
        std::optional<Told> told(std::in_place);
        const std::vector<int> taken = take_all_descriptors();
        p.peer.meet();
        p.peer.meet();  // it has called
        const double before = cpu_seconds();
        ::poll(nullptr, 0, 1000);
        // Expect: asleep. A thread that spins uses the whole second.
        EXPECT_LT(cpu_seconds() - before, 0.4);
        for (const int fd : taken) ::close(fd);
        told.reset();
        end.hca.connect(end.qp.get(), caller.address);
        p.peer.meet();
        p.peer.meet();  // it has written
        EXPECT_EQ(first_wrong(end.buffer->data(), 4096, 1), 4096U);
      },
      [](Post& p) {
        End end;
        const auto called = p.peer.exchange(end.introduction());
        p.peer.meet();
        end.hca.connect(end.qp.get(), called.address, {.ack_timeout = 20});
        p.peer.meet();
        p.peer.meet();  // it has descriptors again
        paint(end.buffer->data(), 4096, 1);
        ASSERT_EQ(post(end.qp.get(), {.opcode = IBV_WR_RDMA_WRITE,
                                      .id = 1,
                                      .pieces = {{end.buffer.get(), 0, 4096}},
                                      .remote = called.region}),
                  0);
        expect_completion(end.cq.get(), 1);
        p.peer.meet();
      });
}

TEST(SoftDescriptors, Who_asks_for_a_hosts_port_and_finds_none_waits_and_costs_no_core_until_then) {
  run_pair([](Post& p) {
    setenv("NORIA_SOFT_DEVICES", "name=mlx0,host=a", 1);
    if (p.side == 1) {
      p.peer.meet();
      const Hca hca;  // asks side 0 for the port, for two seconds at most
      p.peer.meet();
      return;
    }
    const Hca hca;
    const std::vector<int> taken = take_all_descriptors();
    p.peer.meet();
    const double before = cpu_seconds();
    ::poll(nullptr, 0, 500);
    // Expect: asleep. A thread that spins uses all of it.
    EXPECT_LT(cpu_seconds() - before, 0.2);
    for (const int fd : taken) ::close(fd);
    p.peer.meet();
  });
}

TEST(SoftDescriptors, Who_finds_no_memory_waits_wakes_nobody_meanwhile_and_is_let_in_then) {
  run_pair([](Post& p) {
    setenv("NORIA_SOFT_DEVICES", "name=mlx0,host=b", 1);
    if (p.side == 1) {
      p.peer.meet();
      const Hca hca;  // asks side 0 for the port, for two seconds at most
      p.peer.meet();
      return;
    }
    const Hca hca;
    RefusedAccepts refused(ENOMEM);
    p.peer.meet();
    ::poll(nullptr, 0, 500);
    // Expect: tried again ten times a second, not as often as the thread can.
    EXPECT_GE(refused.count(), 1);
    EXPECT_LT(refused.count(), 30);
    refused.end();
    p.peer.meet();
  });
}

// Side `poor` lacks it while the other tries.
template <typename Lack>
void expect_they_meet_later(int poor) {
  run_pair([=](Post& p) {
    End end;
    const auto other = p.peer.exchange(end.introduction());
    paint(end.buffer->data(), 2048, static_cast<uint64_t>(p.side));
    std::optional<Told> told;
    std::optional<Lack> lack;
    if (p.side == poor) {
      told.emplace();
      lack.emplace();
    }
    p.peer.meet();
    const auto write = [&] {
      ASSERT_EQ(post(end.qp.get(), {.opcode = IBV_WR_RDMA_WRITE,
                                    .id = 1,
                                    .pieces = {{end.buffer.get(), 0, 2048}},
                                    .remote = {other.region.address + 2048, other.region.rkey}}),
                0);
    };
    // Side 1 calls, and waits.
    if (p.side == 1) {
      end.hca.connect(end.qp.get(), other.address, {.ack_timeout = 20});
      write();
      for (const Nanoseconds until = now_ns() + 50_ms; now_ns() < until;)
        EXPECT_TRUE(is_empty(end.cq.get()));
    }
    p.peer.meet();
    lack.reset();
    told.reset();
    if (p.side == 0) {
      end.hca.connect(end.qp.get(), other.address);
      write();
    }
    // Expect: as if nothing had been, both ways.
    expect_completion(end.cq.get(), 1);
    p.peer.meet();
    EXPECT_EQ(first_wrong(end.buffer->data() + 2048, 2048, static_cast<uint64_t>(p.side ^ 1)),
              2048U);
    p.peer.meet();
  });
}

TEST(SoftDescriptors, A_called_process_that_lacks_them_for_the_greeting_is_met_later) {
  expect_they_meet_later<OneDescriptor>(0);
}

TEST(SoftDescriptors, A_calling_process_that_lacks_them_for_the_answer_is_met_later) {
  expect_they_meet_later<OneDescriptor>(1);
}

TEST(SoftDescriptors, A_called_process_that_has_no_addresses_for_the_caller_is_met_later) {
  expect_they_meet_later<FewAddresses>(0);
}

TEST(SoftDescriptors, A_calling_process_that_has_no_addresses_for_the_called_is_met_later) {
  expect_they_meet_later<FewAddresses>(1);
}

TEST(SoftDescriptors, Without_descriptors_nothing_is_made_and_the_reason_is_told) {
  Crew crew({[](Post&) {
    Hca hca;
    {
      const NoDescriptors none;
      EXPECT_EQ(verbs().create_comp_channel(hca.context()), nullptr);
      EXPECT_EQ(errno, EMFILE);
      EXPECT_EQ(verbs().noria_alloc(hca.context(), 4096), nullptr);
      EXPECT_EQ(errno, EMFILE);
    }
    EXPECT_NE(hca.make_channel(), nullptr);
  }});
  EXPECT_EQ(crew.wait(0).exit_code, 0);
}

TEST(SoftDescriptors, Without_a_thread_no_device_is_opened_until_there_is_one) {
  Crew crew({[](Post&) {
    ibv_device** list = verbs().get_device_list(nullptr);
    ASSERT_NE(list, nullptr);
    {
      const NoThreads none;
      EXPECT_EQ(verbs().open_device(list[0]), nullptr);
      EXPECT_EQ(errno, EAGAIN);
    }
    verbs().free_device_list(list);
    const Hca hca;
  }});
  EXPECT_EQ(crew.wait(0).exit_code, 0);
}

}  // namespace
}  // namespace noria::test
