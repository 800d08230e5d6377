// Fused devices: what NCCL is told of them, and connections that use all their ports.

#include <gtest/gtest.h>

#include <cstdlib>
#include <numeric>

#include "base/params.hpp"
#include "base/units.hpp"
#include "tests/support/nccl_pair.hpp"
#include "tests/support/pattern.hpp"
#include "tests/support/ranks.hpp"
#include "verbs/device.hpp"

extern char** environ;

namespace noria::test {
namespace {

using plugin::abi::kPointerHost;

constexpr int kFirstVersion = 9;  // that knows fused devices

// Eight ports: two of one card, of which NCCL asks to fuse what is at one place, and two of another
// kind of link.
constexpr const char* kDevices =
    "name=mlx0,rate=400,pci=0000:17:00.0;name=mlx1,rate=200,pci=0000:17:00.1;name=mlx2,rate=400;"
    "name=mlx3,rate=400;name=mlx4,rate=100;name=mlx5,rate=400;name=mlx6,rate=400;name=mlx7,rate="
    "400;"
    "name=ib0,rate=400,ll=ib";

class NcclRails : public testing::TestWithParam<int> {
 protected:
  static void SetUpTestSuite() {
    setenv("NORIA_SOFT", "1", 1);
    setenv("NORIA_SOFT_DEVICES", kDevices, 1);
  }
  void alone(const std::function<void(Net&)>& body) {
    run_ranks(1, [&](int32_t, Wire&) {
      const Communicator communicator(GetParam());
      body(*communicator.net);
    });
  }
};

int count_of(Net& net) {
  int count = -1;
  EXPECT_EQ(net.devices(&count), Result::success);
  return count;
}

int fuse(Net& net, const std::vector<int>& parts) {
  int index = -1;
  EXPECT_EQ(net.make_virtual(&index, parts.data(), static_cast<int>(parts.size())), Result::success)
      << last_warning();
  return index;
}

TEST_P(NcclRails, A_fused_device_is_told_as_the_sum_of_its_parts) {
  alone([](Net& net) {
    ASSERT_EQ(count_of(net), 9);
    std::array<SeenDevice, 2> ports;
    for (int i = 0; i < 2; ++i)
      ASSERT_EQ(net.get_properties(i, &ports[static_cast<size_t>(i)]), Result::success);
    EXPECT_EQ(ports[0].pci_path, ports[1].pci_path) << "ports of one card are at one place";
    EXPECT_NE(ports[0].guid, ports[1].guid);

    const int fused = fuse(net, {0, 1});
    EXPECT_EQ(fused, 9) << "behind the ports";
    EXPECT_EQ(count_of(net), 10);
    SeenDevice seen;
    ASSERT_EQ(net.get_properties(fused, &seen), Result::success);
    EXPECT_EQ(seen.name, "mlx0+mlx1");
    EXPECT_EQ(seen.speed_mbps, 600'000);
    EXPECT_EQ(seen.parts, (std::vector<int>{0, 1}));
    EXPECT_EQ(seen.guid, ports[0].guid);
    EXPECT_EQ(seen.pci_path, ports[0].pci_path);
    EXPECT_EQ(seen.unwritten, 0u);

    // Another communicator asks the same.  Expect: the same device; others are others.
    EXPECT_EQ(fuse(net, {0, 1}), fused);
    EXPECT_EQ(fuse(net, {1, 0}), fused + 1);
    EXPECT_EQ(count_of(net), 11);
    // Expect: a device made of one is that one.
    EXPECT_EQ(fuse(net, {2}), 2);
    EXPECT_EQ(count_of(net), 11);
    // Expect: what was told of the ports is as it was.
    SeenDevice again;
    ASSERT_EQ(net.get_properties(0, &again), Result::success);
    EXPECT_EQ(again.name, ports[0].name);
    EXPECT_EQ(again.parts, std::vector<int>{0});
  });
}

TEST(NcclRailsTables, A_device_of_eight_parts_is_told_to_older_tables_as_far_as_they_know) {
  setenv("NORIA_SOFT", "1", 1);
  setenv("NORIA_SOFT_DEVICES", kDevices, 1);
  run_ranks(1, [](int32_t, Wire&) {
    const Communicator newest(kNewestVersion);
    const Communicator oldest(kFirstVersion);
    const int fused = fuse(*newest.net, {0, 1, 2, 3, 4, 5, 6, 7});
    SeenDevice seen;
    ASSERT_EQ(newest.net->get_properties(fused, &seen), Result::success);
    EXPECT_EQ(seen.parts.size(), 8u);
    EXPECT_EQ(seen.speed_mbps, 2'700'000);
    ASSERT_EQ(oldest.net->get_properties(fused, &seen), Result::success);
    EXPECT_EQ(seen.parts, (std::vector<int>{0, 1, 2, 3}));
    EXPECT_EQ(seen.speed_mbps, 2'700'000) << "of all that carry";
    // Four, through the older one.
    const int four = fuse(*oldest.net, {2, 3, 5, 6});
    ASSERT_EQ(oldest.net->get_properties(four, &seen), Result::success);
    EXPECT_EQ(seen.parts, (std::vector<int>{2, 3, 5, 6}));
    EXPECT_EQ(seen.speed_mbps, 1'600'000);
  });
}

TEST_P(NcclRails, What_cannot_be_fused_is_refused_with_a_line) {
  alone([](Net& net) {
    const int most = GetParam() >= 12 ? 8 : 4;
    const std::vector<int> all{0, 1, 2, 3, 4, 5, 6, 7, 8};
    int index = 77;
    const auto refused = [&](const int* parts, int count) {
      forget_logged_lines();
      EXPECT_EQ(net.make_virtual(&index, parts, count), Result::invalid_argument);
      EXPECT_EQ(index, 77) << "written only on success";
      return last_warning();
    };
    EXPECT_TRUE(contains(refused(nullptr, 1), "NULL"));
    const std::string sizes = "1 to " + std::to_string(most);
    for (const int count : {0, -1, most + 1})
      EXPECT_TRUE(contains(refused(all.data(), count), sizes)) << last_warning();
    const auto refused_parts = [&](const std::vector<int>& parts) {
      return refused(parts.data(), static_cast<int>(parts.size()));
    };
    EXPECT_TRUE(contains(refused_parts({0, 9}), "part 9: there are 9 devices")) << last_warning();
    EXPECT_TRUE(contains(refused_parts({-1}), "part -1")) << last_warning();
    EXPECT_TRUE(contains(refused_parts({3, 4, 3}), "part 3 stands twice")) << last_warning();
    EXPECT_TRUE(contains(refused_parts({0, 8}), "unlike links")) << last_warning();
    const int fused = fuse(net, {0, 1});
    EXPECT_TRUE(contains(refused_parts({fused, 2}), "mlx0+mlx1 is fused already"))
        << last_warning();
    EXPECT_EQ(count_of(net), 10);

    const std::array<int, 1> one{0};
    forget_logged_lines();
    EXPECT_EQ(net.make_virtual(nullptr, one.data(), 1), Result::invalid_argument);
    EXPECT_TRUE(contains(last_warning(), "NULL"));
  });
}

TEST_P(NcclRails, Memory_of_another_device_is_refused_at_the_call_with_a_line) {
  run_ranks(1, [&](int32_t, Wire&) {
    const Communicator communicator(GetParam());
    Net& net = *communicator.net;
    const int fused = fuse(net, {0, 1}), turned = fuse(net, {1, 0});
    std::vector<std::byte> buffer(4096);
    const std::vector<int> devices{0, 1, fused, turned};
    std::vector<Ends> connections(devices.size());
    std::vector<void*> memories(devices.size());
    for (size_t i = 0; i < devices.size(); ++i) {
      ASSERT_NO_FATAL_FAILURE(
          connect_to_itself(net, communicator.context, &connections[i], devices[i]));
      ASSERT_EQ(net.reg_mr(connections[i].sending, buffer.data(), buffer.size(), kPointerHost,
                           &memories[i]),
                Result::success);
    }
    for (size_t i = 0; i < devices.size(); ++i)
      for (size_t of = 0; of < devices.size(); ++of) {
        const Ends& ends = connections[i];
        void* memory = memories[of];
        void *received = nullptr, *sent = nullptr;
        if (i != of) {
          const auto refused = [&](Result result) {
            EXPECT_EQ(result, Result::invalid_argument) << devices[of] << " on " << devices[i];
            EXPECT_TRUE(contains(last_warning(), "another device")) << last_warning();
            forget_logged_lines();
          };
          refused(net.irecv(ends.receiving, buffer.data(), 64, memory, &received));
          refused(net.isend(ends.sending, buffer.data(), 64, memory, &sent));
          refused(net.iflush(ends.receiving, buffer.data(), 64, memory, &sent));
          std::array<void*, 2> data{buffer.data(), buffer.data() + 64};
          std::array<size_t, 2> bytes{64, 64};
          std::array<int, 2> tags{0, 1};
          std::array<void*, 2> both{memories[i], memory};
          refused(net.irecv_group(ends.receiving, 2, data.data(), bytes.data(), tags.data(),
                                  both.data(), &received));
          EXPECT_EQ(received, nullptr);
          EXPECT_EQ(sent, nullptr);
        } else {
          // Expect: its own is taken, also after all that was refused.
          ASSERT_EQ(net.irecv(ends.receiving, buffer.data(), 64, memory, &received),
                    Result::success);
          while (sent == nullptr)
            ASSERT_EQ(net.isend(ends.sending, buffer.data(), 64, memory, &sent), Result::success);
          EXPECT_EQ(finish(net, sent), 64);
          EXPECT_EQ(finish(net, received), 64);
        }
      }
    for (size_t i = 0; i < devices.size(); ++i) {
      EXPECT_EQ(net.dereg_mr(connections[i].sending, memories[i]), Result::success);
      close_both(net, connections[i]);
    }
  });
}

TEST_P(NcclRails, Rail_and_plane_are_told_as_NORIA_HCA_says_them) {
  run_ranks(1, [&](int32_t, Wire&) {
    setenv("NORIA_HCA", "mlx0:1:3:0,mlx2:1:3:1,mlx3", 1);
    const Communicator communicator(GetParam());
    Net& net = *communicator.net;
    ASSERT_EQ(count_of(net), 3);
    const auto ids_of = [&](int index) {
      SeenDevice seen;
      EXPECT_EQ(net.get_properties(index, &seen), Result::success);
      return std::array<int, 2>{seen.rail, seen.plane};
    };
    using Ids = std::array<int, 2>;
    const bool are_told = GetParam() >= 12;
    EXPECT_EQ(ids_of(0), are_told ? (Ids{3, 0}) : (Ids{-1, -1}));
    EXPECT_EQ(ids_of(2), (Ids{-1, -1}));
    // Fused.  Expect: what its ports have in common.
    EXPECT_EQ(ids_of(fuse(net, {0, 1})), are_told ? (Ids{3, -1}) : (Ids{-1, -1}));
    EXPECT_EQ(ids_of(fuse(net, {0, 2})), (Ids{-1, -1}));
  });
}

TEST_P(NcclRails, There_are_never_more_devices_than_NCCL_knows) {
  alone([](Net& net) {
    Result result = Result::success;
    for (int a = 0; a < 8 && result == Result::success; ++a)
      for (int b = 0; b < 8 && result == Result::success; ++b)
        for (int c = 0; c < 8 && result == Result::success; ++c) {
          const std::array<int, 3> parts{a, b, c};
          int index = -1;
          if (a != b && b != c && a != c) result = net.make_virtual(&index, parts.data(), 3);
        }
    EXPECT_EQ(result, Result::invalid_argument);
    EXPECT_EQ(count_of(net), 256);
    EXPECT_TRUE(contains(last_warning(), "256")) << last_warning();
  });
}

// ---- connections --------------------------------------------------------------------------------

// What the devices of this process sent or received since it was made.
class Meters {
 public:
  Meters() {
    auto params = load_params(environ);
    EXPECT_TRUE(params.is_ok());
    provider_ = *verbs::open_provider(*params, verbs::Use::plugin);
    for (const verbs::PortInfo& info : provider_->ports())
      ports_.push_back(*verbs::open_port(*provider_, info));
  }
  std::vector<uint64_t> bytes() const {
    std::vector<uint64_t> moved;
    for (const verbs::OpenPort& port : ports_) {
      VerbsStats stats;
      EXPECT_EQ(provider_->api().symbols().noria_stats(port.context.get(), &stats), 0);
      moved.push_back(stats.sent_bytes + stats.received_bytes);
    }
    return moved;
  }

 private:
  std::shared_ptr<const verbs::Provider> provider_;
  std::vector<verbs::OpenPort> ports_;
};

constexpr size_t kBytes = 2_MiB + 77;
constexpr int kMessages = 24;

// One side, over a device fused of `parts`: every message arrives whole, and what each device moved
// is the result.
std::vector<uint64_t> move_over(const std::vector<int>& parts, bool is_sender, Wire& peer) {
  const Meters meters;
  Communicator communicator(kNewestVersion);
  Net& net = *communicator.net;
  const int device = fuse(net, parts);
  void* comm = nullptr;
  void* listener = nullptr;
  NetHandle handle{};
  if (is_sender) {
    handle = peer.recv<NetHandle>();
  } else {
    EXPECT_EQ(net.listen(communicator.context, device, handle.data(), &listener), Result::success);
    peer.send(handle);
  }
  const Nanoseconds deadline = now_ns() + 30_s;
  while (comm == nullptr && now_ns() < deadline && !testing::Test::HasFailure())
    EXPECT_EQ(is_sender ? net.connect(communicator.context, device, handle.data(), &comm)
                        : net.accept(listener, &comm),
              Result::success)
        << last_warning();
  EXPECT_NE(comm, nullptr);
  if (comm == nullptr) return {};
  if (!is_sender) {
    EXPECT_EQ(net.close_listen(listener), Result::success);
  }

  std::vector<std::byte> memory(kBytes);
  void* registered = nullptr;
  EXPECT_EQ(net.reg_mr(comm, memory.data(), kBytes, kPointerHost, &registered), Result::success);
  for (int i = 0; i < kMessages; ++i) {
    if (is_sender) paint(memory.data(), kBytes, static_cast<uint64_t>(i));
    void* request = nullptr;
    while (request == nullptr && now_ns() < deadline && !testing::Test::HasFailure())
      EXPECT_EQ(is_sender ? net.isend(comm, memory.data(), kBytes, registered, &request)
                          : net.irecv(comm, memory.data(), kBytes, registered, &request),
                Result::success)
          << last_warning();
    if (request == nullptr || finish(net, request) != static_cast<int>(kBytes)) {
      ADD_FAILURE() << "message " << i << ": " << last_warning();
      break;
    }
    if (!is_sender) {
      EXPECT_EQ(first_wrong(memory.data(), kBytes, static_cast<uint64_t>(i)), kBytes);
    }
  }
  const std::vector<uint64_t> moved = meters.bytes();
  peer.meet();
  EXPECT_EQ(net.dereg_mr(comm, registered), Result::success);
  EXPECT_EQ(is_sender ? net.close_send(comm) : net.close_recv(comm), Result::success);
  return moved;
}

// Every part carried a share that is worth the name, and no other device anything.
void expect_shared(const std::vector<uint64_t>& moved, const std::vector<int>& parts) {
  const uint64_t all = uint64_t{kBytes} * kMessages;
  EXPECT_GE(std::accumulate(moved.begin(), moved.end(), uint64_t{0}), all);
  for (size_t i = 0; i < moved.size(); ++i) {
    const bool is_part = std::find(parts.begin(), parts.end(), i) != parts.end();
    if (is_part)
      EXPECT_GT(moved[i], all / (8 * parts.size())) << "device " << i;
    else
      EXPECT_EQ(moved[i], 0u) << "device " << i;
  }
}

TEST(NcclRailsTraffic, Every_port_of_a_fused_device_carries_its_share) {
  setenv("NORIA_SOFT", "1", 1);
  setenv("NORIA_SOFT_DEVICES", kDevices, 1);
  using Parts = std::vector<int>;
  const std::vector<std::pair<Parts, Parts>> ways{
      {{0, 1}, {0, 1}},
      {{2, 3, 5, 6}, {2, 3, 5, 6}},
      {{0, 1, 2, 3, 4, 5, 6, 7}, {0, 1, 2, 3, 4, 5, 6, 7}},
      // Unlike numbers of ports on the two sides.
      {{2}, {2, 3}},
      {{5, 6}, {7}},
      {{2, 3}, {2, 3, 5, 6}},
      {{2, 3, 5, 6}, {0, 7}},
      {{0, 2, 3}, {6, 7}}};
  for (const auto& [sender, receiver] : ways) {
    const Parts& ours = sender;  // clang 14 captures no structured binding
    const Parts& theirs = receiver;
    SCOPED_TRACE(std::to_string(ours.size()) + " ports to " + std::to_string(theirs.size()));
    run_pair([&](Post& post) { expect_shared(move_over(ours, true, post.peer), ours); },
             [&](Post& post) { expect_shared(move_over(theirs, false, post.peer), theirs); });
  }
}

// ---- ports that are down ------------------------------------------------------------------------

TEST(NcclRailsTraffic, A_port_that_is_down_is_left_out_with_one_line) {
  setenv("NORIA_SOFT", "1", 1);
  setenv("NORIA_SOFT_DEVICES", "name=mlx0;name=mlx1", 1);
  setenv("NORIA_SOFT_FAULTS", "port=mlx0: after msgs=1 do down", 1);
  run_ranks(1, [](int32_t, Wire&) {
    const Meters keeps_the_devices;
    {
      // The second message meets the fault, and mlx0 is down for good.
      Communicator communicator(kNewestVersion);
      Net& net = *communicator.net;
      Ends ends;
      ASSERT_NO_FATAL_FAILURE(connect_to_itself(net, communicator.context, &ends));
      for (int i = 0; i < 2; ++i) {
        void* received = nullptr;
        void* sent = nullptr;
        ASSERT_EQ(net.irecv(ends.receiving, nullptr, 0, nullptr, &received), Result::success);
        ASSERT_EQ(net.isend(ends.sending, nullptr, 0, nullptr, &sent), Result::success);
      }
      close_both(net, ends);
    }
    forget_logged_lines();
    Communicator communicator(kNewestVersion);
    ASSERT_EQ(count_of(*communicator.net), 1);
    SeenDevice seen;
    ASSERT_EQ(communicator.net->get_properties(0, &seen), Result::success);
    EXPECT_EQ(seen.name, "mlx1");
    size_t lines = 0;
    for (const std::string& line : logged_lines()) lines += contains(line, "mlx0") ? 1 : 0;
    EXPECT_EQ(lines, 1u);
    EXPECT_EQ(last_warning(), "") << "a port may be down";
  });
  unsetenv("NORIA_SOFT_FAULTS");
}

INSTANTIATE_TEST_SUITE_P(Versions, NcclRails, testing::Range(kFirstVersion, kNewestVersion + 1),
                         [](const auto& version) { return "v" + std::to_string(version.param); });

}  // namespace
}  // namespace noria::test
