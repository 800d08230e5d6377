// libnccl-net-noria.so: what connections cost, and the memory that is registered for them.

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include "base/units.hpp"
#include "tests/support/exported.hpp"
#include "tests/support/nccl_pair.hpp"
#include "tests/support/pattern.hpp"

namespace noria::test {
namespace {

using plugin::abi::kPointerCuda;
using plugin::abi::kPointerDmabuf;
using plugin::abi::kPointerHost;

size_t open_descriptors() {
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(entries), end(entries)));
}

class NcclMemory : public NcclNet {};

TEST_P(NcclMemory, Hundreds_of_connections_share_a_device_and_cost_two_descriptors_both_ends) {
  alone([] {
    constexpr size_t kCount = 200;
    Communicator communicator(GetParam());
    std::vector<Ends> connections(kCount);
    ASSERT_NO_FATAL_FAILURE(
        connect_to_itself(*communicator.net, communicator.context, &connections[0]));
    const size_t first = open_descriptors();
    close_both(*communicator.net, std::exchange(connections[0], {}));
    const size_t none = open_descriptors();
    for (Ends& ends : connections)
      ASSERT_NO_FATAL_FAILURE(connect_to_itself(*communicator.net, communicator.context, &ends));
    // Expect: each end's control socket, and one for the memory of 64 ends, which peers of the
    // software HCA map. The device is open once.
    EXPECT_EQ(open_descriptors() - first, 2 * (kCount - 1) + 2 * kCount / 64);
    for (const Ends& ends : connections) close_both(*communicator.net, ends);
    // Expect: the last one closed the device.
    EXPECT_EQ(open_descriptors(), none);
  });
}

// What NCCL's progress thread does: until a request is there.
void* post(const std::function<Result(void**)>& call) {
  const Nanoseconds deadline = now_ns() + 30_s;
  void* request = nullptr;
  while (request == nullptr && now_ns() < deadline) {
    request = kStale;
    if (call(&request) != Result::success) {
      ADD_FAILURE() << last_warning();
      return nullptr;
    }
  }
  EXPECT_NE(request, nullptr);
  return request;
}

// One message from one end to the other, done on both sides.
void carry(Net& net, const Ends& ends, void* from, void* from_memory, void* to, void* to_memory,
           size_t bytes) {
  void* const received = post(
      [&](void** request) { return net.irecv(ends.receiving, to, bytes, to_memory, request); });
  ASSERT_NE(received, nullptr);
  void* const sent = post(
      [&](void** request) { return net.isend(ends.sending, from, bytes, from_memory, request); });
  ASSERT_NE(sent, nullptr);
  EXPECT_EQ(finish(net, sent), static_cast<int>(bytes));
  EXPECT_EQ(finish(net, received), static_cast<int>(bytes));
}

// As NCCL registers memory of a GPU: the descriptor is its to close.
void* registered(Net& net, void* comm, const Exported& gpu) {
  void* memory = nullptr;
  EXPECT_EQ(net.reg_mr_dma_buf(comm, gpu.data(), gpu.bytes(), kPointerCuda, 0, gpu.fd(), &memory),
            Result::success)
      << last_warning();
  return memory;
}

// As NCCL waits for a flush: without sizes.
void finish_flush(Net& net, void* request) {
  const Nanoseconds deadline = now_ns() + 30_s;
  int is_done = 0;
  while (is_done == 0 && now_ns() < deadline)
    ASSERT_EQ(net.test(request, &is_done, nullptr), Result::success) << last_warning();
  EXPECT_EQ(is_done, 1);
}

TEST_P(NcclMemory, What_was_received_in_GPU_memory_is_seen_once_NCCL_has_flushed) {
  setenv("NORIA_SOFT_PLACE", "late", 1);  // keeps back what arrives by descriptor
  connected([](Net& net, const Ends& ends) {
    SeenDevice device;
    ASSERT_EQ(net.get_properties(0, &device), Result::success);
    EXPECT_EQ(device.pointers, kPointerHost | kPointerDmabuf);
    EXPECT_EQ(device.needs_flush, GetParam() >= 9 ? 1 : 0);
    std::vector<std::byte> host(256_KiB);
    void* from = nullptr;
    ASSERT_EQ(net.reg_mr(ends.sending, host.data(), host.size(), kPointerHost, &from),
              Result::success);
    // NCCL closes the descriptor when it is registered.
    constexpr size_t kOffset = 64_KiB;
    const Exported gpu(kOffset + host.size());
    void* to = kStale;
    const int fd = dup(gpu.fd());
    ASSERT_EQ(net.reg_mr_dma_buf(ends.receiving, gpu.data() + kOffset, host.size(), kPointerCuda,
                                 kOffset, fd, &to),
              Result::success)
        << last_warning();
    close(fd);
    for (const size_t bytes : {size_t{8}, size_t{4096}, host.size()}) {
      paint(host.data(), bytes, bytes);
      std::byte* data = gpu.data() + kOffset;
      ASSERT_NO_FATAL_FAILURE(carry(net, ends, host.data(), from, data, to, bytes));
      EXPECT_FALSE(gpu.sees(kOffset, bytes, bytes)) << bytes;
      void* flush = kStale;
      ASSERT_EQ(net.iflush(ends.receiving, data, static_cast<int>(bytes), to, &flush),
                Result::success)
          << last_warning();
      ASSERT_TRUE(flush != nullptr && flush != kStale);
      ASSERT_NO_FATAL_FAILURE(finish_flush(net, flush));
      EXPECT_TRUE(gpu.sees(kOffset, bytes, bytes)) << bytes;
    }
    EXPECT_EQ(net.dereg_mr(ends.sending, from), Result::success);
    EXPECT_EQ(net.dereg_mr(ends.receiving, to), Result::success);
  });
  unsetenv("NORIA_SOFT_PLACE");
}

TEST_P(NcclMemory, A_flush_of_a_group_reaches_whichever_of_its_receives_is_of_a_GPU) {
  setenv("NORIA_SOFT_PLACE", "late", 1);
  connected([](Net& net, const Ends& ends) {
    constexpr size_t kBytes = 4096;
    std::vector<std::byte> source(kBytes), host(kBytes);
    void* from = nullptr;
    void* to_host = nullptr;
    ASSERT_EQ(net.reg_mr(ends.sending, source.data(), kBytes, kPointerHost, &from),
              Result::success);
    ASSERT_EQ(net.reg_mr(ends.receiving, host.data(), kBytes, kPointerHost, &to_host),
              Result::success);
    for (const size_t of_gpu : {size_t{0}, size_t{1}, size_t{2}}) {
      const Exported gpu(kBytes);
      void* const to_gpu = registered(net, ends.receiving, gpu);
      paint(source.data(), kBytes, of_gpu);
      std::array<void*, 3> data, memories;
      data.fill(host.data());
      memories.fill(to_host);
      data[of_gpu] = gpu.data();
      memories[of_gpu] = to_gpu;
      std::array<size_t, 3> rooms{kBytes, kBytes, kBytes};
      std::array<int, 3> tags{1, 2, 3}, sizes{};
      void* const received = post([&](void** request) {
        return net.irecv_group(ends.receiving, 3, data.data(), rooms.data(), tags.data(),
                               memories.data(), request);
      });
      // Both ends in turn, as one thread that drives them does.
      std::array<void*, 3> sent{};
      std::array<int, 4> are_done{};  // the sends, and the group
      const Nanoseconds deadline = now_ns() + 30_s;
      while (std::count(are_done.begin(), are_done.end(), 1) != 4 && now_ns() < deadline) {
        for (size_t i = 0; i < sent.size(); ++i) {
          if (sent[i] == nullptr) {
            ASSERT_EQ(net.isend(ends.sending, source.data(), kBytes, from, &sent[i], tags[i]),
                      Result::success);
          } else if (are_done[i] == 0) {
            ASSERT_EQ(net.test(sent[i], &are_done[i], nullptr), Result::success);
          }
        }
        if (are_done[3] == 0) {
          ASSERT_EQ(net.test(received, &are_done[3], sizes.data()), Result::success);
        }
      }
      ASSERT_EQ(std::count(are_done.begin(), are_done.end(), 1), 4) << last_warning();
      EXPECT_FALSE(gpu.sees(0, kBytes, of_gpu));
      void* flush = kStale;
      ASSERT_EQ(
          net.iflush_group(ends.receiving, 3, data.data(), sizes.data(), memories.data(), &flush),
          Result::success);
      ASSERT_NE(flush, nullptr);
      ASSERT_NO_FATAL_FAILURE(finish_flush(net, flush));
      EXPECT_TRUE(gpu.sees(0, kBytes, of_gpu)) << "of the receives it is number " << of_gpu;
      EXPECT_EQ(net.dereg_mr(ends.receiving, to_gpu), Result::success);
    }
  });
  unsetenv("NORIA_SOFT_PLACE");
}

TEST_P(NcclMemory, Nothing_is_flushed_where_that_is_off) {
  setenv("NCCL_GDR_FLUSH_DISABLE", "1", 1);
  connected([](Net& net, const Ends& ends) {
    SeenDevice device;
    ASSERT_EQ(net.get_properties(0, &device), Result::success);
    EXPECT_EQ(device.needs_flush, 0);
    const Exported gpu(4096);
    void* const memory = registered(net, ends.receiving, gpu);
    void* flush = kStale;
    EXPECT_EQ(net.iflush(ends.receiving, gpu.data(), 8, memory, &flush), Result::success);
    EXPECT_EQ(flush, nullptr);
  });
  unsetenv("NCCL_GDR_FLUSH_DISABLE");
}

TEST_P(NcclMemory, As_many_receives_and_flushes_as_there_can_be_are_under_way_beside_each_other) {
  connected([](Net& net, const Ends& ends) {
    const Exported gpu(4096);
    void* const memory = registered(net, ends.receiving, gpu);
    std::vector<void*> flushes(32);
    for (void*& flush : flushes) {
      ASSERT_EQ(net.iflush(ends.receiving, gpu.data(), 8, memory, &flush), Result::success);
      ASSERT_NE(flush, nullptr);
    }
    // One more.  Expect: refused, for null would say that it is done.
    void* none = kStale;
    EXPECT_EQ(net.iflush(ends.receiving, gpu.data(), 8, memory, &none), Result::invalid_argument);
    EXPECT_EQ(none, nullptr);
    std::set<void*> requests(flushes.begin(), flushes.end());
    for (size_t posted = 0;; ++posted) {
      void* request = kStale;
      ASSERT_EQ(net.irecv(ends.receiving, gpu.data(), 8, memory, &request), Result::success);
      if (request == nullptr) break;
      ASSERT_LT(posted, 1024u);
      EXPECT_TRUE(requests.insert(request).second) << "one request for two";
    }
    for (void* flush : flushes) ASSERT_NO_FATAL_FAILURE(finish_flush(net, flush));
  });
}

TEST_P(NcclMemory, A_flush_of_nothing_or_of_host_memory_is_done_at_once) {
  connected([](Net& net, const Ends& ends) {
    const Exported gpu(4096);
    std::vector<std::byte> host(4096);
    void* const gpu_memory = registered(net, ends.receiving, gpu);
    void* host_memory = nullptr;
    ASSERT_EQ(net.reg_mr(ends.receiving, host.data(), host.size(), kPointerHost, &host_memory),
              Result::success);
    void* flush = kStale;
    EXPECT_EQ(net.iflush(ends.receiving, gpu.data(), 0, gpu_memory, &flush), Result::success);
    EXPECT_EQ(flush, nullptr);
    flush = kStale;
    EXPECT_EQ(net.iflush(ends.receiving, host.data(), 4096, host_memory, &flush), Result::success);
    EXPECT_EQ(flush, nullptr);
    flush = kStale;
    EXPECT_EQ(net.iflush(ends.receiving, nullptr, 0, nullptr, &flush), Result::success);
    EXPECT_EQ(flush, nullptr);
    flush = kStale;
    EXPECT_EQ(net.iflush(ends.sending, gpu.data(), 8, gpu_memory, &flush),
              Result::invalid_argument);
    EXPECT_EQ(flush, nullptr);
    // A connection that is closed with a flush under way, and memory that nobody deregisters.
    ASSERT_EQ(net.iflush(ends.receiving, gpu.data(), 8, gpu_memory, &flush), Result::success);
    EXPECT_NE(flush, nullptr);
  });
}

TEST_P(NcclMemory, Memory_serves_all_connections_of_its_device_and_outlives_the_one_it_came_by) {
  alone([] {
    Communicator communicator(GetParam());
    Net& net = *communicator.net;
    SeenDevice device;
    ASSERT_EQ(net.get_properties(0, &device), Result::success);
    EXPECT_EQ(device.is_registration_global, GetParam() >= 8 ? 1 : 0);
    Ends first, second;
    ASSERT_NO_FATAL_FAILURE(connect_to_itself(*communicator.net, communicator.context, &first));
    ASSERT_NO_FATAL_FAILURE(connect_to_itself(*communicator.net, communicator.context, &second));
    std::vector<std::byte> memory(8192);
    void* registered = nullptr;
    ASSERT_EQ(net.reg_mr(first.sending, memory.data(), memory.size(), kPointerHost, &registered),
              Result::success);
    close_both(net, first);
    paint(memory.data(), 4096, 7);
    ASSERT_NO_FATAL_FAILURE(
        carry(net, second, memory.data(), registered, memory.data() + 4096, registered, 4096));
    EXPECT_EQ(first_wrong(memory.data() + 4096, 4096, 7), size_t{4096});
    EXPECT_EQ(net.dereg_mr(second.receiving, registered), Result::success);
    // Expect: once.
    EXPECT_EQ(net.dereg_mr(second.receiving, registered), Result::invalid_argument);
    close_both(net, second);
  });
}

TEST_P(NcclMemory, The_same_range_is_registered_with_the_device_once) {
  // Three registrations are made with each pair of connections: the sender's credits, where small
  // messages land, and the test's.
  setenv("NORIA_SOFT_FAULTS", "call=reg_mr: after calls=3 do fail errno=12", 1);
  connected([](Net& net, const Ends& ends) {
    std::vector<std::byte> memory(8192);
    std::array<void*, 3> registered{};
    const std::array<void*, 3> comms{ends.sending, ends.receiving, ends.sending};
    for (size_t i = 0; i < registered.size(); ++i)
      ASSERT_EQ(net.reg_mr(comms[i], memory.data(), memory.size(), kPointerHost, &registered[i]),
                Result::success)
          << i << ": " << last_warning();
    // Expect: another range is another, and met the fault.
    void* other = kStale;
    EXPECT_EQ(net.reg_mr(comms[0], memory.data(), 4096, kPointerHost, &other),
              Result::system_error);
    EXPECT_EQ(other, nullptr);
    for (size_t i = 0; i < registered.size(); ++i)
      EXPECT_EQ(net.dereg_mr(comms[i], registered[i]), Result::success);
  });
  unsetenv("NORIA_SOFT_FAULTS");
}

TEST_P(NcclMemory, A_refused_registration_says_what_to_do) {
  setenv("NORIA_SOFT_FAULTS", "call=reg_mr: after calls=2 do fail errno=12", 1);
  alone([] {
    const rlimit low{.rlim_cur = 64_KiB, .rlim_max = 64_KiB};
    ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &low), 0);
    Communicator communicator(GetParam());
    Net& net = *communicator.net;
    Ends ends;
    ASSERT_NO_FATAL_FAILURE(connect_to_itself(*communicator.net, communicator.context, &ends));
    std::vector<std::byte> memory(4096);
    void* out = kStale;
    // No room.  Expect: the limit, and all the places where it is set.
    EXPECT_EQ(net.reg_mr(ends.sending, memory.data(), 4096, kPointerHost, &out),
              Result::system_error);
    EXPECT_EQ(out, nullptr);
    for (const char* part : {"4096 bytes of host memory", "64 KiB", "ulimit -l unlimited",
                             "/etc/security/limits.conf", "LimitMEMLOCK"})
      EXPECT_TRUE(contains(last_warning(), part)) << last_warning();
    // An address that is a GPU's.  Expect: what would make it known.
    void* const far = reinterpret_cast<void*>(0x7e0000000000);
    EXPECT_EQ(net.reg_mr(ends.sending, far, 4096, kPointerCuda, &out), Result::invalid_usage);
    EXPECT_TRUE(contains(last_warning(), "nvidia_peermem")) << last_warning();
    EXPECT_EQ(net.reg_mr(ends.sending, far, 4096, kPointerHost, &out), Result::invalid_usage);
    EXPECT_TRUE(contains(last_warning(), "mapped")) << last_warning();
    // A descriptor of no memory, none at all, and memory of no known kind.
    std::array<int, 2> ends_of_pipe{};
    ASSERT_EQ(pipe(ends_of_pipe.data()), 0);
    EXPECT_NE(net.reg_mr_dma_buf(ends.sending, memory.data(), 4096, kPointerCuda, 0,
                                 ends_of_pipe[0], &out),
              Result::success);
    EXPECT_TRUE(contains(last_warning(), "NCCL_DMABUF_ENABLE=0")) << last_warning();
    EXPECT_EQ(net.reg_mr_dma_buf(ends.sending, memory.data(), 4096, kPointerCuda, 0, -1, &out),
              Result::invalid_argument);
    EXPECT_EQ(net.reg_mr(ends.sending, memory.data(), 4096, 4, &out), Result::invalid_argument);
    EXPECT_EQ(out, nullptr);
    close_both(net, ends);
  });
  unsetenv("NORIA_SOFT_FAULTS");
}

TEST_P(NcclMemory, A_connection_for_which_a_limit_has_no_room_says_which) {
  // The device gives no queue pair.  Expect: as of a registration.
  setenv("NORIA_SOFT_FAULTS", "call=create_qp: after calls=0 do fail errno=12", 1);
  alone([] {
    Communicator communicator(GetParam());
    Net& net = *communicator.net;
    NetHandle handle{};
    void* listener = nullptr;
    void* comm = kStale;
    ASSERT_EQ(net.listen(communicator.context, 0, handle.data(), &listener), Result::success);
    EXPECT_EQ(net.connect(communicator.context, 0, handle.data(), &comm), Result::system_error);
    EXPECT_EQ(comm, nullptr);
    EXPECT_TRUE(contains(last_warning(), "locked memory")) << last_warning();
    EXPECT_EQ(net.close_listen(listener), Result::success);
  });
  unsetenv("NORIA_SOFT_FAULTS");
  alone([] {
    Communicator communicator(GetParam());
    rlimit limit{};
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    const rlimit none{.rlim_cur = 0, .rlim_max = limit.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    NetHandle handle{};
    void* listener = kStale;
    const Result result =
        communicator.net->listen(communicator.context, 0, handle.data(), &listener);
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);  // a leak checker opens files at the end
    EXPECT_EQ(result, Result::system_error);
    EXPECT_EQ(listener, nullptr);
    EXPECT_TRUE(contains(last_warning(), "ulimit -n")) << last_warning();
  });
}

TEST_P(NcclMemory, How_GPU_memory_is_reached_is_said_in_one_line) {
  alone([] {
    const Communicator communicator(GetParam());
    std::vector<std::string> said;
    for (const std::string& line : logged_lines())
      if (contains(line, "GPU memory")) said.push_back(line);
    ASSERT_EQ(said.size(), 1u);
    EXPECT_TRUE(contains(said[0], "by dmabuf, else through host memory: the software HCA"))
        << said[0];
  });
}

INSTANTIATE_TEST_SUITE_P(Versions, NcclMemory, testing::Range(kOldestVersion, kNewestVersion + 1),
                         [](const auto& version) { return "v" + std::to_string(version.param); });

}  // namespace
}  // namespace noria::test
