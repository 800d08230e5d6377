// Fetch-and-add, compare-and-swap, and memory registered by its descriptor.

#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/verbs_link.hpp"

namespace noria::test {
namespace {

NORIA_TEST_BOTH_MEMORIES(VerbsAtomic);

constexpr int kAtomicAccess = kAllAccess | IBV_ACCESS_REMOTE_ATOMIC;
constexpr uint64_t kResult = 1024;  // where in our buffer the answer goes

LinkSpec atomic_link(Memory memory) {
  return {.memory = memory,
          .access = kAtomicAccess,
          .connect = {.access = kAtomicAccess & ~IBV_ACCESS_LOCAL_WRITE}};
}

uint64_t word_at(const Buffer& buffer, uint64_t offset) {
  uint64_t word = 0;
  std::memcpy(&word, buffer.data() + offset, sizeof word);
  return word;
}

SendSpec add_to(const Link& link, Region where, uint64_t what) {
  return {.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
          .id = 1,
          .pieces = link.piece(kResult, 8),
          .remote = where,
          .compare_add = what};
}

// Posts an atomic that must succeed, and gives what was there before.
uint64_t run(const Link& link, const SendSpec& spec, ibv_wc_opcode as) {
  EXPECT_EQ(post(link.qp.get(), spec), 0);
  const ibv_wc wc = expect_completion(link.cq.get(), spec.id);
  EXPECT_EQ(wc.opcode, as);
  EXPECT_EQ(wc.byte_len, 8u);
  return word_at(*link.buffer, kResult);
}

TEST_P(VerbsAtomic, Changes_the_word_and_brings_back_what_was_there) {
  run_pair([](Post& p) {
    Link link(p, atomic_link(GetParam()));
    const auto side = static_cast<uint64_t>(p.side);
    // Each side changes the other's word at 64, between two that stay.
    const uint64_t start[] = {7, 1000 + side, 9};
    std::memcpy(link.buffer->data() + 56, start, sizeof start);
    link.wire.meet();
    const uint64_t theirs = 1000 + (side ^ 1);
    EXPECT_EQ(run(link, add_to(link, link.at(64), 5), IBV_WC_FETCH_ADD), theirs);
    // Around the end of the range.
    EXPECT_EQ(run(link, add_to(link, link.at(64), UINT64_MAX), IBV_WC_FETCH_ADD), theirs + 5);
    SendSpec swap = add_to(link, link.at(64), theirs);
    swap.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
    swap.swap = 77;
    // Something else is there, then what was asked for.
    EXPECT_EQ(run(link, swap, IBV_WC_COMP_SWAP), theirs + 4);
    swap.compare_add = theirs + 4;
    EXPECT_EQ(run(link, swap, IBV_WC_COMP_SWAP), theirs + 4);
    link.wire.meet();
    EXPECT_EQ(word_at(*link.buffer, 56), 7u);
    EXPECT_EQ(word_at(*link.buffer, 64), 77u);
    EXPECT_EQ(word_at(*link.buffer, 72), 9u);
    link.wire.meet();
  });
}

TEST_P(VerbsAtomic, Is_one_step_for_all_who_add_at_once) {
  constexpr uint64_t kRounds = 200;
  run_pair([](Post& p) {
    Link link(p, atomic_link(GetParam()));
    // Both add to side 1's word: side 1 through a connection to itself.
    const auto cq = link.hca.make_cq();
    const auto a = link.hca.make_qp(cq.get()), b = link.hca.make_qp(cq.get());
    link.hca.connect(a.get(), link.hca.address_of(b.get()), link.spec.connect);
    link.hca.connect(b.get(), link.hca.address_of(a.get()), link.spec.connect);
    const Region word =
        p.side == 0 ? link.at(64) : Region{link.buffer->address() + 64, link.buffer->rkey()};
    link.wire.meet();
    uint64_t before = 0;
    for (uint64_t i = 0; i < kRounds; ++i) {
      ibv_qp* qp = p.side == 0 ? link.qp.get() : a.get();
      ASSERT_EQ(post(qp, add_to(link, word, 1)), 0);
      expect_completion(p.side == 0 ? link.cq.get() : cq.get(), 1);
      const uint64_t found = word_at(*link.buffer, kResult);
      ASSERT_TRUE(i == 0 || found > before) << found;
      before = found;
    }
    link.wire.meet();
    if (p.side == 1) {
      EXPECT_EQ(word_at(*link.buffer, 64), 2 * kRounds);
    }
    link.wire.meet();
  });
}

// Side 0 posts what `make` gives and is told `status`; side 1's word stays.
void expect_refusal(ibv_wc_status status, SendSpec (*make)(const Link&), int access = kAtomicAccess,
                    int qp_access = kAtomicAccess) {
  run_pair([=](Post& p) {
    LinkSpec spec = atomic_link(Memory::plain);
    if (p.side == 1) {
      spec.access = access;
      spec.connect.access = qp_access & ~IBV_ACCESS_LOCAL_WRITE;
    }
    Link link(p, spec);
    if (p.side == 0) {
      ASSERT_EQ(post(link.qp.get(), make(link)), 0);
      expect_completion(link.cq.get(), 1, status);
    }
    link.wire.meet();
    EXPECT_EQ(word_at(*link.buffer, 64), 0u);
    link.wire.meet();
  });
}

TEST(VerbsAtomicErrors, Are_those_of_the_specification) {
  // Not on a boundary of eight bytes.
  expect_refusal(IBV_WC_REM_INV_REQ_ERR, [](const Link& l) { return add_to(l, l.at(68), 1); });
  // A key that is not one, a region and a queue pair that do not allow it.
  expect_refusal(IBV_WC_REM_ACCESS_ERR, [](const Link& l) {
    return add_to(l, {l.remote.address + 64, l.remote.rkey ^ 0x40}, 1);
  });
  constexpr auto add = [](const Link& l) { return add_to(l, l.at(64), 1); };
  expect_refusal(IBV_WC_REM_ACCESS_ERR, add, kAllAccess);
  expect_refusal(IBV_WC_REM_ACCESS_ERR, add, kAtomicAccess, kAllAccess);
  // An answer of eight bytes into four.
  expect_refusal(IBV_WC_LOC_LEN_ERR, [](const Link& l) {
    SendSpec spec = add_to(l, l.at(64), 1);
    spec.pieces = l.piece(kResult, 4);
    return spec;
  });
}

TEST(VerbsAtomicErrors, The_device_says_that_it_has_atomics) {
  Crew crew({[](Post&) {
    Hca hca;
    ibv_device_attr limits{};
    ASSERT_EQ(verbs().query_device(hca.context(), &limits), 0);
    EXPECT_EQ(limits.atomic_cap, IBV_ATOMIC_HCA);
  }});
  EXPECT_EQ(crew.wait(0).exit_code, 0);
}

TEST(VerbsFileMemory, Is_written_and_read_by_its_offset_and_its_iova) {
  run_pair([](Post& p) {
    Link link(p);
    constexpr uint64_t kFileBytes = 4 * 4096, kOffset = 4096 + 512, kBytes = 8192, kIova = 1 << 20;
    const int fd = memfd_create("exported", MFD_CLOEXEC);
    ASSERT_GE(fd, 0);
    ASSERT_EQ(ftruncate(fd, kFileBytes), 0);
    Owned<ibv_mr> mr(verbs().reg_dmabuf_mr(link.hca.pd(), kOffset, kBytes, kIova, fd, kAllAccess));
    ASSERT_NE(mr, nullptr) << errno;
    const Region theirs = link.wire.exchange(Region{kIova, mr->rkey});
    const auto side = static_cast<uint64_t>(p.side);
    paint(link.buffer->data(), kBytes, side);
    ASSERT_EQ(post(link.qp.get(), link.write(1, kBytes, theirs)), 0);
    expect_completion(link.cq.get(), 1);
    // What was written is another device's to see once a read of it has come through the same one.
    ASSERT_EQ(post(link.qp.get(), {.opcode = IBV_WR_RDMA_READ,
                                   .id = 2,
                                   .pieces = link.piece(kBytes, 1),
                                   .remote = theirs}),
              0);
    expect_completion(link.cq.get(), 2);
    link.wire.meet();
    // Expect: the peer's bytes in the file, from the offset on, and nothing beside them.
    std::vector<uint8_t> file(kFileBytes);
    ASSERT_EQ(pread(fd, file.data(), kFileBytes, 0), static_cast<ssize_t>(kFileBytes));
    EXPECT_EQ(first_wrong(file.data() + kOffset, kBytes, side ^ 1), kBytes);
    EXPECT_EQ(file[kOffset - 1], 0);
    EXPECT_EQ(file[kOffset + kBytes], 0);
    link.wire.meet();
    // What is in the file is what the peer reads.
    paint(file.data(), kBytes, side + 2);
    ASSERT_EQ(pwrite(fd, file.data(), kBytes, kOffset), static_cast<ssize_t>(kBytes));
    link.wire.meet();
    ASSERT_EQ(post(link.qp.get(), link.read(3, kBytes, theirs)), 0);
    expect_completion(link.cq.get(), 3);
    EXPECT_EQ(first_wrong(link.buffer->data(), kBytes, (side ^ 1) + 2), kBytes);
    link.wire.meet();
    // Gone.  Expect: the key is dead.
    mr.reset();
    link.wire.meet();
    if (p.side == 0) {
      ASSERT_EQ(post(link.qp.get(), link.write(4, 8, theirs)), 0);
      expect_completion(link.cq.get(), 4, IBV_WC_REM_ACCESS_ERR);
    }
    link.wire.meet();
    close(fd);
  });
}

TEST(VerbsFileMemory, Is_not_registered_beyond_its_end_or_without_a_descriptor) {
  Crew crew({[](Post&) {
    Hca hca;
    const int fd = memfd_create("exported", MFD_CLOEXEC);
    ASSERT_GE(fd, 0);
    ASSERT_EQ(ftruncate(fd, 4096), 0);
    const auto fails_with = [&](uint64_t offset, size_t bytes, int descriptor) {
      errno = 0;
      return verbs().reg_dmabuf_mr(hca.pd(), offset, bytes, 0, descriptor, 0) == nullptr ? errno
                                                                                         : 0;
    };
    EXPECT_EQ(fails_with(0, 4097, fd), EINVAL);
    EXPECT_EQ(fails_with(4096, 1, fd), EINVAL);
    EXPECT_EQ(fails_with(UINT64_MAX, 2, fd), EINVAL);
    EXPECT_EQ(fails_with(0, 0, fd), EINVAL);
    EXPECT_EQ(fails_with(0, 1, -1), EBADF);
    close(fd);
  }});
  EXPECT_EQ(crew.wait(0).exit_code, 0);
}

}  // namespace
}  // namespace noria::test
