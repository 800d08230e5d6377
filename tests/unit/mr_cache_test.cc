#include "verbs/transport/mr_cache.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <optional>
#include <random>
#include <thread>
#include <vector>

namespace noria::transport {
namespace {

// A device that counts: what is registered now, and how often it was asked.
struct Device {
  Mutex mutex;
  std::map<const ibv_mr*, MemoryRange> live NORIA_GUARDED_BY(mutex);
  uint32_t last_key NORIA_GUARDED_BY(mutex) = 0;
  int failure = 0;

  ibv_mr* add(const MemoryRange& range) {
    const MutexLock lock(mutex);
    if (failure != 0) {
      errno = failure;
      return nullptr;
    }
    auto* const mr = new ibv_mr{};
    mr->lkey = mr->rkey = ++last_key;
    live.emplace(mr, range);
    return mr;
  }
  int remove(ibv_mr* mr) {
    const MutexLock lock(mutex);
    EXPECT_EQ(live.erase(mr), 1u) << "deregistered twice, or what is not registered";
    delete mr;
    return 0;
  }
  size_t count() {
    const MutexLock lock(mutex);
    return live.size();
  }
  uint32_t asked() {
    const MutexLock lock(mutex);
    return last_key;
  }
};
Device* device = nullptr;

uint64_t number(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

class MrCacheTest : public testing::Test {
 protected:
  void SetUp() override {
    device = &device_;
    symbols_.reg_mr = [](ibv_pd*, void* base, size_t bytes, int) {
      return device->add({.address = number(base), .bytes = bytes});
    };
    symbols_.reg_mr_iova2 = [](ibv_pd*, void* base, size_t bytes, uint64_t, unsigned) {
      return device->add(
          {.address = number(base), .bytes = bytes, .ordering = verbs::Ordering::relaxed});
    };
    symbols_.reg_dmabuf_mr = [](ibv_pd*, uint64_t offset, size_t bytes, uint64_t iova, int, int) {
      return device->add(
          {.address = iova, .bytes = bytes, .way = MemoryRange::Way::descriptor, .offset = offset});
    };
    symbols_.dereg_mr = [](ibv_mr* mr) { return device->remove(mr); };
    api_ = verbs::Api::from_symbols(symbols_);
    cache_.emplace(*api_, &pd_);
  }
  void TearDown() override {
    cache_.reset();
    EXPECT_EQ(device_.count(), 0u);
  }

  Device device_;
  ibv_context context_{};
  ibv_pd pd_{.context = &context_, .handle = 0};
  verbs::Symbols symbols_;
  std::shared_ptr<const verbs::Api> api_;
  std::optional<MrCache> cache_;
};

constexpr MemoryRange kRange{.address = 0x10000, .bytes = 4096};

TEST_F(MrCacheTest, The_same_range_is_registered_once_and_as_long_as_somebody_holds_it) {
  auto first = cache_->take(kRange);
  auto second = cache_->take(kRange);
  ASSERT_TRUE(first.is_ok() && second.is_ok());
  EXPECT_EQ((*first)->lkey, (*second)->lkey);
  EXPECT_EQ(device_.asked(), 1u);
  *first = MrShare();
  EXPECT_EQ(device_.count(), 1u);
  *second = MrShare();
  EXPECT_EQ(device_.count(), 0u);
  // The address may be another memory by now.  Expect: registered anew.
  auto third = cache_->take(kRange);
  ASSERT_TRUE(third.is_ok());
  EXPECT_EQ((*third)->lkey, 2u);
}

TEST_F(MrCacheTest, What_differs_in_anything_is_another_registration) {
  std::vector<MrShare> held;
  MemoryRange longer = kRange, later = kRange, relaxed = kRange, exported = kRange;
  longer.bytes += 1;
  later.address += 1, later.bytes -= 1;
  relaxed.ordering = verbs::Ordering::relaxed;
  exported.way = MemoryRange::Way::descriptor;
  MemoryRange farther = exported;
  farther.offset = 4096;
  for (const MemoryRange& range : {kRange, longer, later, relaxed, exported, farther}) {
    auto share = cache_->take(range, 0);
    ASSERT_TRUE(share.is_ok());
    held.push_back(std::move(*share));
    EXPECT_EQ(device_.count(), held.size());
    // Expect: registered by the way that was asked for.
    const MutexLock lock(device_.mutex);
    const auto is_same = [&](const auto& entry) { return entry.second == range; };
    EXPECT_TRUE(std::any_of(device_.live.begin(), device_.live.end(), is_same));
  }
}

TEST_F(MrCacheTest, A_failure_is_the_devices_and_leaves_nothing_behind) {
  device_.failure = ENOMEM;
  EXPECT_EQ(cache_->take(kRange).failure(), Status::from_errno(Code::no_memory, ENOMEM));
  device_.failure = 0;
  EXPECT_TRUE(cache_->take(kRange).is_ok());
}

TEST_F(MrCacheTest, Random_use_is_as_a_count_for_each_range_would_have_it) {
  std::mt19937 dice(20260101);
  struct Held {
    MemoryRange range;
    MrShare share;
  };
  std::vector<Held> held;
  for (int step = 0; step < 20'000; ++step) {
    if (held.empty() || dice() % 2 == 0) {
      const MemoryRange range{.address = 4096 * (1 + dice() % 16), .bytes = 64 * (1 + dice() % 4)};
      const auto is_same = [&](const Held& one) { return one.range == range; };
      const auto known = std::find_if(held.begin(), held.end(), is_same);
      const uint32_t asked = device_.asked();
      auto share = cache_->take(range);
      ASSERT_TRUE(share.is_ok());
      // Expect: the one that is held, or a new one.
      ASSERT_EQ((*share)->lkey, known != held.end() ? known->share->lkey : asked + 1);
      held.push_back({range, std::move(*share)});
    } else {
      std::swap(held[dice() % held.size()], held.back());
      held.pop_back();
    }
    std::vector<MemoryRange> ranges;
    for (const Held& one : held) ranges.push_back(one.range);
    std::sort(ranges.begin(), ranges.end());
    const auto end = std::unique(ranges.begin(), ranges.end());
    ASSERT_EQ(device_.count(), static_cast<size_t>(end - ranges.begin()));
  }
}

TEST_F(MrCacheTest, Ten_thousand_regions_are_as_a_list_would_have_them) {
  constexpr size_t kRegions = 10'000;
  struct Region {
    MemoryRange range;
    std::vector<MrShare> shares;
  };
  std::mt19937 dice(20260102);
  // Pages in any order, of which each second is covered by a longer one too, and some by
  // descriptor.
  std::vector<Region> list(kRegions);
  for (size_t i = 0; i < kRegions; ++i)
    list[i].range = {.address = 4096 * (1 + i / 2),
                     .bytes = 4096 * (1 + i % 2),
                     .way = i % 5 == 0 ? MemoryRange::Way::descriptor : MemoryRange::Way::address};
  std::shuffle(list.begin(), list.end(), dice);
  size_t held = 0;
  const auto take = [&](const MemoryRange& range) {
    // By brute force: all that is held, from the first to the last.
    const auto region = std::find_if(list.begin(), list.end(),
                                     [&](const Region& one) { return one.range == range; });
    const bool is_held = !region->shares.empty();
    const uint32_t asked = device_.asked();
    auto share = cache_->take(range, 0);
    ASSERT_TRUE(share.is_ok());
    ASSERT_EQ((*share)->lkey, is_held ? region->shares.front()->lkey : asked + 1);
    held += is_held ? 0 : 1;
    region->shares.push_back(std::move(*share));
    ASSERT_EQ(device_.count(), held);
  };
  const auto give_back = [&](Region& region) {
    region.shares.pop_back();
    held -= region.shares.empty() ? 1 : 0;
    ASSERT_EQ(device_.count(), held);
  };
  for (const Region& region : list) ASSERT_NO_FATAL_FAILURE(take(region.range));
  ASSERT_EQ(held, kRegions);
  for (int step = 0; step < 2'000; ++step) {
    Region& region = list[dice() % list.size()];
    if (dice() % 3 == 0 && !region.shares.empty())
      ASSERT_NO_FATAL_FAILURE(give_back(region));
    else
      ASSERT_NO_FATAL_FAILURE(take(region.range));
  }
  // Expect: each goes with its last holder, and no sooner.
  for (Region& region : list)
    while (!region.shares.empty()) ASSERT_NO_FATAL_FAILURE(give_back(region));
  ASSERT_EQ(held, 0u);
}

TEST_F(MrCacheTest, Threads_share_what_they_hold_at_one_time) {
  constexpr int kThreads = 4;
  std::array<std::thread, kThreads> threads;
  const auto always = cache_->take(kRange);
  ASSERT_TRUE(always.is_ok());
  for (std::thread& thread : threads)
    thread = std::thread([&] {
      for (uint64_t i = 0; i < 5'000; ++i) {
        const auto contended = cache_->take({.address = 0x20000 + i % 3, .bytes = 8});
        const auto steady = cache_->take(kRange);
        EXPECT_TRUE(contended.is_ok() && (*contended)->lkey != 0);
        EXPECT_EQ((*steady)->lkey, (*always)->lkey);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(device_.count(), 1u);
}

}  // namespace
}  // namespace noria::transport
