#include "verbs/soft/own_pages.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/utsname.h>

#include <cstdio>

namespace noria::soft {
namespace {

constexpr size_t kPage = 4096;

// `pages` writable pages with nothing mapped behind them.
class Pages {
 public:
  explicit Pages(size_t pages) : bytes_(pages * kPage) {
    void* base =
        ::mmap(nullptr, bytes_ + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(base, MAP_FAILED);
    base_ = static_cast<std::byte*>(base);
    ::munmap(base_ + bytes_, kPage);
  }
  ~Pages() { ::munmap(base_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  void protect(size_t page, int access) const {
    EXPECT_EQ(::mprotect(base_ + page * kPage, kPage, access), 0);
  }
  bool may(bool for_writing) const { return may_at(0, bytes_, for_writing); }
  bool may_at(size_t offset, size_t bytes, bool for_writing) const {
    return has_pages(reinterpret_cast<uint64_t>(base_) + offset, bytes, for_writing);
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_;
  std::byte* base_ = nullptr;
};

TEST(OwnPages, Of_a_short_range_are_all_looked_at) {
  for (const size_t bad : {0u, 1u, 2u}) {
    const Pages pages(3);
    EXPECT_TRUE(pages.may(true));
    pages.protect(bad, PROT_READ);

    // Expect:
    EXPECT_FALSE(pages.may(true));
    EXPECT_TRUE(pages.may(false));
    pages.protect(bad, PROT_NONE);
    EXPECT_FALSE(pages.may(false));
  }
}

// Linux 6.11 and later.
bool is_told_mappings() {
  utsname kernel{};
  int major = 0, minor = 0;
  EXPECT_EQ(::uname(&kernel), 0);
  EXPECT_EQ(std::sscanf(kernel.release, "%d.%d", &major, &minor), 2) << kernel.release;
  return major > 6 || (major == 6 && minor >= 11);
}

TEST(OwnPages, Of_a_long_range_are_all_looked_at_where_the_kernel_tells_mappings) {
  const Pages pages(256);
  EXPECT_TRUE(pages.may(true));
  pages.protect(128, PROT_READ);

  // Expect:
  EXPECT_EQ(pages.may(true), !is_told_mappings());
  EXPECT_TRUE(pages.may(false));
  pages.protect(255, PROT_READ);
  EXPECT_FALSE(pages.may(true));
}

TEST(OwnPages, Count_from_their_first_byte_to_their_last) {
  const Pages pages(32);
  EXPECT_TRUE(pages.may_at(1, pages.bytes() - 1, true));
  EXPECT_TRUE(pages.may_at(pages.bytes() - 1, 1, true));
  EXPECT_FALSE(pages.may_at(pages.bytes() - 1, 2, true));
  EXPECT_FALSE(pages.may_at(0, pages.bytes() + 1, false));
  EXPECT_TRUE(pages.may_at(pages.bytes(), 0, true));
}

}  // namespace
}  // namespace noria::soft
