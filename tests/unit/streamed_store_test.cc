#include "verbs/soft/streamed_store.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace noria::soft {
namespace {

TEST(StreamedStore, Is_a_copy_at_every_place_and_size) {
  std::vector<uint8_t> from(2000), to(2000);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint8_t>(i * 7 + i / 251);
  for (const size_t shift : {0, 1, 13, 63})
    for (size_t bytes = 0; bytes < 1900; bytes += bytes < 300 ? 1 : 131) {
      std::fill(to.begin(), to.end(), uint8_t{0xEE});
      store_streamed(to.data() + shift, from.data() + 3, bytes);

      // Expect: these bytes and no other.
      ASSERT_EQ(std::memcmp(to.data() + shift, from.data() + 3, bytes), 0);
      for (size_t i = 0; i < to.size(); ++i)
        if (i < shift || i >= shift + bytes) {
          ASSERT_EQ(to[i], 0xEE) << bytes;
        }
    }
}

}  // namespace
}  // namespace noria::soft
