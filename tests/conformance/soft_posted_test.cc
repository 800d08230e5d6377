// Memory registered by its descriptor belongs to another device: where payload is placed late, what
// arrives there is not seen before something has read it through the same network device.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "tests/support/verbs_link.hpp"

namespace noria::test {
namespace {

constexpr uint64_t kBytes = 256 << 10;

// A file in memory that stands for another device's: registered by its descriptor, and what that
// device itself sees of it.
class Exported {
 public:
  explicit Exported(const Hca& hca) : fd_(memfd_create("exported", MFD_CLOEXEC)) {
    EXPECT_EQ(ftruncate(fd_, kBytes), 0);
    view_ = static_cast<uint8_t*>(mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, fd_, 0));
    EXPECT_NE(view_, MAP_FAILED);
    mr_.reset(
        verbs().reg_dmabuf_mr(hca.pd(), 0, kBytes, 0, fd_, kAllAccess | IBV_ACCESS_REMOTE_ATOMIC));
    EXPECT_NE(mr_, nullptr) << "errno " << errno;
  }
  ~Exported() {
    mr_.reset();
    munmap(view_, kBytes);
    close(fd_);
  }
  Exported(const Exported&) = delete;
  Exported& operator=(const Exported&) = delete;

  Region at(uint64_t offset) const { return {offset, mr_->rkey}; }
  ibv_sge piece(uint64_t offset, uint32_t bytes) const { return {offset, bytes, mr_->lkey}; }
  // Whether the device sees the peer's `bytes` from the start on; it sees all or none.
  bool sees(uint64_t seed, uint64_t bytes) const {
    const size_t wrong = first_wrong(view_, bytes, seed);
    EXPECT_TRUE(wrong == bytes ||
                std::all_of(view_, view_ + bytes, [](uint8_t b) { return b == 0; }))
        << "some of it, up to byte " << wrong;
    return wrong == bytes;
  }
  void deregister() { mr_.reset(); }

 private:
  int fd_;
  uint8_t* view_ = nullptr;
  Owned<ibv_mr> mr_;
};

// A device with memory of another behind it, and a connection to itself.
struct Node {
  Hca hca;
  Owned<ibv_cq> cq = hca.make_cq();
  Owned<ibv_qp> qp = hca.make_qp(cq.get()), other = hca.make_qp(cq.get());
  std::unique_ptr<Buffer> buffer = hca.make_buffer(2 * kBytes);
  Exported exported{hca};

  explicit Node(int device = 0) : hca(device) {
    ConnectSpec spec;
    spec.access |= IBV_ACCESS_REMOTE_ATOMIC;
    hca.connect(qp.get(), hca.address_of(other.get()), spec);
    hca.connect(other.get(), hca.address_of(qp.get()), spec);
    paint(buffer->data(), kBytes, 1);
  }
  void run(const SendSpec& spec) const {
    ASSERT_EQ(post(qp.get(), spec), 0);
    expect_completion(cq.get(), spec.id);
  }
  void write(uint32_t bytes) const {
    run({.opcode = IBV_WR_RDMA_WRITE,
         .id = 1,
         .pieces = {{buffer.get(), 0, bytes}},
         .remote = exported.at(0)});
  }
  // Reads the last byte: whichever is read, all that was posted before comes first.
  void flush() const {
    run({.opcode = IBV_WR_RDMA_READ,
         .id = 2,
         .pieces = {{buffer.get(), kBytes, 1}},
         .remote = exported.at(kBytes - 1)});
  }
};

void run_alone(const Body& body) {
  Crew crew({body});
  EXPECT_EQ(crew.wait(0).exit_code, 0);
}

TEST(SoftPosted, A_write_is_seen_after_a_read_and_not_before) {
  run_alone([](Post&) {
    for (const uint32_t bytes : {8u, 4096u, 200000u}) {
      const Node node;
      ASSERT_NO_FATAL_FAILURE(node.write(bytes));
      EXPECT_FALSE(node.exported.sees(1, bytes)) << bytes;
      ASSERT_NO_FATAL_FAILURE(node.flush());
      EXPECT_TRUE(node.exported.sees(1, bytes)) << bytes;
    }
  });
}

TEST(SoftPosted, The_read_may_be_the_peers) {
  run_pair([](Post& p) {
    Link link(p, {.bytes = 2 * kBytes});
    Exported exported(link.hca);
    const Region theirs = link.wire.exchange(exported.at(0));
    paint(link.buffer->data(), kBytes, static_cast<uint64_t>(p.side) + 1);
    const auto seed = static_cast<uint64_t>(p.side ^ 1) + 1;
    ASSERT_EQ(post(link.qp.get(), link.write(1, kBytes, theirs)), 0);
    expect_completion(link.cq.get(), 1);
    link.wire.meet();
    EXPECT_FALSE(exported.sees(seed, kBytes));
    link.wire.meet();
    ASSERT_EQ(post(link.qp.get(), {.opcode = IBV_WR_RDMA_READ,
                                   .id = 2,
                                   .pieces = link.piece(kBytes, kBytes),
                                   .remote = theirs}),
              0);
    expect_completion(link.cq.get(), 2);
    // Expect: what was written is what is read, and then it is seen.
    EXPECT_EQ(std::memcmp(link.buffer->data(), link.buffer->data() + kBytes, kBytes), 0);
    link.wire.meet();
    EXPECT_TRUE(exported.sees(seed, kBytes));
    link.wire.meet();
  });
}

TEST(SoftPosted, A_message_is_seen_after_a_read_and_not_before) {
  run_alone([](Post&) {
    for (const uint32_t bytes : {8u, 200u, 4096u}) {
      const Node node;
      ibv_sge sge = node.exported.piece(0, bytes);
      ibv_recv_wr receive{.wr_id = 3, .sg_list = &sge, .num_sge = 1};
      ibv_recv_wr* bad = nullptr;
      ASSERT_EQ(ibv_post_recv(node.other.get(), &receive, &bad), 0);
      ASSERT_EQ(post(node.qp.get(), {.id = 1, .pieces = {{node.buffer.get(), 0, bytes}}}), 0);
      for (int i = 0; i < 2; ++i) EXPECT_EQ(wait_completion(node.cq.get()).status, IBV_WC_SUCCESS);
      EXPECT_FALSE(node.exported.sees(1, bytes)) << bytes;
      ASSERT_NO_FATAL_FAILURE(node.flush());
      EXPECT_TRUE(node.exported.sees(1, bytes)) << bytes;
    }
  });
}

TEST(SoftPosted, An_answer_is_seen_after_another_read_and_not_before) {
  run_alone([](Post&) {
    for (const uint32_t bytes : {64u, 200000u}) {
      const Node node;
      ibv_sge sge = node.exported.piece(0, bytes);
      ibv_send_wr read{.wr_id = 1,
                       .sg_list = &sge,
                       .num_sge = 1,
                       .opcode = IBV_WR_RDMA_READ,
                       .send_flags = IBV_SEND_SIGNALED};
      read.wr.rdma = {node.buffer->address(), node.buffer->rkey()};
      ibv_send_wr* bad = nullptr;
      ASSERT_EQ(ibv_post_send(node.qp.get(), &read, &bad), 0);
      expect_completion(node.cq.get(), 1);
      EXPECT_FALSE(node.exported.sees(1, bytes)) << bytes;
      ASSERT_NO_FATAL_FAILURE(node.flush());
      EXPECT_TRUE(node.exported.sees(1, bytes)) << bytes;
    }
  });
}

TEST(SoftPosted, What_is_sent_on_from_there_is_what_arrived) {
  run_alone([](Post&) {
    const Node node;
    ASSERT_NO_FATAL_FAILURE(node.write(4096));
    ibv_sge sge = node.exported.piece(0, 4096);
    ibv_send_wr write{.wr_id = 2,
                      .sg_list = &sge,
                      .num_sge = 1,
                      .opcode = IBV_WR_RDMA_WRITE,
                      .send_flags = IBV_SEND_SIGNALED};
    write.wr.rdma = {node.buffer->address() + kBytes, node.buffer->rkey()};
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_send(node.qp.get(), &write, &bad), 0);
    expect_completion(node.cq.get(), 2);
    EXPECT_EQ(first_wrong(node.buffer->data() + kBytes, 4096, 1), 4096u);
  });
}

TEST(SoftPosted, An_atomic_reads_too) {
  run_alone([](Post&) {
    const Node node;
    ASSERT_NO_FATAL_FAILURE(node.write(4096));
    ASSERT_NO_FATAL_FAILURE(node.run({.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
                                      .id = 3,
                                      .pieces = {{node.buffer.get(), kBytes, 8}},
                                      .remote = node.exported.at(8192)}));
    EXPECT_TRUE(node.exported.sees(1, 4096));
  });
}

TEST(SoftPosted, A_read_through_another_device_shows_nothing) {
  ::setenv("XDG_RUNTIME_DIR", testing::TempDir().c_str(), 1);
  ::setenv("NORIA_SOFT_DEVICES", "name=mlx0;name=mlx1", 1);
  run_alone([](Post&) {
    const Node first(0), second(1);
    ASSERT_NO_FATAL_FAILURE(first.write(4096));
    ASSERT_NO_FATAL_FAILURE(second.flush());
    EXPECT_FALSE(first.exported.sees(1, 4096));
    ASSERT_NO_FATAL_FAILURE(first.flush());
    EXPECT_TRUE(first.exported.sees(1, 4096));
  });
  ::unsetenv("NORIA_SOFT_DEVICES");
}

TEST(SoftPosted, A_region_that_ends_leaves_nothing_behind) {
  run_alone([](Post&) {
    Node node;
    ASSERT_NO_FATAL_FAILURE(node.write(4096));
    EXPECT_FALSE(node.exported.sees(1, 4096));
    node.exported.deregister();
    EXPECT_TRUE(node.exported.sees(1, 4096));
  });
}

TEST(SoftPosted, A_bus_has_no_room_for_very_much) {
  run_alone([](Post&) {
    const Node node;
    for (uint64_t bytes = 0; bytes <= 16 << 20; bytes += kBytes)
      ASSERT_NO_FATAL_FAILURE(node.write(kBytes));
    EXPECT_TRUE(node.exported.sees(1, kBytes));
  });
}

}  // namespace
}  // namespace noria::test
