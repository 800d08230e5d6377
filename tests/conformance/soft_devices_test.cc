// Several devices in one process, as NORIA_SOFT_DEVICES describes them: each has a link, an address
// and a port of its own, and what belongs to one is unknown to the others.
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/units.hpp"
#include "tests/support/verbs_fixture.hpp"

namespace noria::test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNode =
    "name=mlx0,rate=400,width=4,ll=ib,numa=0,pci=0000:17:00.0,host=a;"
    "name=mlx1,rate=100,width=2,ll=ib,numa=1,pci=0000:97:00.0,host=a;"
    "name=eth0,rate=200,ll=eth,host=a;"
    "name=eth1,rate=25,width=1,ll=eth,host=b";
enum Index { mlx0 = 0, mlx1 = 1, eth0 = 2, eth1 = 3 };

// A folder that goes with the test; its name is what the children get as XDG_RUNTIME_DIR.
class SoftDevices : public testing::Test {
 protected:
  SoftDevices() {
    std::string pattern = (fs::temp_directory_path() / "noria_devices_XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    ::setenv("XDG_RUNTIME_DIR", folder_.c_str(), 1);
    ::setenv("NORIA_SOFT_DEVICES", kNode, 1);
  }
  ~SoftDevices() override { fs::remove_all(folder_); }

  std::string folder_;
};

std::string line_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

ibv_port_attr port_of(const Hca& hca) {
  ibv_port_attr port{};
  EXPECT_EQ(verbs_get_ctx(hca.context())->query_port(hca.context(), 1, &port, sizeof port), 0);
  return port;
}

void run_alone(const Body& body) {
  Crew crew({body});
  EXPECT_EQ(crew.wait(0).exit_code, 0);
}

TEST_F(SoftDevices, Show_their_links) {
  run_alone([](Post&) {
    const Hca first(mlx0), second(mlx1), third(eth0), fourth(eth1);
    EXPECT_STREQ(first.context()->device->name, "mlx0");
    EXPECT_STREQ(fourth.context()->device->name, "eth1");

    // 400 Gbit/s over 4 lanes, 100 over 2, 200 over 4, 25 over 1.
    EXPECT_EQ(port_of(first).active_width, 2);
    EXPECT_EQ(port_of(first).active_speed, 128);
    EXPECT_EQ(port_of(second).active_width, 16);
    EXPECT_EQ(port_of(second).active_speed, 64);
    EXPECT_EQ(port_of(third).active_speed, 64);
    EXPECT_EQ(port_of(fourth).active_width, 1);
    EXPECT_EQ(port_of(fourth).active_speed, 32);

    // InfiniBand has LIDs, Ethernet has none; no two addresses are the same.
    EXPECT_EQ(port_of(first).link_layer, IBV_LINK_LAYER_INFINIBAND);
    EXPECT_EQ(port_of(third).link_layer, IBV_LINK_LAYER_ETHERNET);
    EXPECT_NE(port_of(first).lid, 0);
    EXPECT_NE(port_of(first).lid, port_of(second).lid);
    EXPECT_EQ(port_of(third).lid, 0);
    ibv_gid a{}, b{};
    EXPECT_EQ(verbs().query_gid(third.context(), 1, 0, &a), 0);
    EXPECT_EQ(verbs().query_gid(fourth.context(), 1, 0, &b), 0);
    EXPECT_NE(std::memcmp(&a, &b, sizeof a), 0);
  });
}

TEST_F(SoftDevices, Have_a_sysfs_tree_that_is_made_once_and_mended) {
  const auto look = [](Post&) {
    const Hca first(mlx0), third(eth0);
    const std::string path = first.context()->device->ibdev_path;
    EXPECT_EQ(line_of(path + "/device/numa_node"), "0");
    EXPECT_EQ(fs::canonical(path + "/device").filename(), "0000:17:00.0");
    EXPECT_EQ(line_of(path + "/ports/1/rate"), "400 Gb/sec (4X)");
    EXPECT_EQ(line_of(path + "/ports/1/link_layer"), "InfiniBand");
    const std::string other = third.context()->device->ibdev_path;
    EXPECT_EQ(line_of(other + "/ports/1/gid_attrs/types/0"), "RoCE v2");
    EXPECT_EQ(line_of(other + "/device/numa_node"), "-1");
  };
  run_alone(look);
  const auto count = [this] {
    return std::distance(fs::recursive_directory_iterator(folder_),
                         fs::recursive_directory_iterator());
  };
  const auto made = count();
  struct stat root {};
  ASSERT_EQ(::stat(fs::directory_iterator(folder_)->path().c_str(), &root), 0);
  EXPECT_EQ(root.st_mode & 0777, 0700u);

  // Files as a process leaves them that is killed while it makes the tree.
  size_t emptied = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder_))
    if (entry.is_regular_file() && !entry.is_symlink()) {
      fs::resize_file(entry.path(), 0);
      ++emptied;
    }
  EXPECT_GT(emptied, 10u);
  run_alone(look);
  EXPECT_EQ(count(), made) << "another process adds nothing";
}

TEST_F(SoftDevices, Do_without_a_tree_whose_root_is_open_to_others) {
  const fs::path root = fs::path(folder_) / ("noria-soft-" + std::to_string(::geteuid()));
  fs::create_directory(root);
  fs::permissions(root, fs::perms::all);
  run_alone([](Post&) {
    const Hca first(mlx0);
    EXPECT_STREQ(first.context()->device->ibdev_path, "");
  });
  EXPECT_TRUE(fs::is_empty(root));
}

// Side 0 writes from device `from` to a queue pair of device `to`, by the address of `named`.
void write_between(int from, int to, int named, ibv_wc_status expected, uint32_t bytes = 4096) {
  run_pair([=](Post& p) {
    const Hca hca(p.side == 0 ? from : to), shown(p.side == 0 ? from : named);
    const auto cq = hca.make_cq();
    const auto qp = hca.make_qp(cq.get());
    const auto buffer = hca.make_buffer(bytes);
    paint(buffer->data(), bytes, static_cast<uint64_t>(p.side));
    const Address address = shown.address_of(qp.get());
    hca.connect(qp.get(), p.peer.exchange(address), {.ack_timeout = 12, .retry_count = 1});
    const auto remote = p.peer.exchange(Region{buffer->address(), buffer->rkey()});
    if (p.side == 0) {
      ASSERT_EQ(post(qp.get(), {.opcode = IBV_WR_RDMA_WRITE,
                                .id = 1,
                                .pieces = {{buffer.get(), 0, bytes}},
                                .remote = remote}),
                0);
      expect_completion(cq.get(), 1, expected);
    }
    p.peer.meet();
    if (p.side == 1) {
      EXPECT_EQ(first_wrong(buffer->data(), bytes, expected == IBV_WC_SUCCESS ? 0 : 1), bytes);
    }
    p.peer.meet();
  });
}

TEST_F(SoftDevices, Reach_each_other_over_InfiniBand) {
  write_between(mlx0, mlx0, mlx0, IBV_WC_SUCCESS);
  write_between(mlx0, mlx1, mlx1, IBV_WC_SUCCESS);
}

TEST_F(SoftDevices, Reach_each_other_over_Ethernet) {
  write_between(eth0, eth1, eth1, IBV_WC_SUCCESS);
}

TEST_F(SoftDevices, A_path_reaches_the_device_that_it_names_and_no_other) {
  // The number of the queue pair and the key are right.  Expect: nobody there has that number.
  write_between(mlx0, mlx1, mlx0, IBV_WC_RETRY_EXC_ERR);
  write_between(eth0, eth1, eth0, IBV_WC_RETRY_EXC_ERR);
}

TEST_F(SoftDevices, A_request_is_no_longer_than_either_device_takes) {
  ::setenv("NORIA_SOFT_DEVICES", "name=some,max_msg=1;name=more,max_msg=4", 1);
  enum { some, more };
  write_between(more, some, some, IBV_WC_SUCCESS, 1_MiB);
  write_between(more, some, some, IBV_WC_REM_INV_REQ_ERR, 1_MiB + 1);
  write_between(some, more, more, IBV_WC_LOC_LEN_ERR, 1_MiB + 1);
}

// Names whose addresses are the same, and what is said of them.
struct Twins {
  const char *one, *other, *text;
};
constexpr Twins kTwins[] = {{"name=mlx1284", "name=mlx2698", "have one GID (100."},
                            {"name=mlx200,ll=ib", "name=mlx269,ll=ib", "have one LID ("}};

TEST_F(SoftDevices, Names_that_give_one_address_are_refused) {
  for (const Twins& twins : kTwins) {
    ::setenv("NORIA_SOFT_DEVICES", (std::string(twins.one) + ";" + twins.other).c_str(), 1);
    run_alone([&](Post&) {
      testing::internal::CaptureStderr();
      int count = 1;
      EXPECT_EQ(verbs().get_device_list(&count), nullptr);
      EXPECT_EQ(errno, EINVAL);
      const std::string said = testing::internal::GetCapturedStderr();
      EXPECT_NE(said.find(twins.text), std::string::npos) << said;
      EXPECT_NE(said.find("'/mlx2"), std::string::npos) << said;
    });
  }
}

TEST_F(SoftDevices, A_process_whose_device_has_the_address_of_ours_is_not_reached_there) {
  for (const Twins& twins : kTwins) {
    run_pair([&](Post& p) {
      ::setenv("NORIA_SOFT_DEVICES", p.side == 0 ? twins.one : twins.other, 1);
      testing::internal::CaptureStderr();
      const Hca hca;
      const auto cq = hca.make_cq();
      const auto qp = hca.make_qp(cq.get());
      hca.connect(qp.get(), p.peer, {.ack_timeout = 12, .retry_count = 1});
      ASSERT_EQ(post(qp.get(), {.opcode = IBV_WR_RDMA_WRITE, .id = 1}), 0);
      expect_completion(cq.get(), 1, IBV_WC_RETRY_EXC_ERR);
      p.peer.meet();
      const std::string said = testing::internal::GetCapturedStderr();
      EXPECT_NE(said.find(twins.text), std::string::npos) << said;
    });
  }
}

TEST_F(SoftDevices, A_path_of_the_other_link_layer_is_refused) {
  run_alone([](Post&) {
    const Hca infiniband(mlx0), ethernet(eth0);
    for (const auto& [own, other] :
         {std::pair(&infiniband, &ethernet), std::pair(&ethernet, &infiniband)}) {
      const auto cq = own->make_cq();
      const auto qp = own->make_qp(cq.get());
      EXPECT_EQ(to_init(qp.get(), kAllAccess), 0);
      EXPECT_EQ(to_rtr(qp.get(), other->address_of(qp.get()), {}), EINVAL);
      EXPECT_EQ(to_rtr(qp.get(), own->address_of(qp.get()), {}), 0);
    }
  });
}

TEST_F(SoftDevices, Keys_and_queues_of_another_device_are_unknown) {
  run_pair([](Post& p) {
    const Hca hca(mlx0), other(mlx1);
    const auto cq = hca.make_cq(), others = other.make_cq();
    // A completion queue of the other device.  Expect: refused.
    ibv_qp_init_attr attr{.send_cq = others.get(),
                          .recv_cq = cq.get(),
                          .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1},
                          .qp_type = IBV_QPT_RC};
    EXPECT_EQ(verbs().create_qp(hca.pd(), &attr), nullptr);
    EXPECT_EQ(errno, EINVAL);

    // Its memory region, in a request of a queue pair of ours.  Expect: no access.
    const auto qp = hca.make_qp(cq.get());
    const auto own = hca.make_buffer(4096), foreign = other.make_buffer(4096);
    hca.connect(qp.get(), p.peer);
    const auto remote = p.peer.exchange(Region{foreign->address(), foreign->rkey()});
    if (p.side == 0) {
      ASSERT_EQ(post(qp.get(), {.opcode = IBV_WR_RDMA_WRITE,
                                .id = 1,
                                .pieces = {{own.get(), 0, 64}},
                                .remote = remote}),
                0);
      expect_completion(cq.get(), 1, IBV_WC_REM_ACCESS_ERR);
    }
    p.peer.meet();
  });
}

// ---- ports that processes share -----------------------------------------------------------------

constexpr uint32_t kBytes = 2 << 20;
constexpr Nanoseconds kWireTime = kBytes;  // at 8 Gbit/s

// Two pairs of processes write at the same time, each pair between ports of its own but for the
// senders' host. When both are through, as seen by the one that is last.
Nanoseconds time_of_two_senders(const char* first_host, const char* second_host) {
  ::setenv("NORIA_SOFT_RATE_GBIT", "8", 1);
  const auto sender = [](const char* host, const char* target) {
    return Body([=](Post& p) {
      const std::string own = "name=d,host=" + std::string(host);
      const std::string far = ";name=t,host=" + std::string(target);
      ::setenv("NORIA_SOFT_DEVICES", (own + far).c_str(), 1);
      const Hca hca(0), there(1);
      const auto cq = hca.make_cq(), far_cq = there.make_cq();
      const auto qp = hca.make_qp(cq.get()), far_qp = there.make_qp(far_cq.get());
      const auto buffer = hca.make_buffer(kBytes), far_buffer = there.make_buffer(kBytes);
      hca.connect(qp.get(), there.address_of(far_qp.get()));
      there.connect(far_qp.get(), hca.address_of(qp.get()));
      p.parent.meet();
      const Nanoseconds start = now_ns();
      EXPECT_EQ(post(qp.get(), {.opcode = IBV_WR_RDMA_WRITE,
                                .id = 1,
                                .pieces = {{buffer.get(), 0, kBytes}},
                                .remote = {far_buffer->address(), far_buffer->rkey()}}),
                0);
      expect_completion(cq.get(), 1);
      p.parent.send(start);
      p.parent.send(now_ns());
      p.parent.meet();
    });
  };
  Crew crew({sender(first_host, "x"), sender(second_host, "y")});
  Nanoseconds first_start = INT64_MAX, last_end = 0;
  for (size_t side : {size_t{0}, size_t{1}}) crew.wire(side).recv<uint8_t>();
  for (size_t side : {size_t{0}, size_t{1}}) crew.wire(side).send(uint8_t{1});
  for (size_t side : {size_t{0}, size_t{1}}) {
    first_start = std::min(first_start, crew.wire(side).recv<Nanoseconds>());
    last_end = std::max(last_end, crew.wire(side).recv<Nanoseconds>());
  }
  for (size_t side : {size_t{0}, size_t{1}}) {
    crew.wire(side).meet();
    EXPECT_EQ(crew.wait(side).exit_code, 0);
  }
  ::unsetenv("NORIA_SOFT_RATE_GBIT");
  return last_end - first_start;
}

TEST_F(SoftDevices, Processes_that_name_one_host_share_its_port) {
  // Expect: both messages leave through one port, one after the other.
  EXPECT_GE(time_of_two_senders("a", "a"), 2 * kWireTime);
}

TEST_F(SoftDevices, Each_of_two_hosts_has_its_own_port) {
  EXPECT_GE(time_of_two_senders("a", "b"), kWireTime);
}

}  // namespace
}  // namespace noria::test
