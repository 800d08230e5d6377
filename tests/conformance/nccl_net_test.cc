// libnccl-net-noria.so as NCCL uses it, through the table of every version: what plugin/README.md
// promises, sentence by sentence.

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <thread>

#include "base/units.hpp"
#include "tests/support/nccl_pair.hpp"
#include "tests/support/pattern.hpp"

namespace noria::test {
namespace {

using plugin::abi::kPointerHost;

constexpr size_t kSlotBytes = 4_MiB;

// One message: what is sent, and what the receive has room for.
struct Piece {
  size_t bytes;
  size_t room;
};

// Drives one side as NCCL's progress thread does: posts in order while fewer than `depth` are under
// way, tests the oldest. The slot of a request is not cleared between laps.
void send_all(Net& net, void* comm, std::vector<std::byte>& memory, void* registered,
              const std::vector<Piece>& pieces, size_t depth) {
  std::vector<void*> requests(depth, kStale);
  size_t posted = 0;
  size_t done = 0;
  const Nanoseconds deadline = now_ns() + 60_s;
  while (done < pieces.size() && now_ns() < deadline) {
    if (posted < pieces.size() && posted - done < depth) {
      std::byte* const data = memory.data() + posted % depth * kSlotBytes;
      const size_t bytes = pieces[posted].bytes;
      void** const slot = &requests[posted % depth];
      paint(data, bytes, posted);
      // NCCL has no registration to give with a message of no bytes.
      void* const mine = bytes != 0 ? registered : nullptr;
      ASSERT_EQ(net.isend(comm, data, bytes, mine, slot), Result::success) << last_warning();
      ASSERT_NE(*slot, kStale);
      if (*slot != nullptr) ++posted;
    }
    if (done == posted) continue;
    int is_done = -1;
    int bytes = -1;
    ASSERT_EQ(net.test(requests[done % depth], &is_done, &bytes), Result::success)
        << last_warning();
    ASSERT_TRUE(is_done == 0 || is_done == 1);
    if (is_done == 1) ++done;
  }
  EXPECT_EQ(done, pieces.size()) << "gave up after 60 s";
}

void receive_all(Net& net, void* comm, std::vector<std::byte>& memory, void* registered,
                 const std::vector<Piece>& pieces, size_t depth) {
  std::vector<void*> requests(depth, kStale);
  size_t posted = 0;
  size_t done = 0;
  const Nanoseconds deadline = now_ns() + 60_s;
  while (done < pieces.size() && now_ns() < deadline) {
    if (posted < pieces.size() && posted - done < depth) {
      std::byte* const data = memory.data() + posted % depth * kSlotBytes;
      void** const slot = &requests[posted % depth];
      *slot = posted % 2 != 0 ? kOptional : nullptr;
      const size_t room = pieces[posted].room;
      void* const mine = room != 0 ? registered : nullptr;
      ASSERT_EQ(net.irecv(comm, data, room, mine, slot), Result::success) << last_warning();
      ASSERT_NE(*slot, kOptional);
      if (*slot != nullptr) ++posted;
    }
    if (done == posted) continue;
    int is_done = -1;
    int bytes = -1;
    ASSERT_EQ(net.test(requests[done % depth], &is_done, &bytes), Result::success)
        << last_warning();
    if (is_done != 1) continue;
    // Expect: the length that was sent, and those bytes.
    ASSERT_EQ(static_cast<size_t>(bytes), pieces[done].bytes) << "message " << done;
    const std::byte* const data = memory.data() + done % depth * kSlotBytes;
    ASSERT_EQ(first_wrong(data, pieces[done].bytes, done), pieces[done].bytes);
    void* flush = kStale;
    int flushed = bytes;
    ASSERT_EQ(net.iflush(comm, memory.data(), flushed, registered, &flush), Result::success);
    ASSERT_EQ(flush, nullptr) << "host memory needs no flush";
    ++done;
  }
  EXPECT_EQ(done, pieces.size()) << "gave up after 60 s";
}

std::vector<Piece> pieces_of_all_sizes() {
  std::vector<Piece> pieces;
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{8}, size_t{4097}, size_t{128_KiB},
                             size_t{512_KiB + 24}, size_t{1_MiB}, size_t{4_MiB - 7}})
    for (const size_t more : {size_t{0}, size_t{7}}) pieces.push_back({bytes, bytes + more});
  for (size_t i = 0; i < 200; ++i) pieces.push_back({i * 37, 8_KiB});
  return pieces;
}

// Registers and deregisters on a comm while it is driven, as NCCL's service thread does.
void register_meanwhile(Net& net, void* comm) {
  std::vector<std::byte> memory(64_KiB + 1);
  for (int i = 0; i < 100; ++i) {
    void* registered = kStale;
    ASSERT_EQ(net.reg_mr(comm, memory.data() + 1, 64_KiB, kPointerHost, &registered),
              Result::success);
    ASSERT_EQ(net.dereg_mr(comm, registered), Result::success);
  }
}

TEST_P(NcclNet, A_table_has_the_name_and_leaves_out_what_is_optional) {
  alone([] {
    const Communicator communicator(GetParam());
    EXPECT_EQ(communicator.net->name(), "noria");
    EXPECT_EQ(communicator.net->optional_functions(),
              GetParam() >= 9 ? " regMrDmaBuf makeVDevice" : " regMrDmaBuf");
    EXPECT_EQ(communicator.net->has_finalize(), GetParam() >= 11);
  });
}

TEST_P(NcclNet, Every_field_of_a_device_is_written) {
  alone([] {
    setenv("NORIA_SOFT_DEVICES", "name=mlx0,rate=400,pci=0000:17:00.0;name=mlx1,rate=200", 1);
    const Communicator communicator(GetParam());
    Net& net = *communicator.net;
    int count = -1;
    ASSERT_EQ(net.devices(&count), Result::success);
    ASSERT_EQ(count, 2);
    std::array<SeenDevice, 2> seen;
    for (int i = 0; i < count; ++i)
      ASSERT_EQ(net.get_properties(i, &seen[static_cast<size_t>(i)]), Result::success);
    for (const SeenDevice& device : seen) {
      EXPECT_EQ(device.unwritten, 0u);
      EXPECT_EQ(device.pointers, kPointerHost | plugin::abi::kPointerDmabuf);
      EXPECT_EQ(device.port, 1);
      EXPECT_EQ(device.max_receives, 8);
      EXPECT_EQ(device.rail, -1);
      EXPECT_EQ(device.plane, -1);
    }
    EXPECT_EQ(seen[0].parts, std::vector<int>{0}) << "a plain device is made of itself";
    EXPECT_EQ(seen[1].parts, std::vector<int>{1});
    EXPECT_EQ(seen[0].name, "mlx0");
    EXPECT_EQ(seen[0].speed_mbps, 400'000);
    EXPECT_TRUE(seen[0].pci_path.ends_with("/0000:17:00.0")) << seen[0].pci_path;
    EXPECT_EQ(seen[1].name, "mlx1");
    EXPECT_EQ(seen[1].speed_mbps, 200'000);
    EXPECT_EQ(seen[1].pci_path, "") << "no PCI device: NCCL places it itself";
    // Expect: two ports, not one that is counted twice.
    EXPECT_NE(seen[0].guid, seen[1].guid);
    EXPECT_EQ(net.get_properties(2, seen.data()), Result::invalid_argument);
    EXPECT_EQ(net.get_properties(-1, seen.data()), Result::invalid_argument);
  });
}

TEST_P(NcclNet, Messages_of_all_sizes_arrive_while_memory_is_registered) {
  for (const size_t depth : {size_t{8}, size_t{32}}) {
    const auto drive = [&](auto side) {
      return [=](Communicator& communicator, void* comm, Wire& peer) {
        Net& net = *communicator.net;
        std::vector<std::byte> memory(depth * kSlotBytes);
        void* registered = nullptr;
        ASSERT_EQ(net.reg_mr(comm, memory.data(), memory.size(), kPointerHost, &registered),
                  Result::success);
        std::thread progress(
            [&] { side(net, comm, memory, registered, pieces_of_all_sizes(), depth); });
        register_meanwhile(net, comm);
        progress.join();
        EXPECT_EQ(net.dereg_mr(comm, registered), Result::success);
        peer.meet();  // nobody closes while the other still waits
        EXPECT_EQ(side == send_all ? net.close_send(comm) : net.close_recv(comm), Result::success);
      };
    };
    pair(drive(send_all), drive(receive_all));
  }
}

TEST_P(NcclNet, Connect_and_accept_answer_not_yet_and_never_block) {
  alone([] {
    const Communicator communicator(GetParam());
    Net& net = *communicator.net;
    NetHandle handle{};
    void* listener = kStale;
    ASSERT_EQ(net.listen(communicator.context, 0, handle.data(), &listener), Result::success);
    ASSERT_NE(listener, kStale);
    ASSERT_NE(listener, nullptr);
    // Nobody calls, then nobody accepts, one thread.  Expect: not yet, however often.
    void* comm = kStale;
    for (int i = 0; i < 100; ++i) {
      comm = kStale;
      ASSERT_EQ(net.accept(listener, &comm), Result::success);
      ASSERT_EQ(comm, nullptr);
    }
    for (int i = 0; i < 100; ++i) {
      comm = kStale;
      ASSERT_EQ(net.connect(communicator.context, 0, handle.data(), &comm), Result::success);
      ASSERT_EQ(comm, nullptr);
    }
    // Expect: in turn they come together, though one thread does both.
    const Ends ends = come_together(net, communicator.context, &handle, listener);
    void* const sending = ends.sending;
    void* const receiving = ends.receiving;
    ASSERT_NE(sending, nullptr);
    ASSERT_NE(receiving, nullptr);
    // Expect: one connection a listener.
    EXPECT_EQ(net.accept(listener, &comm), Result::invalid_argument);
    EXPECT_EQ(net.close_listen(listener), Result::success);
    // Nothing was posted.  Expect: a send answers not yet, and clears what stood there.
    std::byte data{};
    void* memory = nullptr;
    ASSERT_EQ(net.reg_mr(sending, &data, 1, kPointerHost, &memory), Result::success);
    void* request = kStale;
    EXPECT_EQ(net.isend(sending, &data, 1, memory, &request), Result::success);
    EXPECT_EQ(request, nullptr);
    EXPECT_EQ(net.dereg_mr(sending, memory), Result::success);
    EXPECT_EQ(net.close_send(sending), Result::success);
    EXPECT_EQ(net.close_recv(receiving), Result::success);
  });
}

TEST_P(NcclNet, Connections_under_way_at_once_do_not_meet) {
  static constexpr size_t kCount = 16;
  const int version = GetParam();
  run_pair(
      [&](Post& post) {
        Communicator communicator(version);
        Net& net = *communicator.net;
        std::array<NetHandle, kCount> handles;
        std::array<void*, kCount> comms{};
        for (NetHandle& handle : handles) handle = post.peer.recv<NetHandle>();
        // Backwards, and each only a step at a time.
        for (size_t left = kCount; left != 0;)
          for (size_t i = kCount; i-- != 0;) {
            if (comms[i] != nullptr) continue;
            ASSERT_EQ(net.connect(communicator.context, 0, handles[i].data(), &comms[i]),
                      Result::success);
            if (comms[i] != nullptr) --left;
          }
        for (size_t i = 0; i < kCount; ++i) {
          void* memory = nullptr;
          ASSERT_EQ(net.reg_mr(comms[i], &i, sizeof i, kPointerHost, &memory), Result::success);
          void* request = nullptr;
          while (request == nullptr)
            ASSERT_EQ(net.isend(comms[i], &i, sizeof i, memory, &request), Result::success);
          EXPECT_EQ(finish(net, request), static_cast<int>(sizeof i));
          EXPECT_EQ(net.dereg_mr(comms[i], memory), Result::success);
        }
        post.peer.meet();
        for (void* comm : comms) EXPECT_EQ(net.close_send(comm), Result::success);
      },
      [&](Post& post) {
        Communicator communicator(version);
        Net& net = *communicator.net;
        std::array<void*, kCount> listeners{};
        for (void*& listener : listeners) {
          NetHandle handle{};
          ASSERT_EQ(net.listen(communicator.context, 0, handle.data(), &listener), Result::success);
          post.peer.send(handle);
        }
        std::array<void*, kCount> comms{};
        for (size_t i = 0; i < kCount; ++i)
          ASSERT_NE(comms[i] = accept(net, listeners[i]), nullptr);
        for (size_t i = 0; i < kCount; ++i) {
          size_t told = SIZE_MAX;
          void* memory = nullptr;
          void* request = nullptr;
          ASSERT_EQ(net.reg_mr(comms[i], &told, sizeof told, kPointerHost, &memory),
                    Result::success);
          ASSERT_EQ(net.irecv(comms[i], &told, sizeof told, memory, &request), Result::success);
          EXPECT_EQ(finish(net, request), static_cast<int>(sizeof told));
          EXPECT_EQ(told, i);
          EXPECT_EQ(net.dereg_mr(comms[i], memory), Result::success);
        }
        post.peer.meet();
        // Where a communicator has an end.  Expect: it closes what nobody closed.
        if (net.has_finalize()) return;
        for (void* comm : comms) EXPECT_EQ(net.close_recv(comm), Result::success);
      });
}

TEST_P(NcclNet, Two_communicators_of_a_process_are_apart) {
  alone([] {
    NetLibrary library;
    const auto net = library.net(GetParam());
    std::array<void*, 2> contexts{};
    for (void*& context : contexts) ASSERT_EQ(net->init(&context), Result::success);
    NetHandle handle{};
    void* listener = nullptr;
    ASSERT_EQ(net->listen(contexts[1], 0, handle.data(), &listener), Result::success);
    // One ends.  Expect: what is the other's goes on.
    EXPECT_EQ(net->finalize(contexts[0]), Result::success);
    void* comm = kStale;
    EXPECT_EQ(net->accept(listener, &comm), Result::success);
    EXPECT_EQ(comm, nullptr);
    EXPECT_EQ(net->close_listen(listener), Result::success);
    EXPECT_EQ(net->finalize(contexts[1]), Result::success);
    int count = -1;
    EXPECT_EQ(net->devices(&count), Result::success);
    EXPECT_EQ(count, net->has_finalize() ? 0 : 1) << "nothing is held when nobody is there";
    // Expect: all begins anew.
    ASSERT_EQ(net->init(contexts.data()), Result::success);
    EXPECT_EQ(net->devices(&count), Result::success);
    EXPECT_EQ(count, 1);
    EXPECT_EQ(net->finalize(contexts[0]), Result::success);
  });
}

size_t open_descriptors() {
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(entries), end(entries)));
}

TEST_P(NcclNet, The_library_goes_with_all_that_NCCL_forgot) {
  alone([] {
    size_t before = 0;  // descriptors after the first round
    for (int i = 0; i < 100; ++i) {
      {
        const Communicator communicator(GetParam());
        Net& net = *communicator.net;
        ASSERT_TRUE(NetLibrary::is_mapped());
        // As after an abort: a connection half-way, and a listener that nobody closes.
        NetHandle handle{};
        void* listener = nullptr;
        void* comm = nullptr;
        ASSERT_EQ(net.listen(communicator.context, 0, handle.data(), &listener), Result::success);
        ASSERT_EQ(net.connect(communicator.context, 0, handle.data(), &comm), Result::success);
      }
      // Expect: dlclose() took the library out of the process.
      ASSERT_FALSE(NetLibrary::is_mapped()) << "round " << i;
      // Expect: no descriptor is left, of the plugin or of the device under it.
      if (i == 0) before = open_descriptors();
      ASSERT_EQ(open_descriptors(), before) << "round " << i;
    }
  });
}

TEST_P(NcclNet, What_noria_does_not_look_at_may_be_anything) {
  alone([] {
    NetLibrary library;
    const auto net = library.net(GetParam());
    std::array<void*, 8> phandles{};
    phandles.fill(kStale);
    net->set_profiler(phandles.data(), [](void**, int, void*, int64_t, void*) {
      ADD_FAILURE() << "there are no events to write";
      return Result::internal_error;
    });
    void* context = nullptr;
    ASSERT_EQ(net->init(&context), Result::success);
    plugin::abi::Attributes attributes;
    std::memset(static_cast<void*>(&attributes), 0xa5, sizeof attributes);
    EXPECT_EQ(net->set_attributes(context, &attributes), Result::success);
    EXPECT_EQ(net->set_attributes(context, nullptr), Result::success);
    Ends ends;
    ASSERT_NO_FATAL_FAILURE(connect_to_itself(*net, context, &ends));
    void* received = nullptr;
    ASSERT_EQ(net->irecv(ends.receiving, nullptr, 0, nullptr, &received), Result::success);
    void* const sent = send_when_ready(*net, ends.sending, nullptr, 0, nullptr);
    ASSERT_NE(sent, nullptr);
    EXPECT_EQ(finish(*net, sent), 0);
    EXPECT_EQ(finish(*net, received), 0);
    close_both(*net, ends);
    EXPECT_EQ(net->finalize(context), Result::success);
  });
}

TEST_P(NcclNet, Bad_arguments_are_refused_with_a_line) {
  alone([] {
    const Communicator communicator(GetParam());
    Net& net = *communicator.net;
    NetHandle handle{};
    void* out = kStale;
    std::byte data{};
    const auto is_refused = [&](Result result) {
      const bool has_line = !last_warning().empty();
      forget_logged_lines();
      return result == Result::invalid_argument && has_line;
    };
    EXPECT_TRUE(is_refused(net.devices(nullptr)));
    EXPECT_TRUE(is_refused(net.listen(communicator.context, 7, handle.data(), &out)));
    EXPECT_TRUE(is_refused(net.listen(communicator.context, 0, nullptr, &out)));
    EXPECT_TRUE(is_refused(net.connect(communicator.context, 0, nullptr, &out)));
    EXPECT_TRUE(is_refused(net.accept(nullptr, &out)));
    EXPECT_TRUE(is_refused(net.accept(&data, &out)));
    EXPECT_TRUE(is_refused(net.reg_mr(nullptr, &data, 1, kPointerHost, &out)));
    EXPECT_TRUE(is_refused(net.isend(nullptr, &data, 1, nullptr, &out)));
    EXPECT_EQ(out, nullptr);
    EXPECT_TRUE(is_refused(net.irecv(nullptr, &data, 1, nullptr, &out)));
    EXPECT_TRUE(is_refused(net.close_send(nullptr)));
    EXPECT_TRUE(is_refused(net.close_recv(&data)));
    EXPECT_TRUE(is_refused(net.close_listen(&net)));
    int is_done = 0;
    EXPECT_TRUE(is_refused(net.test(nullptr, &is_done, nullptr)));
    EXPECT_TRUE(is_refused(net.test(kOptional, &is_done, nullptr)));
    // A handle that is no listener's.  Expect: an error at once, not "not yet".
    EXPECT_NE(net.connect(communicator.context, 0, handle.data(), &out), Result::success);
    EXPECT_EQ(out, nullptr);
    void* listener = nullptr;
    ASSERT_EQ(net.listen(communicator.context, 0, handle.data(), &listener), Result::success);
    EXPECT_TRUE(is_refused(net.close_send(listener)));
    EXPECT_EQ(net.close_listen(listener), Result::success);
    EXPECT_TRUE(is_refused(net.close_listen(listener)));
  });
}

// Of the kind that is asked for, and closed; or open, and of another kind.
TEST_P(NcclNet, Closed_and_unlike_objects_are_refused_with_a_line_on_the_data_path_too) {
  alone([] {
    const Communicator communicator(GetParam());
    Net& net = *communicator.net;
    void* out = kStale;
    std::array<std::byte, 64> data{};
    void* memory = nullptr;
    const auto is_refused = [&](Result result) {
      const bool has_line = !last_warning().empty();
      forget_logged_lines();
      return result == Result::invalid_argument && has_line;
    };
    const auto expect_refused = [&](void* sending, void* receiving) {
      EXPECT_TRUE(is_refused(net.isend(sending, data.data(), 8, memory, &out)));
      EXPECT_EQ(out, nullptr);
      out = kStale;
      EXPECT_TRUE(is_refused(net.irecv(receiving, data.data(), 8, memory, &out)));
      EXPECT_EQ(out, nullptr);
      out = kStale;
      EXPECT_TRUE(is_refused(net.iflush(receiving, data.data(), 8, memory, &out)));
      EXPECT_EQ(out, nullptr);
      EXPECT_TRUE(is_refused(net.close_send(sending)));
      EXPECT_TRUE(is_refused(net.close_recv(receiving)));
    };
    NetHandle handle{};
    void* listener = nullptr;
    ASSERT_EQ(net.listen(communicator.context, 0, handle.data(), &listener), Result::success);
    expect_refused(listener, listener);
    EXPECT_TRUE(is_refused(net.reg_mr(listener, data.data(), 8, kPointerHost, &out)));
    EXPECT_TRUE(is_refused(net.dereg_mr(listener, &data)));
    EXPECT_EQ(net.close_listen(listener), Result::success);
    expect_refused(listener, listener);
    EXPECT_TRUE(is_refused(net.accept(listener, &out)));

    Ends ends;
    ASSERT_NO_FATAL_FAILURE(connect_to_itself(net, communicator.context, &ends));
    expect_refused(ends.receiving, ends.sending);
    EXPECT_TRUE(is_refused(net.close_listen(ends.sending)));
    EXPECT_TRUE(is_refused(net.accept(ends.receiving, &out)));
    // A connection that is open: without memory, without a request, without arrays.
    ASSERT_EQ(net.reg_mr(ends.sending, data.data(), data.size(), kPointerHost, &memory),
              Result::success);
    EXPECT_TRUE(is_refused(net.isend(ends.sending, data.data(), 8, nullptr, &out)));
    EXPECT_TRUE(is_refused(net.isend(ends.sending, data.data(), 8, memory, nullptr)));
    EXPECT_TRUE(is_refused(net.irecv(ends.receiving, data.data(), 8, nullptr, &out)));
    EXPECT_TRUE(is_refused(net.irecv(ends.receiving, data.data(), 8, memory, nullptr)));
    EXPECT_TRUE(is_refused(net.iflush(ends.receiving, data.data(), 8, memory, nullptr)));
    for (const int count : {0, 9})
      EXPECT_TRUE(
          is_refused(net.iflush_group(ends.receiving, count, nullptr, nullptr, nullptr, &out)));
    EXPECT_TRUE(is_refused(net.iflush_group(ends.receiving, 1, nullptr, nullptr, nullptr, &out)));
    EXPECT_TRUE(is_refused(net.reg_mr(ends.sending, nullptr, 8, kPointerHost, &out)));
    EXPECT_TRUE(is_refused(net.reg_mr(ends.sending, data.data(), 8, kPointerHost, nullptr)));
    EXPECT_TRUE(is_refused(net.dereg_mr(ends.sending, nullptr)));

    // A request that has ended, and those that are under way when their connection is closed.
    void* received = nullptr;
    ASSERT_EQ(net.irecv(ends.receiving, data.data(), 8, memory, &received), Result::success);
    void* sent = send_when_ready(net, ends.sending, data.data(), 8, memory);
    ASSERT_NE(sent, nullptr);
    EXPECT_TRUE(is_refused(net.test(sent, nullptr, nullptr)));
    EXPECT_EQ(finish(net, sent), 8);
    EXPECT_EQ(finish(net, received), 8);
    int is_done = 7;
    for (void* request : {sent, received})
      EXPECT_TRUE(is_refused(net.test(request, &is_done, nullptr)));
    ASSERT_EQ(net.irecv(ends.receiving, data.data(), 8, memory, &received), Result::success);
    ASSERT_NE(sent = send_when_ready(net, ends.sending, data.data(), 8, memory), nullptr);
    close_both(net, ends);
    for (void* request : {sent, received})
      EXPECT_TRUE(is_refused(net.test(request, &is_done, nullptr)));
    EXPECT_EQ(is_done, 7);
    expect_refused(ends.sending, ends.receiving);
    EXPECT_TRUE(is_refused(net.reg_mr(ends.sending, data.data(), 8, kPointerHost, &out)));
    EXPECT_TRUE(is_refused(net.dereg_mr(ends.receiving, memory)));

    // Memory that was deregistered.
    ASSERT_NO_FATAL_FAILURE(connect_to_itself(net, communicator.context, &ends));
    EXPECT_EQ(net.dereg_mr(ends.sending, memory), Result::success);
    EXPECT_EQ(net.irecv(ends.receiving, data.data(), 8, memory, &received),
              Result::invalid_argument);
    EXPECT_TRUE(contains(last_warning(), "deregistered")) << last_warning();
    close_both(net, ends);
  });
}

TEST_P(NcclNet, A_bad_or_unknown_variable_turns_it_off_in_one_line) {
  alone([] {
    const auto warnings_with = [](const char* name, const char* value) {
      forget_logged_lines();
      setenv(name, value, 1);
      {
        const Communicator communicator(GetParam());
        int count = -1;
        EXPECT_EQ(communicator.net->devices(&count), Result::success);
        EXPECT_EQ(count, 0);
      }
      unsetenv(name);
      std::vector<std::string> warnings;
      for (const std::string& line : logged_lines())
        if (line.starts_with("WARN ")) warnings.push_back(line.substr(5));
      return warnings;
    };
    for (const auto& [name, value] :
         {std::pair{"NORIA_QPS_PER_CONNECTION", "17"}, std::pair{"NORIA_QPS_PER_CONECTION", "2"},
          std::pair{"NORIA_SOCKET_IFNAME", "nosuchif"}, std::pair{"NCCL_IB_TC", "256"},
          std::pair{"NCCL_IB_HCA", "=nosuchhca"}, std::pair{"NCCL_IB_GID_INDEX", "7"},
          std::pair{"NORIA_IBVERBS", "/nowhere/libibverbs.so.1"}}) {
      const auto warnings = warnings_with(name, value);
      ASSERT_EQ(warnings.size(), 1u) << name;
      EXPECT_TRUE(warnings[0].starts_with("noria is off: ")) << warnings[0];
      EXPECT_TRUE(contains(warnings[0], name)) << warnings[0];
    }
    // Expect: what was asked for is no warning.
    EXPECT_TRUE(warnings_with("NORIA_DISABLE", "1").empty());
    setenv("NORIA_SOFT", "0", 1);
    const auto warnings = warnings_with("NORIA_SOFT_RATE_GBIT", "0");
    ASSERT_EQ(warnings.size(), 1u) << "a host without devices says so";
    EXPECT_TRUE(contains(warnings[0], "NORIA_SOFT=1")) << warnings[0];
  });
}

INSTANTIATE_TEST_SUITE_P(Versions, NcclNet, testing::Range(kOldestVersion, kNewestVersion + 1),
                         [](const auto& version) { return "v" + std::to_string(version.param); });

}  // namespace
}  // namespace noria::test
