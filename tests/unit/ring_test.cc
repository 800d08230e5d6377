// Whole rings in one thread over a transport that is as late and as unwilling as it may be. What
// goes wrong here goes wrong for the same seed each time.

#include "bucketing/ring.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "bucketing/kernels.hpp"
#include "bucketing/ring_lines.hpp"
#include "tests/support/element_values.hpp"
#include "tests/support/fake_transport.hpp"

namespace noria::bucketing {
namespace {

// n ranks, each with a domain and a ring.
class Circle {
 public:
  Circle(uint32_t ranks, RingFetch fetch, uint64_t seed) : random_(seed) {
    test::seed_fake_transport(seed);
    test::set_fake_chances(50, 10);
    for (uint32_t rank = 0; rank < ranks; ++rank) domains_.push_back(test::make_fake_domain());
    std::vector<RingLinks> links(ranks);
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      const uint32_t right = RingPlace{rank, ranks}.right();
      auto reduce = test::connect_fake(*domains_[rank], *domains_[right]);
      auto gather = test::connect_fake(*domains_[rank], *domains_[right]);
      links[rank].reduce_out = std::move(reduce.send);
      links[right].reduce_in = std::move(reduce.recv);
      links[rank].gather_out = std::move(gather.send);
      links[right].gather_in = std::move(gather.recv);
      links[right].lines_in =
          domains_[right]->allocate(RingLines::bytes_of(ranks), transport::Watched::yes).value();
      links[rank].lines_out = links[right].lines_in.remote();
    }
    for (uint32_t rank = 0; rank < ranks; ++rank)
      rings_.push_back(
          Ring::over(*domains_[rank], {rank, ranks}, std::move(links[rank]), fetch, nullptr)
              .value());
    progress_.assign(ranks, Ring::Progress::none);
    active_.assign(ranks, false);
  }
  ~Circle() {
    rings_.clear();
    EXPECT_EQ(test::fake_regions_alive(), 0U);
  }

  uint32_t size() const { return static_cast<uint32_t>(rings_.size()); }
  Ring& ring(uint32_t rank) { return *rings_[rank]; }
  transport::Domain& domain(uint32_t rank) { return *domains_[rank]; }

  void start(uint32_t rank, Collective& collective) {
    rings_[rank]->start(collective);
    progress_[rank] = Ring::Progress::some;
    active_[rank] = true;
  }

  // Moves ranks in random order until all that started have finished or failed; `meanwhile` is
  // called now and then. False if they got stuck.
  template <class Meanwhile>
  bool run(Meanwhile meanwhile) {
    for (int turn = 0; turn < 2'000'000; ++turn) {
      const auto rank = static_cast<uint32_t>(random_() % size());
      const Ring::Progress progress = rings_[rank]->advance();
      if (active_[rank]) progress_[rank] = progress;
      if (progress == Ring::Progress::finished || progress == Ring::Progress::failed)
        active_[rank] = false;
      if (turn % 16 != 0) continue;
      meanwhile();
      if (std::find(active_.begin(), active_.end(), true) == active_.end()) return true;
    }
    return false;
  }
  bool run() {
    return run([] {});
  }

  Ring::Progress progress(uint32_t rank) const { return progress_[rank]; }
  std::mt19937_64& random() { return random_; }

  // For failures of a test: what each rank waits for.
  std::string waits() const {
    std::string text;
    for (size_t i = 0; i < rings_.size(); ++i)
      text += "rank " + std::to_string(i) + ": " + rings_[i]->waiting_for() + "; " +
              rings_[i]->failure().text + '\n';
    return text;
  }

 private:
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<transport::Domain>> domains_;
  std::vector<std::unique_ptr<Ring>> rings_;
  std::vector<Ring::Progress> progress_;  // of the collective started last
  std::vector<bool> active_;
};

// One rank's buffers and collective of int64: input depends on rank and index.
struct Member {
  std::vector<int64_t> in, out;
  Collective collective;

  static int64_t value(uint32_t rank, uint64_t index) {
    return static_cast<int64_t>(rank + 1) * 1'000'003 + static_cast<int64_t>(index * 7919 % 65521);
  }

  Member(uint32_t rank, uint32_t ranks, uint64_t count, bool in_place) : in(count), out(count, -1) {
    for (uint64_t i = 0; i < count; ++i) in[i] = value(rank, i);
    if (in_place) out = in;
    collective.parts = {
        {.in = reinterpret_cast<const std::byte*>(in_place ? out.data() : in.data()),
         .out = reinterpret_cast<std::byte*>(out.data()),
         .count = count,
         .dtype = NORIA_INT64,
         .op = NORIA_SUM}};
    prepare(collective, ranks);
  }
};

// One rank's buffers of a collective in which rank r owns counts[r] elements.
struct BlockMember {
  std::vector<int64_t> whole, block;
  uint64_t first = 0;  // of the own block
  Collective collective;

  BlockMember(Kind kind, uint32_t rank, const std::vector<uint64_t>& counts, bool in_place) {
    Part part{.dtype = NORIA_INT64};
    part.edges.push_back(0);
    for (const uint64_t count : counts) part.edges.push_back(part.edges.back() + count);
    part.count = part.edges.back();
    part.phases = kind == Kind::all_gather ? Phases::gather : Phases::reduce;
    first = part.edges[rank];
    whole.assign(part.count, -1);
    block.assign(counts[rank], -1);
    auto* in_whole = reinterpret_cast<std::byte*>(whole.data());
    auto* apart = reinterpret_cast<std::byte*>(block.data());
    std::byte* const small = in_place ? in_whole + first * sizeof(int64_t) : apart;
    if (kind == Kind::all_gather) {
      for (uint64_t i = 0; i < counts[rank]; ++i)
        (in_place ? whole[first + i] : block[i]) = Member::value(rank, i);
      part.in = small;
      part.out = in_whole;
    } else {
      for (uint64_t i = 0; i < part.count; ++i) whole[i] = Member::value(rank, i);
      part.in = in_whole;
      part.out = small;
    }
    collective.kind = kind;
    const auto ranks = static_cast<uint32_t>(counts.size());
    collective.parts = {std::move(part)};
    prepare(collective, ranks);
  }
};

int64_t sum_of(uint32_t ranks, uint64_t index) {
  int64_t sum = 0;
  for (uint32_t rank = 0; rank < ranks; ++rank) sum += Member::value(rank, index);
  return sum;
}

struct Case {
  uint32_t ranks;
  RingFetch fetch;
};

class RingTest : public testing::TestWithParam<Case> {
 protected:
  uint32_t ranks() const { return GetParam().ranks; }
  RingFetch fetch() const { return GetParam().fetch; }

  std::vector<std::unique_ptr<Member>> members(uint64_t count, bool in_place) const {
    std::vector<std::unique_ptr<Member>> all;
    for (uint32_t rank = 0; rank < ranks(); ++rank)
      all.push_back(std::make_unique<Member>(rank, ranks(), count, in_place));
    return all;
  }

  // Elements of one full segment.
  uint64_t full_segment() const { return ranks() * kChunkBytes / sizeof(int64_t); }
  // Enough segments for several to be under way at once, few enough for a test.
  uint64_t several_segments() const { return (ranks() <= 4 ? 4 : 2) * full_segment() + 3; }
};

std::string name_of(const testing::TestParamInfo<Case>& info) {
  constexpr const char* kNames[] = {"_by_memory", "_reads", "_messages"};
  return std::to_string(info.param.ranks) + kNames[static_cast<int>(info.param.fetch)];
}
constexpr RingFetch kMemory = RingFetch::by_memory, kRead = RingFetch::read,
                    kMessage = RingFetch::message;
INSTANTIATE_TEST_SUITE_P(Ways, RingTest,
                         testing::Values(Case{2, kMemory}, Case{2, kRead}, Case{2, kMessage},
                                         Case{3, kMemory}, Case{3, kRead}, Case{4, kMessage},
                                         Case{5, kMemory}, Case{8, kRead}, Case{8, kMemory}),
                         name_of);

TEST_P(RingTest, Reduces_every_size_in_place_and_not) {
  uint64_t seed = 1;
  for (const uint64_t count :
       {uint64_t{0}, uint64_t{1}, uint64_t{ranks() - 1}, uint64_t{ranks()}, uint64_t{ranks() + 1},
        uint64_t{16 * ranks() + 1}, full_segment() - 1, several_segments()})
    for (const bool in_place : {false, true}) {
      Circle circle(ranks(), fetch(), ++seed);
      auto all = members(count, in_place);
      for (uint32_t rank = 0; rank < ranks(); ++rank) circle.start(rank, all[rank]->collective);
      ASSERT_TRUE(circle.run()) << circle.waits();

      // Expect: the exact sum on every rank; inputs untouched when not in place.
      for (uint32_t rank = 0; rank < ranks(); ++rank) {
        ASSERT_EQ(circle.progress(rank), Ring::Progress::finished) << circle.waits();
        for (uint64_t i = 0; i < count; ++i) {
          ASSERT_EQ(all[rank]->out[i], sum_of(ranks(), i)) << "rank " << rank << " element " << i;
          ASSERT_EQ(all[rank]->in[i], Member::value(rank, i));
        }
      }
    }
}

// Counts a rank for the collectives of blocks: even and uneven, small and of several segments.
std::vector<std::vector<uint64_t>> block_shapes(uint32_t ranks) {
  const uint64_t chunk = kChunkBytes / sizeof(int64_t);
  std::vector<std::vector<uint64_t>> shapes;
  for (const uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{37}, chunk + 5})
    shapes.emplace_back(ranks, count);
  std::vector<uint64_t> rising, last_only(ranks, 0), one_long(ranks, 3);
  for (uint64_t rank = 0; rank < ranks; ++rank) rising.push_back(rank * 11);
  last_only.back() = chunk + 1;
  one_long[ranks / 2] = 5 * chunk - 1;
  shapes.push_back(rising);
  shapes.push_back(last_only);
  shapes.push_back(one_long);
  return shapes;
}

TEST_P(RingTest, Reduce_scatter_leaves_each_rank_its_block_and_its_input_as_it_was) {
  uint64_t seed = 1000;
  for (const std::vector<uint64_t>& counts : block_shapes(ranks()))
    for (const bool in_place : {false, true}) {
      Circle circle(ranks(), fetch(), ++seed);
      std::vector<std::unique_ptr<BlockMember>> all;
      for (uint32_t rank = 0; rank < ranks(); ++rank) {
        all.push_back(std::make_unique<BlockMember>(Kind::reduce_scatter, rank, counts, in_place));
        circle.start(rank, all[rank]->collective);
      }
      ASSERT_TRUE(circle.run()) << circle.waits();
      for (uint32_t rank = 0; rank < ranks(); ++rank) {
        ASSERT_EQ(circle.progress(rank), Ring::Progress::finished) << circle.waits();
        const BlockMember& member = *all[rank];
        for (uint64_t i = 0; i < member.whole.size(); ++i) {
          const bool is_own = i >= member.first && i < member.first + counts[rank];
          const int64_t sum = sum_of(ranks(), i);
          ASSERT_EQ(member.whole[i], is_own && in_place ? sum : Member::value(rank, i))
              << "rank " << rank << " element " << i;
          if (is_own && !in_place) {
            ASSERT_EQ(member.block[i - member.first], sum) << "rank " << rank << " element " << i;
          }
        }
      }
    }
}

TEST_P(RingTest, All_gather_brings_every_block_to_every_rank) {
  uint64_t seed = 2000;
  for (const std::vector<uint64_t>& counts : block_shapes(ranks()))
    for (const bool in_place : {false, true}) {
      Circle circle(ranks(), fetch(), ++seed);
      std::vector<std::unique_ptr<BlockMember>> all;
      for (uint32_t rank = 0; rank < ranks(); ++rank) {
        all.push_back(std::make_unique<BlockMember>(Kind::all_gather, rank, counts, in_place));
        circle.start(rank, all[rank]->collective);
      }
      ASSERT_TRUE(circle.run()) << circle.waits();
      for (uint32_t rank = 0; rank < ranks(); ++rank) {
        ASSERT_EQ(circle.progress(rank), Ring::Progress::finished) << circle.waits();
        uint64_t at = 0;
        for (uint32_t owner = 0; owner < ranks(); ++owner)
          for (uint64_t i = 0; i < counts[owner]; ++i, ++at)
            ASSERT_EQ(all[rank]->whole[at], Member::value(owner, i))
                << "rank " << rank << " block " << owner << " element " << i;
      }
    }
}

TEST_P(RingTest, Input_may_be_overwritten_as_soon_as_a_reduce_scatter_is_over_here) {
  const std::vector<uint64_t> counts(ranks(), kChunkBytes / sizeof(int64_t) + 9);
  for (uint64_t seed = 3000; seed < 3003; ++seed) {
    Circle circle(ranks(), fetch(), seed);
    std::vector<std::unique_ptr<BlockMember>> all;
    for (uint32_t rank = 0; rank < ranks(); ++rank) {
      all.push_back(std::make_unique<BlockMember>(Kind::reduce_scatter, rank, counts, false));
      circle.start(rank, all[rank]->collective);
    }
    // Whoever is through writes over what it gave, while others may still need it.
    const auto overwrite = [&] {
      for (uint32_t rank = 0; rank < ranks(); ++rank)
        if (circle.progress(rank) == Ring::Progress::finished && all[rank]->whole[0] != -5)
          std::fill(all[rank]->whole.begin(), all[rank]->whole.end(), -5);
    };
    ASSERT_TRUE(circle.run(overwrite)) << circle.waits();
    for (uint32_t rank = 0; rank < ranks(); ++rank)
      for (uint64_t i = 0; i < counts[rank]; ++i)
        ASSERT_EQ(all[rank]->block[i], sum_of(ranks(), all[rank]->first + i));
  }
}

TEST_P(RingTest, Collectives_follow_each_other_in_the_same_memory) {
  Circle circle(ranks(), fetch(), 3);
  auto all = members(full_segment() + 5, true);
  for (int round = 0; round < 4; ++round) {
    for (uint32_t rank = 0; rank < ranks(); ++rank) {
      for (uint64_t i = 0; i < all[rank]->out.size(); ++i)
        all[rank]->out[i] = Member::value(rank, i + static_cast<uint64_t>(round));
      circle.start(rank, all[rank]->collective);
    }
    ASSERT_TRUE(circle.run()) << circle.waits();
    for (uint32_t rank = 0; rank < ranks(); ++rank)
      for (uint64_t i = 0; i < all[rank]->out.size(); ++i)
        ASSERT_EQ(all[rank]->out[i], sum_of(ranks(), i + static_cast<uint64_t>(round)));
  }
}

TEST_P(RingTest, Large_ones_begin_where_the_last_one_ended) {
  Circle circle(ranks(), fetch(), 77);
  constexpr uint64_t kLarge = 8_MiB / sizeof(int64_t);
  struct Call {
    uint64_t count;
    bool goes_backward;
  };
  // What is small goes forward, and is no turn.
  for (const Call call : {Call{kLarge, false}, Call{kLarge - 1, false}, Call{kLarge, true},
                          Call{kLarge + 1, false}, Call{kLarge, true}}) {
    auto all = members(call.count, false);
    for (uint32_t rank = 0; rank < ranks(); ++rank) circle.start(rank, all[rank]->collective);
    // Of rank 1: rank 0 adds to the first chunk last.
    const std::vector<int64_t>& out = all[1]->out;
    bool is_begun = false, began_at_end = false;
    const auto look = [&] {
      if (is_begun) return;
      began_at_end = out.back() != -1;
      is_begun = began_at_end || out.front() != -1;
    };
    ASSERT_TRUE(circle.run(look)) << circle.waits();
    EXPECT_TRUE(is_begun);
    EXPECT_EQ(began_at_end, call.goes_backward) << call.count;
    uint64_t wrong = 0;
    for (const auto& member : all)
      for (uint64_t i = 0; i < call.count; ++i) wrong += member->out[i] != sum_of(ranks(), i);
    EXPECT_EQ(wrong, 0U);
  }
}

TEST_P(RingTest, A_rank_may_run_ahead_into_the_next_collective) {
  Circle circle(ranks(), fetch(), 4);
  constexpr int kRounds = 12;
  std::vector<std::vector<std::unique_ptr<Member>>> rounds;
  for (int round = 0; round < kRounds; ++round)
    rounds.push_back(members(static_cast<uint64_t>(round * 37 % 50), false));
  std::vector<int> next(ranks(), 0);
  const auto start_next = [&] {
    for (uint32_t rank = 0; rank < ranks(); ++rank)
      if (next[rank] < kRounds &&
          (next[rank] == 0 || circle.progress(rank) == Ring::Progress::finished))
        circle.start(rank, rounds[static_cast<size_t>(next[rank]++)][rank]->collective);
  };
  start_next();
  // Each rank starts its next one as soon as it is through, whatever the others do.
  while (std::any_of(next.begin(), next.end(), [](int n) { return n < kRounds; }))
    ASSERT_TRUE(circle.run(start_next)) << circle.waits();
  ASSERT_TRUE(circle.run()) << circle.waits();
  for (auto& all : rounds)
    for (uint32_t rank = 0; rank < ranks(); ++rank)
      for (uint64_t i = 0; i < all[rank]->out.size(); ++i)
        ASSERT_EQ(all[rank]->out[i], sum_of(ranks(), i));
}

TEST_P(RingTest, Segments_may_become_ready_in_any_order) {
  Circle circle(ranks(), fetch(), 5);
  auto all = members(several_segments(), false);
  const size_t segments = all[0]->collective.segments.size();
  std::vector<std::vector<std::atomic<uint32_t>>> pending;
  for (uint32_t rank = 0; rank < ranks(); ++rank) {
    pending.emplace_back(segments);
    for (auto& count : pending.back()) count = 1;
    all[rank]->collective.pending = pending.back().data();
    // What is not ready is not there yet.
    std::fill(all[rank]->in.begin(), all[rank]->in.end(), -77);
    circle.start(rank, all[rank]->collective);
  }
  const auto make_one_ready = [&] {
    const auto rank = static_cast<uint32_t>(circle.random()() % ranks());
    const size_t k = circle.random()() % segments;
    if (pending[rank][k] == 0) return;
    const Segment& segment = all[rank]->collective.segments[k];
    for (uint64_t i = segment.first; i < segment.first + segment.count; ++i)
      all[rank]->in[i] = Member::value(rank, i);
    pending[rank][k].store(0, std::memory_order_release);
  };
  ASSERT_TRUE(circle.run(make_one_ready)) << circle.waits();
  for (uint32_t rank = 0; rank < ranks(); ++rank)
    for (uint64_t i = 0; i < all[rank]->out.size(); ++i)
      ASSERT_EQ(all[rank]->out[i], sum_of(ranks(), i)) << "rank " << rank << " element " << i;
}

TEST_P(RingTest, Parts_of_different_types_flow_as_one_stream_and_are_timed) {
  Circle circle(ranks(), fetch(), 6);
  struct Step {
    std::vector<float> gradients;
    std::vector<double> more;
    int64_t verdict;
    std::vector<transport::Region> regions;
    Collective collective;
  };
  std::vector<std::unique_ptr<Step>> steps;
  const uint64_t floats = 2 * full_segment() + 11;
  for (uint32_t rank = 0; rank < ranks(); ++rank) {
    auto step = std::make_unique<Step>();
    step->gradients.resize(floats);
    step->more.resize(100);
    for (size_t i = 0; i < floats; ++i) step->gradients[i] = static_cast<float>(rank + i % 1000);
    for (size_t i = 0; i < 100; ++i) step->more[i] = static_cast<double>(rank * 100 + i);
    step->verdict = rank;
    const auto add = [&](void* data, uint64_t count, noria_dtype dtype, noria_op op) {
      step->regions.push_back(
          circle.domain(rank).register_region(data, count * dtype_bytes(dtype)).value());
      step->collective.parts.push_back({.in = static_cast<std::byte*>(data),
                                        .out = static_cast<std::byte*>(data),
                                        .count = count,
                                        .dtype = dtype,
                                        .op = op});
    };
    add(step->gradients.data(), floats, NORIA_FLOAT32, NORIA_AVG);
    add(step->more.data(), 0, NORIA_FLOAT64, NORIA_SUM);
    add(step->more.data(), 100, NORIA_FLOAT64, NORIA_MIN);
    add(&step->verdict, 1, NORIA_INT64, NORIA_MAX);
    for (size_t i = 0; i < step->regions.size(); ++i)
      step->collective.parts[i].in_region = step->collective.parts[i].out_region =
          &step->regions[i];
    prepare(step->collective, ranks());
    steps.push_back(std::move(step));
  }
  for (uint32_t rank = 0; rank < ranks(); ++rank) {
    Step& left = *steps[RingPlace{rank, ranks()}.left()];
    for (const transport::Region& region : left.regions)
      steps[rank]->collective.left.push_back(
          {.in_region = region.remote(), .out_region = region.remote()});
  }
  for (uint32_t rank = 0; rank < ranks(); ++rank) circle.start(rank, steps[rank]->collective);
  ASSERT_TRUE(circle.run()) << circle.waits();

  for (uint32_t rank = 0; rank < ranks(); ++rank) {
    const Step& step = *steps[rank];
    const auto n = static_cast<float>(ranks());
    for (size_t i = 0; i < floats; ++i) {
      // Expect: these small integers add exactly, and the quotient is rounded once.
      const float sum = n * (n - 1) / 2 + n * static_cast<float>(i % 1000);
      ASSERT_EQ(step.gradients[i], sum / n);
    }
    for (size_t i = 0; i < 100; ++i) ASSERT_EQ(step.more[i], static_cast<double>(i));
    EXPECT_EQ(step.verdict, ranks() - 1);
    for (const Part& part : step.collective.parts) {
      if (part.count == 0) continue;
      EXPECT_GT(part.start_ns, 0);
      EXPECT_GE(part.end_ns, part.start_ns);
      EXPECT_LE(part.wire_ns, part.end_ns - part.start_ns);
    }
  }
  // Regions die before the circle's count of them.
  steps.clear();
}

TEST_P(RingTest, Floats_are_bitwise_equal_on_all_ranks) {
  Circle circle(ranks(), fetch(), 8);
  const uint64_t count = full_segment() / 3;
  std::vector<std::vector<float>> data(ranks(), std::vector<float>(count));
  std::vector<std::unique_ptr<Collective>> all;
  std::vector<double> exact(count, 0), magnitude(count, 0);
  for (uint32_t rank = 0; rank < ranks(); ++rank) {
    for (uint64_t i = 0; i < count; ++i) {
      data[rank][i] = std::sin(static_cast<float>(rank * 1000 + i)) * 1e3F;
      exact[i] += static_cast<double>(data[rank][i]);
      magnitude[i] += std::fabs(static_cast<double>(data[rank][i]));
    }
    all.push_back(std::make_unique<Collective>());
    auto* bytes = reinterpret_cast<std::byte*>(data[rank].data());
    all[rank]->parts = {{.in = bytes, .out = bytes, .count = count}};
    prepare(*all[rank], ranks());
    circle.start(rank, *all[rank]);
  }
  ASSERT_TRUE(circle.run()) << circle.waits();
  for (uint32_t rank = 1; rank < ranks(); ++rank)
    EXPECT_EQ(std::memcmp(data[0].data(), data[rank].data(), count * sizeof(float)), 0);
  for (uint64_t i = 0; i < count; ++i)
    // Expect: |error| <= n * eps * sum |x|.
    ASSERT_LE(std::fabs(static_cast<double>(data[0][i]) - exact[i]),
              ranks() * 1.2e-7 * magnitude[i]);
}

// A step's part of floats with regions, as a reducer makes it.
struct FloatStep {
  std::vector<float> values;
  transport::Region memory;  // of what travels
  std::vector<std::atomic<uint32_t>> pending;
  Collective collective;

  static float value(uint32_t rank, uint64_t index) {
    return std::sin(static_cast<float>(rank * 1000 + index)) * 1e3F;
  }

  FloatStep(transport::Domain& domain, uint32_t rank, uint32_t ranks, uint64_t count,
            uint32_t input_divisor, noria_dtype wire)
      : values(count), memory(domain.allocate(count * sizeof(float) + 1).value()) {
    for (uint64_t i = 0; i < count; ++i) values[i] = value(rank, i);
    if (wire == NORIA_FLOAT32 && count != 0)
      std::memcpy(memory.base(), values.data(), count * sizeof(float));
    collective.parts = {{.in = memory.base(),
                         .out = memory.base(),
                         .count = count,
                         .dtype = wire,
                         .op = NORIA_AVG,
                         .input_divisor = input_divisor,
                         .wide = wire == NORIA_FLOAT32 ? nullptr : values.data(),
                         .in_region = &memory,
                         .out_region = &memory}};
    prepare(collective, ranks);
    pending = std::vector<std::atomic<uint32_t>>(collective.segments.size());
    collective.pending = pending.data();
  }
  const float* result() const {
    return collective.parts[0].wide != nullptr ? values.data()
                                               : reinterpret_cast<const float*>(memory.base());
  }
};

TEST_P(RingTest, Averages_divide_where_they_are_asked_to_and_travel_narrow_if_they_may) {
  uint64_t seed = 4000;
  for (const noria_dtype wire : {NORIA_FLOAT32, NORIA_BFLOAT16, NORIA_FLOAT16})
    for (const uint32_t divisor : {1U, split_divisor(ranks()), ranks()})
      for (const uint64_t count : {uint64_t{1}, uint64_t{64 * ranks() + 1}, full_segment() + 5}) {
        if (count > full_segment() && divisor != split_divisor(ranks())) continue;
        Circle circle(ranks(), fetch(), ++seed);
        std::vector<std::unique_ptr<FloatStep>> steps;
        for (uint32_t rank = 0; rank < ranks(); ++rank)
          steps.push_back(std::make_unique<FloatStep>(circle.domain(rank), rank, ranks(), count,
                                                      divisor, wire));
        for (uint32_t rank = 0; rank < ranks(); ++rank) {
          const transport::RemoteRegion left =
              steps[RingPlace{rank, ranks()}.left()]->memory.remote();
          steps[rank]->collective.left = {{.in_region = left, .out_region = left}};
          circle.start(rank, steps[rank]->collective);
        }
        ASSERT_TRUE(circle.run()) << circle.waits();

        // Expect: the same bits on all ranks, which the wire's type can hold, near the average.
        const double epsilon = wire == NORIA_FLOAT32   ? 0x1p-23
                               : wire == NORIA_FLOAT16 ? 0x1p-10
                                                       : 0x1p-7;
        for (uint32_t rank = 0; rank < ranks(); ++rank) {
          ASSERT_EQ(circle.progress(rank), Ring::Progress::finished) << circle.waits();
          ASSERT_EQ(std::memcmp(steps[rank]->result(), steps[0]->result(), count * sizeof(float)),
                    0);
        }
        std::vector<uint16_t> narrow(count);
        std::vector<float> widened(count);
        if (wire != NORIA_FLOAT32) {
          to_narrow(wire, narrow.data(), steps[0]->result(), count, 1);
          from_narrow(wire, widened.data(), narrow.data(), count);
          ASSERT_EQ(std::memcmp(widened.data(), steps[0]->result(), count * sizeof(float)), 0);
        }
        for (uint64_t i = 0; i < count; ++i) {
          double sum = 0, magnitude = 0;
          for (uint32_t rank = 0; rank < ranks(); ++rank) {
            sum += static_cast<double>(FloatStep::value(rank, i));
            magnitude += std::fabs(static_cast<double>(FloatStep::value(rank, i)));
          }
          ASSERT_LE(std::fabs(static_cast<double>(steps[0]->result()[i]) - sum / ranks()),
                    (ranks() + 2) * epsilon * magnitude / ranks());
        }
        steps.clear();
      }
}

TEST_P(RingTest, Broadcast_reaches_all_ranks_from_each_root) {
  for (const uint32_t root : std::set<uint32_t>{0, 1, ranks() / 2, ranks() - 1})
    for (const uint64_t count : {uint64_t{0}, uint64_t{1}, full_segment() + 1}) {
      Circle circle(ranks(), fetch(), 9 + root);
      auto all = members(count, false);
      for (uint32_t rank = 0; rank < ranks(); ++rank) {
        Collective& collective = all[rank]->collective;
        collective.kind = Kind::broadcast;
        collective.root = static_cast<int32_t>(root);
        if (rank != root) collective.parts[0].in = nullptr;
        prepare(collective, ranks());
        circle.start(rank, collective);
      }
      ASSERT_TRUE(circle.run()) << circle.waits();
      for (uint32_t rank = 0; rank < ranks(); ++rank)
        for (uint64_t i = 0; i < count; ++i)
          ASSERT_EQ(all[rank]->out[i], Member::value(root, i))
              << "rank " << rank << " root " << root;
    }
}

TEST_P(RingTest, Nobody_leaves_a_barrier_before_the_last_has_come) {
  Circle circle(ranks(), fetch(), 10);
  std::vector<std::unique_ptr<Collective>> all;
  for (uint32_t rank = 0; rank < ranks(); ++rank) {
    all.push_back(std::make_unique<Collective>());
    all[rank]->kind = Kind::barrier;
  }
  for (uint32_t rank = 0; rank + 1 < ranks(); ++rank) circle.start(rank, *all[rank]);
  int turns = 0;
  const auto last_comes_late = [&] {
    if (++turns < 2000) {
      for (uint32_t rank = 0; rank + 1 < ranks(); ++rank)
        ASSERT_NE(circle.progress(rank), Ring::Progress::finished);
    } else if (turns == 2000) {
      circle.start(ranks() - 1, *all[ranks() - 1]);
    }
  };
  ASSERT_TRUE(circle.run(last_comes_late)) << circle.waits();
  EXPECT_GE(turns, 2000);
  for (uint32_t rank = 0; rank < ranks(); ++rank)
    EXPECT_EQ(circle.progress(rank), Ring::Progress::finished);
}

TEST_P(RingTest, Ranks_that_differ_are_told_apart_and_named) {
  struct Wrong {
    uint64_t others;
    Kind kind;
    uint64_t count;
    noria_status code;
    const char* text;
  };
  // Long ways, lines, and one of each.
  for (const Wrong& wrong :
       {Wrong{100, Kind::all_reduce, 101, NORIA_E_MISMATCH, "of 101 int64, sum"},
        Wrong{100, Kind::broadcast, 100, NORIA_E_ORDER, "broadcast of 100 int64 from rank 0"},
        Wrong{100, Kind::barrier, 0, NORIA_E_ORDER, "called barrier"},
        Wrong{100, Kind::all_reduce, 2, NORIA_E_MISMATCH, "of 2 int64, sum"},
        Wrong{3, Kind::all_reduce, 100, NORIA_E_MISMATCH, "of 100 int64, sum"},
        Wrong{3, Kind::all_reduce, 2, NORIA_E_MISMATCH, "of 2 int64, sum"},
        Wrong{3, Kind::barrier, 0, NORIA_E_ORDER, "called barrier"},
        Wrong{3, Kind::broadcast, 3, NORIA_E_ORDER, "broadcast of 3 int64 from rank 0"}}) {
    Circle circle(ranks(), fetch(), 11);
    auto all = members(wrong.others, true);
    all[1] = std::make_unique<Member>(1, ranks(), wrong.count, true);
    all[1]->collective.kind = wrong.kind;
    prepare(all[1]->collective, ranks());
    for (uint32_t rank = 0; rank < ranks(); ++rank) circle.start(rank, all[rank]->collective);
    for (int turn = 0; turn < 20000; ++turn)
      for (uint32_t rank = 0; rank < ranks(); ++rank) circle.ring(rank).advance();

    // Expect: rank 1 and its right neighbour each name both.
    for (const uint32_t rank : {1U, RingPlace{1, ranks()}.right()}) {
      const Failure& failure = circle.ring(rank).failure();
      EXPECT_EQ(failure.code, wrong.code) << failure.text;
      EXPECT_NE(failure.text.find(wrong.text), std::string::npos) << failure.text;
      const std::string right = "all_reduce of " + std::to_string(wrong.others) + " int64, sum";
      EXPECT_NE(failure.text.find(right), std::string::npos) << failure.text;
      EXPECT_EQ(circle.ring(rank).advance(), Ring::Progress::failed);
    }
    for (uint32_t rank = 0; rank < ranks(); ++rank) circle.ring(rank).close();
  }
}

TEST_P(RingTest, Blocks_that_are_cut_otherwise_on_a_rank_are_told) {
  std::vector<uint64_t> counts(ranks(), 10), others = counts;
  others[0] = 9;
  others[1] = 11;
  Circle circle(ranks(), fetch(), 14);
  std::vector<std::unique_ptr<BlockMember>> all;
  for (uint32_t rank = 0; rank < ranks(); ++rank) {
    all.push_back(std::make_unique<BlockMember>(Kind::reduce_scatter, rank,
                                                rank == 1 ? others : counts, false));
    circle.start(rank, all[rank]->collective);
  }
  for (int turn = 0; turn < 20000; ++turn)
    for (uint32_t rank = 0; rank < ranks(); ++rank) circle.ring(rank).advance();

  // Expect: the sums are the same, so that the text must say what is not.
  const Failure& failure = circle.ring(1).failure();
  EXPECT_EQ(failure.code, NORIA_E_MISMATCH);
  EXPECT_NE(failure.text.find("rank 1 called reduce_scatter of " + std::to_string(10 * ranks()) +
                              " int64, sum, cut into other counts"),
            std::string::npos)
      << failure.text;
  for (uint32_t rank = 0; rank < ranks(); ++rank) circle.ring(rank).close();
}

TEST_P(RingTest, A_neighbour_that_hangs_up_fails_the_collective_on_its_neighbours) {
  Circle circle(ranks(), fetch(), 12);
  auto all = members(several_segments(), false);
  // The last segment never becomes ready on rank 0, so nobody gets through.
  std::vector<std::atomic<uint32_t>> pending(all[0]->collective.segments.size());
  pending.back() = 1;
  all[0]->collective.pending = pending.data();
  for (uint32_t rank = 0; rank < ranks(); ++rank) circle.start(rank, all[rank]->collective);
  for (int turn = 0; turn < 100; ++turn)
    for (uint32_t rank = 0; rank < ranks(); ++rank) circle.ring(rank).advance();
  circle.ring(1).close();
  for (int turn = 0; turn < 5000; ++turn)
    for (uint32_t rank = 0; rank < ranks(); ++rank) circle.ring(rank).advance();

  // Expect: both neighbours say what the connection said; their memory is given back by close().
  for (const uint32_t rank : {0U, RingPlace{1, ranks()}.right()}) {
    EXPECT_EQ(circle.ring(rank).failure().code, NORIA_E_PEER);
    EXPECT_NE(circle.ring(rank).failure().text.find("fake connection"), std::string::npos);
  }
  for (uint32_t rank = 0; rank < ranks(); ++rank) {
    circle.ring(rank).close();
    EXPECT_FALSE(circle.ring(rank).waiting_for().empty());
  }
}

TEST_P(RingTest, A_rank_that_leaves_after_its_last_collective_fails_nobody) {
  for (uint64_t seed = 100; seed < 120; ++seed) {
    Circle circle(ranks(), fetch(), seed);
    const uint64_t count = seed % 4 == 0 ? full_segment() + 3 : 16 * ranks() + 1;
    auto all = members(count, false);
    for (uint32_t rank = 0; rank < ranks(); ++rank) circle.start(rank, all[rank]->collective);
    // Whoever is done leaves at once, while others may still wait for a third.
    std::vector<bool> has_left(ranks());
    const auto leave = [&] {
      for (uint32_t rank = 0; rank < ranks(); ++rank) {
        if (has_left[rank] || circle.progress(rank) != Ring::Progress::finished) continue;
        circle.ring(rank).close();
        has_left[rank] = true;
      }
    };
    ASSERT_TRUE(circle.run(leave)) << circle.waits();
    for (uint32_t rank = 0; rank < ranks(); ++rank) {
      ASSERT_EQ(circle.progress(rank), Ring::Progress::finished) << seed << '\n' << circle.waits();
      for (uint64_t i = 0; i < count; ++i) ASSERT_EQ(all[rank]->out[i], sum_of(ranks(), i));
    }
  }
}

// A longer array's first chunk holds the same numbers.
TEST_P(RingTest, A_line_gives_the_bits_that_a_longer_array_gives) {
  uint64_t seed = 6000;
  for (const noria_dtype dtype : {NORIA_FLOAT32, NORIA_FLOAT64, NORIA_BFLOAT16, NORIA_FLOAT16})
    for (const noria_op op : {NORIA_SUM, NORIA_PROD, NORIA_MAX, NORIA_AVG}) {
      const uint32_t element = dtype_bytes(dtype);
      const uint64_t few = RingLine::kMostBytes / element, many = kChunkAlign / element;
      std::vector<std::vector<std::byte>> results[2];
      for (const uint64_t count : {few, many}) {
        Circle circle(ranks(), fetch(), ++seed);
        auto& out = results[count == few ? 0 : 1];
        std::vector<std::vector<std::byte>> in(ranks());
        std::vector<std::unique_ptr<Collective>> all;
        out.assign(ranks(), std::vector<std::byte>(many * element));
        for (uint32_t rank = 0; rank < ranks(); ++rank) {
          in[rank].resize(many * element);
          for (uint64_t i = 0; i < many; ++i)
            test::set_element(dtype, in[rank].data(), i, 1.1 + 0.37 * rank + 0.013 * double(i));
          all.push_back(std::make_unique<Collective>());
          all[rank]->parts = {{.in = in[rank].data(),
                               .out = out[rank].data(),
                               .count = count,
                               .dtype = dtype,
                               .op = op}};
          prepare(*all[rank], ranks());
          circle.start(rank, *all[rank]);
        }
        ASSERT_TRUE(circle.run()) << circle.waits();
      }
      for (uint32_t rank = 0; rank < ranks(); ++rank)
        ASSERT_EQ(std::memcmp(results[0][rank].data(), results[1][0].data(), few * element), 0)
            << dtype_name(dtype) << ' ' << op_name(op) << " rank " << rank;
    }
}

TEST_P(RingTest, A_line_whose_giver_hangs_up_fails_its_right_neighbour) {
  Circle circle(ranks(), fetch(), 15);
  auto all = members(2, false);
  for (uint32_t rank = 0; rank < ranks(); ++rank)
    if (rank != 1) circle.start(rank, all[rank]->collective);
  for (int turn = 0; turn < 200; ++turn)
    for (uint32_t rank = 0; rank < ranks(); ++rank) circle.ring(rank).advance();
  circle.ring(1).close();
  for (int turn = 0; turn < 5000; ++turn)
    for (uint32_t rank = 0; rank < ranks(); ++rank)
      if (rank != 1) circle.ring(rank).advance();
  EXPECT_EQ(circle.ring(RingPlace{1, ranks()}.right()).failure().code, NORIA_E_PEER);
  for (uint32_t rank = 0; rank < ranks(); ++rank) circle.ring(rank).close();
}

TEST_P(RingTest, Who_has_all_lines_and_no_room_for_its_own_misses_only_its_right_neighbour) {
  Circle circle(ranks(), fetch(), 17);
  auto all = members(1, false);
  for (uint32_t rank = 0; rank < ranks(); ++rank) circle.start(rank, all[rank]->collective);
  const auto turn = [&](uint32_t active) {
    for (int i = 0; i < 2000; ++i)
      for (uint32_t rank = 0; rank < active; ++rank) {
        test::set_fake_chances(50, rank == 0 ? 100 : 10);  // rank 0 sends nothing
        circle.ring(rank).advance();
      }
  };
  turn(ranks());
  EXPECT_EQ(circle.ring(0).waiting_for(), "rank 1 to take part");

  // Expect: with two ranks the left one is the right one as well.
  circle.ring(ranks() - 1).close();
  turn(1);
  EXPECT_EQ(circle.ring(0).failure().code, ranks() == 2 ? NORIA_E_PEER : NORIA_OK)
      << circle.ring(0).failure().text;
  circle.ring(1).close();
  turn(1);
  EXPECT_EQ(circle.ring(0).failure().code, NORIA_E_PEER);
  for (uint32_t rank = 0; rank < ranks(); ++rank) circle.ring(rank).close();
}

TEST_P(RingTest, Says_whose_line_it_waits_for) {
  Circle circle(ranks(), fetch(), 16);
  auto all = members(1, false);
  const uint32_t last = ranks() - 1;
  for (uint32_t rank = 0; rank < last; ++rank) circle.start(rank, all[rank]->collective);
  for (int turn = 0; turn < 2000; ++turn)
    for (uint32_t rank = 0; rank < last; ++rank) circle.ring(rank).advance();

  // Expect: the one that did not come, whoever stands between.
  const std::string name = "rank " + std::to_string(last);
  EXPECT_EQ(circle.ring(0).waiting_for(), "the start of collective 1 from " + name);
  for (uint32_t rank = 1; rank < last; ++rank)
    EXPECT_EQ(circle.ring(rank).waiting_for(),
              name + "'s part of collective 1 from rank " + std::to_string(rank - 1));
  for (uint32_t rank = 0; rank < ranks(); ++rank) circle.ring(rank).close();
}

TEST_P(RingTest, Says_what_it_waits_for) {
  Circle circle(ranks(), fetch(), 13);
  auto all = members(2 * full_segment(), false);
  std::vector<std::atomic<uint32_t>> pending(all[0]->collective.segments.size());
  for (auto& count : pending) count = 1;
  all[0]->collective.pending = pending.data();
  const std::string left = "rank " + std::to_string(ranks() - 1);

  circle.start(0, all[0]->collective);
  for (int turn = 0; turn < 1000; ++turn) circle.ring(0).advance();
  EXPECT_EQ(circle.ring(0).waiting_for(), "the start of collective 1 from " + left);

  for (uint32_t rank = 1; rank < ranks(); ++rank) circle.start(rank, all[rank]->collective);
  for (int turn = 0; turn < 1000; ++turn)
    for (uint32_t rank = 0; rank < ranks(); ++rank) circle.ring(rank).advance();
  EXPECT_EQ(circle.ring(0).waiting_for(), "segment 1 of 2 to become ready on this rank");
  EXPECT_EQ(circle.ring(1).waiting_for(), "segment 1 of 2 from rank 0");
  for (uint32_t rank = 0; rank < ranks(); ++rank) circle.ring(rank).close();
}

}  // namespace
}  // namespace noria::bucketing
