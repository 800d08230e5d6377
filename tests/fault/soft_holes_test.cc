// Registered memory whose pages are gone, which hardware keeps and a copy by the kernel finds out:
// the request that meets the hole fails, what stands before it is through, nothing behind it lands.

#include <sys/mman.h>

#include "tests/support/verbs_link.hpp"

namespace noria::test {
namespace {

constexpr uint32_t kPage = 4096;
constexpr uint64_t kRequests = 8;
constexpr uint64_t kHole = 5;  // the request that meets it

// Takes the page away, but for its address: nobody else may get that.
void make_hole(const Link& link, uint64_t page) {
  ASSERT_EQ(::mprotect(link.buffer->data() + page * kPage, kPage, PROT_NONE), 0);
}

// One request a page, from or to the same page there. Both sides get the buffer before.
template <class Prepare, class Look>
void run_list(ibv_wr_opcode opcode, Prepare prepare, Look look) {
  run_pair([&](Post& p) {
    Link link(p, {.bytes = kRequests * kPage});
    paint(link.buffer->data(), kRequests * kPage, static_cast<uint64_t>(p.side));
    prepare(p.side, link);
    link.wire.meet();
    if (p.side == 0) {
      std::vector<SendSpec> list;
      for (uint64_t i = 0; i < kRequests; ++i)
        list.push_back({.opcode = opcode,
                        .id = i,
                        .pieces = link.piece(i * kPage, kPage),
                        .remote = link.at(i * kPage)});
      ASSERT_EQ(post_list(link.qp.get(), list), 0);
      for (uint64_t i = 0; i < kRequests; ++i)
        expect_completion(link.cq.get(), i,
                          i < kHole    ? IBV_WC_SUCCESS
                          : i == kHole ? IBV_WC_REM_ACCESS_ERR
                                       : IBV_WC_WR_FLUSH_ERR);
    }
    link.wire.meet();
    look(p.side, link);
    link.wire.meet();
  });
}

// `link` holds side 1's or 0's pattern up to the hole, its own behind it.
void expect_bytes(const Link& link, uint64_t before, uint64_t behind) {
  EXPECT_EQ(first_wrong(link.buffer->data(), kHole * kPage, before), kHole * kPage);
  const uint64_t at = (kHole + 1) * kPage, bytes = kRequests * kPage - at;
  EXPECT_EQ(first_wrong(link.buffer->data() + at, bytes, behind, at), bytes);
}

TEST(SoftHoles, A_list_of_writes_ends_at_a_page_that_the_target_lacks) {
  run_list(
      IBV_WR_RDMA_WRITE,
      [](int side, const Link& link) {
        if (side == 1) make_hole(link, kHole);
      },
      [](int side, const Link& link) {
        if (side == 1) expect_bytes(link, 0, 1);
      });
}

TEST(SoftHoles, A_list_of_writes_ends_at_a_page_that_is_lacking_here) {
  run_list(
      IBV_WR_RDMA_WRITE,
      [](int side, const Link& link) {
        if (side == 0) make_hole(link, kHole);
      },
      [](int side, const Link& link) {
        if (side == 1) expect_bytes(link, 0, 1);
      });
}

TEST(SoftHoles, A_list_of_reads_ends_at_a_page_that_the_target_lacks) {
  run_list(
      IBV_WR_RDMA_READ,
      [](int side, const Link& link) {
        if (side == 1) make_hole(link, kHole);
      },
      [](int side, const Link& link) {
        if (side == 0) expect_bytes(link, 1, 0);
      });
}

}  // namespace
}  // namespace noria::test
