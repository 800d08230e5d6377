// Limits that two sides must agree on, or that a program must keep to: whoever passes one is told.

#include <sys/mman.h>

#include <set>

#include "tests/support/verbs_link.hpp"

namespace noria::test {
namespace {

// Side 0 posts `requests` in one call to a target that answers `theirs` reads at a time.
void post_list(const Link& link, const std::vector<SendSpec>& requests) {
  std::vector<ibv_sge> sges(requests.size());
  std::vector<ibv_send_wr> wrs(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    const SendSpec& r = requests[i];
    const Piece& piece = r.pieces[0];
    sges[i] = {piece.buffer->address() + piece.offset, piece.bytes, piece.buffer->lkey()};
    wrs[i] = {.wr_id = r.id,
              .next = i + 1 < requests.size() ? &wrs[i + 1] : nullptr,
              .sg_list = &sges[i],
              .num_sge = 1,
              .opcode = r.opcode,
              .send_flags = r.flags};
    wrs[i].wr.rdma.remote_addr = r.remote.address;
    wrs[i].wr.rdma.rkey = r.remote.rkey;
  }
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(link.qp.get(), wrs.data(), &bad), 0);
}

constexpr unsigned kFenced = IBV_SEND_SIGNALED | IBV_SEND_FENCE;

SendSpec read_of(const Link& link, uint64_t id, unsigned flags) {
  SendSpec spec = link.read(id, 64, link.remote);
  spec.flags = flags;
  return spec;
}

// A link whose initiator may have 16 reads under way and whose target answers `theirs`.
LinkSpec depths(const Post& p, uint8_t theirs) {
  return {.connect = {.reads_in_flight = p.side == 0 ? uint8_t{16} : theirs}};
}

TEST(VerbsLimits, More_reads_under_way_than_the_target_answers_are_an_invalid_request) {
  run_pair([](Post& p) {
    Link link(p, depths(p, 1));
    if (p.side == 0) {
      post_list(link, {read_of(link, 1, IBV_SEND_SIGNALED), read_of(link, 2, IBV_SEND_SIGNALED)});
      expect_completion(link.cq.get(), 1, IBV_WC_REM_INV_REQ_ERR);
      expect_completion(link.cq.get(), 2, IBV_WC_WR_FLUSH_ERR);
    } else {
      wait_until([&] { return is_empty(link.cq.get()) && link.state() == IBV_QPS_ERR; },
                 "the error at the target");
    }
    link.wire.meet();
  });
}

TEST(VerbsLimits, As_many_reads_as_the_target_answers_are_well_however_deep_the_initiator) {
  run_pair([](Post& p) {
    Link link(p, depths(p, 2));
    if (p.side == 0) {
      // One after the other, two at once, many that wait for each other by a fence.
      for (uint64_t i = 0; i < 20; ++i) {
        ASSERT_EQ(post(link.qp.get(), read_of(link, i, IBV_SEND_SIGNALED)), 0);
        expect_completion(link.cq.get(), i);
      }
      post_list(link, {read_of(link, 1, IBV_SEND_SIGNALED), read_of(link, 2, IBV_SEND_SIGNALED)});
      for (uint64_t i = 1; i <= 2; ++i) expect_completion(link.cq.get(), i);
      std::vector<SendSpec> fenced;
      for (uint64_t i = 0; i < 10; ++i) fenced.push_back(read_of(link, i, kFenced));
      post_list(link, fenced);
      for (uint64_t i = 0; i < 10; ++i) expect_completion(link.cq.get(), i);
    }
    link.wire.meet();
  });
}

TEST(VerbsLimits, A_queue_without_room_for_reads_reads_nothing) {
  run_pair([](Post& p) {
    Link link(p, {.connect = {.reads_in_flight = p.side == 0 ? uint8_t{0} : uint8_t{16}}});
    if (p.side == 0) {
      ASSERT_EQ(post(link.qp.get(), read_of(link, 1, IBV_SEND_SIGNALED)), 0);
      expect_completion(link.cq.get(), 1, IBV_WC_LOC_QP_OP_ERR);
    }
    link.wire.meet();
    EXPECT_EQ(link.state(), p.side == 0 ? IBV_QPS_ERR : IBV_QPS_RTS);
    link.wire.meet();
  });
}

// What side 0 is told of `bytes` where it has packets of 1024 bytes and side 1 of 4096.
void expect_at_mtu(ibv_wr_opcode opcode, uint32_t bytes, ibv_wc_status status) {
  run_pair([=](Post& p) {
    Link link(p, {.connect = {.mtu = p.side == 0 ? IBV_MTU_1024 : IBV_MTU_4096}});
    ASSERT_EQ(p.side == 1 ? post_recv(link.qp.get(), 9, link.piece(0, 8192)) : 0, 0);
    link.wire.meet();
    if (p.side == 0) {
      ASSERT_EQ(
          post(link.qp.get(),
               {.opcode = opcode, .id = 1, .pieces = link.piece(0, bytes), .remote = link.remote}),
          0);
      expect_completion(link.cq.get(), 1, status);
    }
    link.wire.meet();
  });
}

TEST(VerbsLimits, Sides_that_differ_in_path_mtu_pass_single_packets_only) {
  for (const ibv_wr_opcode opcode : {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
    expect_at_mtu(opcode, 1024, IBV_WC_SUCCESS);
    expect_at_mtu(opcode, 1025,
                  opcode == IBV_WR_RDMA_READ ? IBV_WC_BAD_RESP_ERR : IBV_WC_REM_INV_REQ_ERR);
  }
}

TEST(VerbsLimits, Memory_is_registered_only_with_the_access_that_it_has) {
  Crew crew({[](Post&) {
    Hca hca;
    constexpr size_t kPages = 3 * 4096;
    void* base = mmap(nullptr, kPages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(base, MAP_FAILED);
    auto* middle = static_cast<uint8_t*>(base) + 4096;
    const auto registers = [&](void* start, size_t bytes, int access) {
      errno = 0;
      const Owned<ibv_mr> mr(verbs().reg_mr(hca.pd(), start, bytes, access));
      EXPECT_TRUE(mr != nullptr || errno == EFAULT) << errno;
      return mr != nullptr;
    };
    EXPECT_TRUE(registers(base, kPages, kAllAccess));

    // The page in the middle read-only, then not even that, then gone.
    ASSERT_EQ(mprotect(middle, 4096, PROT_READ), 0);
    EXPECT_FALSE(registers(base, kPages, IBV_ACCESS_LOCAL_WRITE));
    EXPECT_FALSE(registers(middle, 1, kAllAccess));
    EXPECT_TRUE(registers(base, kPages, IBV_ACCESS_REMOTE_READ));
    EXPECT_TRUE(registers(base, 4096, kAllAccess));
    EXPECT_TRUE(registers(middle + 4096, 4096, kAllAccess));
    ASSERT_EQ(mprotect(middle, 4096, PROT_NONE), 0);
    EXPECT_FALSE(registers(base, kPages, 0));
    ASSERT_EQ(munmap(middle, 4096), 0);
    EXPECT_FALSE(registers(base, kPages, 0));
    EXPECT_TRUE(registers(base, 0, kAllAccess));
  }});
  EXPECT_EQ(crew.wait(0).exit_code, 0);
}

TEST(VerbsLimits, A_device_has_what_it_says_and_not_one_more) {
  Crew crew({[](Post&) {
    Hca hca;
    ibv_device_attr limits{};
    ASSERT_EQ(verbs().query_device(hca.context(), &limits), 0);
    const auto cq = hca.make_cq();
    const auto makes = [&](const ibv_qp_cap& cap) {
      ibv_qp_init_attr attr{
          .send_cq = cq.get(), .recv_cq = cq.get(), .cap = cap, .qp_type = IBV_QPT_RC};
      return Owned<ibv_qp>(verbs().create_qp(hca.pd(), &attr)) != nullptr;
    };
    const auto wrs = static_cast<uint32_t>(limits.max_qp_wr);
    const auto sges = static_cast<uint32_t>(limits.max_sge);
    EXPECT_TRUE(makes(
        {.max_send_wr = wrs, .max_recv_wr = wrs, .max_send_sge = sges, .max_recv_sge = sges}));
    EXPECT_FALSE(makes({.max_send_wr = wrs + 1, .max_send_sge = 1}));
    EXPECT_FALSE(makes({.max_recv_wr = wrs + 1, .max_recv_sge = 1}));
    EXPECT_FALSE(makes({.max_send_wr = 1, .max_send_sge = sges + 1}));
    EXPECT_FALSE(makes({.max_recv_wr = 1, .max_recv_sge = sges + 1}));

    const auto makes_cq = [&](int entries) {
      return Owned<ibv_cq>(verbs().create_cq(hca.context(), entries, nullptr, nullptr, 0)) !=
             nullptr;
    };
    EXPECT_TRUE(makes_cq(limits.max_cqe));
    EXPECT_FALSE(makes_cq(limits.max_cqe + 1));
    EXPECT_FALSE(makes_cq(0));
  }});
  EXPECT_EQ(crew.wait(0).exit_code, 0);
}

TEST(VerbsLimits, An_overrun_costs_the_completion_queue_and_every_queue_pair_that_uses_it) {
  run_pair([](Post& p) {
    Hca hca;
    const auto small = hca.make_cq(2), large = hca.make_cq();
    const auto lost = hca.make_qp(small.get()), other = hca.make_qp(large.get(), small.get());
    hca.connect(lost.get(), p.peer);
    hca.connect(other.get(), p.peer);
    if (p.side == 0) {
      for (uint64_t i = 0; i < 4; ++i)
        ASSERT_EQ(post(lost.get(), {.opcode = IBV_WR_RDMA_WRITE, .id = i}), 0);
      // Expect: first the queue, then both queue pairs, though one of them only receives there.
      const ibv_async_event first = next_event(hca);
      EXPECT_EQ(first.event_type, IBV_EVENT_CQ_ERR);
      EXPECT_EQ(first.element.cq, small.get());
      std::set<const ibv_qp*> gone;
      for (int i = 0; i < 2; ++i) {
        const ibv_async_event event = next_event(hca);
        EXPECT_EQ(event.event_type, IBV_EVENT_QP_FATAL);
        gone.insert(event.element.qp);
      }
      EXPECT_EQ(gone, (std::set<const ibv_qp*>{lost.get(), other.get()}));
      ibv_wc wc{};
      EXPECT_LT(ibv_poll_cq(small.get(), 1, &wc), 0);
      ASSERT_EQ(post(other.get(), {.opcode = IBV_WR_RDMA_WRITE, .id = 7}), 0);
      expect_completion(large.get(), 7, IBV_WC_WR_FLUSH_ERR);
    }
    p.peer.meet();
  });
}

}  // namespace
}  // namespace noria::test
