#include "bucketing/slot_lines.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <vector>

namespace noria::bucketing {
namespace {

std::vector<std::byte> some_bytes(size_t bytes) {
  std::vector<std::byte> data(bytes);
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(i * 7 + i / 251);
  return data;
}

TEST(SlotLines, Are_read_in_order_and_whole_and_hold_what_they_held) {
  for (const size_t bytes : {0, 1, 63, 64, 65, 4095, 4096, 4097, 3 * 4096, 10000}) {
    std::vector<std::byte> slot = some_bytes(bytes);
    std::vector<std::byte> out(bytes + 1);

    copy_out_of_slot(out.data(), slot.data(), bytes);

    // Expect:
    EXPECT_EQ(slot, some_bytes(bytes));
    EXPECT_EQ(out.back(), std::byte{0});
    out.pop_back();
    EXPECT_EQ(out, slot);
  }
}

TEST(SlotLines, Are_all_written_and_none_behind_them) {
  // Two pages, the second read-only.
  void* pages = ::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  auto* first = static_cast<std::byte*>(pages);
  ASSERT_EQ(::mprotect(first + 4096, 4096, PROT_READ), 0);

  take_lines(first, 4096);  // Expect: it returns.
  EXPECT_DEATH(take_lines(first + 4096, 1), "");
  EXPECT_DEATH(take_lines(first, 4097), "");
  ::munmap(pages, 8192);
}

}  // namespace
}  // namespace noria::bucketing
