// Rings of forked ranks on the software HCA: every dtype and size, reads and messages, against
// float64 and against each other.

#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "bucketing/kernels.hpp"
#include "tests/support/element_values.hpp"
#include "tests/support/ranks.hpp"
#include "tests/support/ring_rank.hpp"

namespace noria::bucketing {
namespace {

struct Case {
  int32_t ranks;
  const char* fetch;
};

class RingConformance : public ::testing::TestWithParam<Case> {
 protected:
  int32_t size() const { return GetParam().ranks; }

  void run(const std::function<void(test::RingRank&)>& body) const {
    const test::MeetingPoint point;
    const Case param = GetParam();
    test::run_ranks(param.ranks, [&](int32_t rank, test::Wire&) {
      test::RingRank member(point, rank, param.ranks, param.fetch);
      ASSERT_NE(member.ring, nullptr);
      ASSERT_EQ(member.ring->fetch() == RingFetch::message, std::string(param.fetch) == "message");
      ASSERT_EQ(member.ring->fetch() == RingFetch::read, std::string(param.fetch) == "read");
      body(member);
    });
  }
};
std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  return std::to_string(info.param.ranks) + "_" + info.param.fetch;
}
INSTANTIATE_TEST_SUITE_P(Ways, RingConformance,
                         ::testing::Values(Case{2, "auto"}, Case{2, "read"}, Case{2, "message"},
                                           Case{3, "auto"}, Case{3, "read"}, Case{4, "auto"},
                                           Case{4, "message"}, Case{8, "auto"}, Case{8, "read"}),
                         name_of);

// Exact in every dtype, different by rank and index.
double value(int32_t rank, uint64_t index) {
  return static_cast<double>((static_cast<uint64_t>(rank) * 5 + index * 3) % 16) / 8;
}
double integer_value(int32_t rank, uint64_t index) {
  return static_cast<double>(rank + 1) * static_cast<double>(index % 10007) - 5000;
}

struct Buffer {
  // `shift` bytes from where the allocator put it.
  Buffer(noria_dtype type, uint64_t elements, uint64_t shift)
      : dtype(type),
        count(elements),
        memory(elements * dtype_bytes(type) + shift),
        data(memory.data() + shift) {}

  void fill(int32_t rank) {
    for (uint64_t i = 0; i < count; ++i)
      test::set_element(dtype, data, i,
                        is_integer(dtype) ? integer_value(rank, i) : value(rank, i));
  }
  double at(uint64_t i) const { return test::element(dtype, data, i); }

  noria_dtype dtype;
  uint64_t count;
  std::vector<std::byte> memory;
  std::byte* data;
};

std::unique_ptr<Collective> all_reduce(const Buffer& in, Buffer& out, noria_op op, int32_t ranks) {
  auto collective = std::make_unique<Collective>();
  collective->parts = {
      {.in = in.data, .out = out.data, .count = in.count, .dtype = in.dtype, .op = op}};
  prepare(*collective, static_cast<uint32_t>(ranks));
  return collective;
}

// All ranks have the same bits: a barrier's worth of checking through the control plane.
void expect_equal_everywhere(test::RingRank& member, const Buffer& buffer) {
  uint64_t hash = 0xCBF29CE484222325;
  for (uint64_t i = 0; i < buffer.count * dtype_bytes(buffer.dtype); ++i)
    hash = (hash ^ static_cast<uint64_t>(buffer.data[i])) * 0x100000001B3;
  const std::string own(reinterpret_cast<const char*>(&hash), sizeof hash);
  const auto all = member.control->all_gather("hash", own, now_ns() + test::kPatience);
  ASSERT_TRUE(all.is_ok()) << all.failure().text;
  for (const std::string& other : *all) ASSERT_EQ(other, own) << "ranks differ";
}

void expect_result(const Buffer& out, noria_op op, int32_t ranks) {
  const double epsilon = test::epsilon_of(out.dtype);
  for (uint64_t i = 0; i < out.count; ++i) {
    const auto input = [&](int32_t rank) {
      return is_integer(out.dtype) ? integer_value(rank, i) : value(rank, i);
    };
    double exact = input(0), magnitude = std::fabs(exact);
    for (int32_t rank = 1; rank < ranks; ++rank) {
      const double x = input(rank);
      magnitude += std::fabs(x);
      switch (op) {
        case NORIA_PROD: exact *= x; break;
        case NORIA_MAX: exact = std::max(exact, x); break;
        case NORIA_MIN: exact = std::min(exact, x); break;
        default: exact += x; break;
      }
    }
    if (op == NORIA_AVG) exact /= ranks;
    // Expect: integers exact, |error| <= n * eps * sum |x|.
    ASSERT_LE(std::fabs(out.at(i) - exact), ranks * epsilon * magnitude)
        << dtype_name(out.dtype) << ' ' << op_name(op) << " element " << i << " of " << out.count;
  }
}

TEST_P(RingConformance, All_dtypes_and_operations_at_sizes_around_every_edge) {
  run([](test::RingRank& member) {
    const auto n = static_cast<uint64_t>(member.size());
    int combination = 0;
    for (const noria_dtype dtype :
         {NORIA_FLOAT32, NORIA_FLOAT64, NORIA_FLOAT16, NORIA_BFLOAT16, NORIA_INT32, NORIA_INT64})
      for (const uint64_t count : {uint64_t{0}, uint64_t{1}, n - 1, n, n + 1, 1000 * n + 7,
                                   kChunkBytes / dtype_bytes(dtype) + 1}) {
        for (const noria_op op : {NORIA_SUM, NORIA_MAX, NORIA_AVG}) {
          if (op == NORIA_AVG && is_integer(dtype)) continue;
          const bool in_place = ++combination % 2 == 0;
          const auto shift = static_cast<uint64_t>(combination % 3) * dtype_bytes(dtype);
          Buffer in(dtype, count, shift), out(dtype, count, shift);
          in.fill(member.rank());
          out.fill(member.rank());
          const auto collective = all_reduce(in_place ? out : in, out, op, member.size());
          ASSERT_TRUE(member.run(*collective));
          ASSERT_NO_FATAL_FAILURE(expect_result(out, op, member.size()));
          ASSERT_NO_FATAL_FAILURE(expect_equal_everywhere(member, out));
          // Expect: an input beside the result is as it was.
          for (uint64_t i = 0; i < count; i += 97)
            ASSERT_EQ(in.at(i), is_integer(dtype) ? integer_value(member.rank(), i)
                                                  : value(member.rank(), i));
        }
      }
  });
}

TEST_P(RingConformance, Segment_edges_and_25_MiB) {
  run([](test::RingRank& member) {
    const uint64_t segment = static_cast<uint64_t>(member.size()) * kChunkBytes / sizeof(float);
    for (const uint64_t count : {segment - 1, segment, segment + 1, 2 * segment + 1,
                                 uint64_t{25 * 1024 * 1024 / sizeof(float)}}) {
      Buffer in(NORIA_FLOAT32, count, 4), out(NORIA_FLOAT32, count, 8);
      in.fill(member.rank());
      const auto collective = all_reduce(in, out, NORIA_SUM, member.size());
      ASSERT_TRUE(member.run(*collective));
      ASSERT_NO_FATAL_FAILURE(expect_result(out, NORIA_SUM, member.size()));
      ASSERT_NO_FATAL_FAILURE(expect_equal_everywhere(member, out));
    }
  });
}

TEST_P(RingConformance, Segments_get_ready_by_other_threads_in_any_order) {
  run([](test::RingRank& member) {
    const uint64_t count =
        static_cast<uint64_t>(member.size()) * kChunkBytes / sizeof(float) * 3 + 5;
    const uint64_t bytes = count * sizeof(float);
    auto arena = member.domain->allocate(bytes);
    ASSERT_TRUE(arena.is_ok());
    Collective step;
    step.parts = {{.in = arena->base(),
                   .out = arena->base(),
                   .count = count,
                   .op = NORIA_AVG,
                   .in_region = &*arena,
                   .out_region = &*arena}};
    prepare(step, static_cast<uint32_t>(member.size()));
    ASSERT_TRUE(member.ring->exchange_parts(step, now_ns() + test::kPatience).is_ok());
    std::vector<std::atomic<uint32_t>> pending(step.segments.size());
    step.pending = pending.data();

    for (uint32_t round = 0; round < 3; ++round) {
      std::memset(arena->base(), 0xFF, bytes);
      for (auto& left : pending) left.store(1, std::memory_order_relaxed);
      std::vector<uint32_t> order(step.segments.size());
      for (uint32_t k = 0; k < order.size(); ++k) order[k] = k;
      std::mt19937 random(round * 100 + static_cast<uint32_t>(member.rank()));
      std::shuffle(order.begin(), order.end(), random);
      std::thread backward([&] {
        for (const uint32_t k : order) {
          const Segment& segment = step.segments[k];
          for (uint64_t i = segment.first; i < segment.first + segment.count; ++i)
            test::set_element(NORIA_FLOAT32, arena->base(), i, value(member.rank(), i + round));
          pending[k].fetch_sub(1, std::memory_order_release);
        }
      });
      const auto result = member.run(step);
      backward.join();
      ASSERT_TRUE(result);
      for (uint64_t i = 0; i < count; ++i) {
        double sum = 0;
        for (int32_t rank = 0; rank < member.size(); ++rank) sum += value(rank, i + round);
        ASSERT_NEAR(test::element(NORIA_FLOAT32, arena->base(), i), sum / member.size(), 1e-6);
      }
    }
  });
}

TEST_P(RingConformance, Broadcasts_and_barriers_between_reductions) {
  run([](test::RingRank& member) {
    const uint64_t count = 2 * kChunkBytes / sizeof(int32_t) + 3;
    for (int32_t root = 0; root < member.size(); ++root) {
      Buffer in(NORIA_INT32, count, 0), out(NORIA_INT32, count, 0);
      in.fill(member.rank());
      Collective broadcast;
      broadcast.kind = Kind::broadcast;
      broadcast.root = root;
      broadcast.parts = {{.in = in.data, .out = out.data, .count = count, .dtype = NORIA_INT32}};
      prepare(broadcast, static_cast<uint32_t>(member.size()));
      ASSERT_TRUE(member.run(broadcast));
      for (uint64_t i = 0; i < count; ++i) ASSERT_EQ(out.at(i), integer_value(root, i));

      Collective barrier;
      barrier.kind = Kind::barrier;
      ASSERT_TRUE(member.run(barrier));

      const auto collective = all_reduce(in, out, NORIA_SUM, member.size());
      ASSERT_TRUE(member.run(*collective));
      ASSERT_NO_FATAL_FAILURE(expect_result(out, NORIA_SUM, member.size()));
    }
  });
}

TEST_P(RingConformance, Many_small_reductions_in_a_row) {
  run([](test::RingRank& member) {
    for (int round = 0; round < 300; ++round) {
      const uint64_t count = 1 + static_cast<uint64_t>(round) % 40;
      Buffer data(NORIA_INT64, count, 0);
      for (uint64_t i = 0; i < count; ++i)
        test::set_element(NORIA_INT64, data.data, i, member.rank() * 1000 + round);
      const auto collective = all_reduce(data, data, NORIA_SUM, member.size());
      ASSERT_TRUE(member.run(*collective));
      const int32_t n = member.size();
      for (uint64_t i = 0; i < count; ++i)
        ASSERT_EQ(data.at(i), n * (n - 1) / 2 * 1000 + n * round);
    }
  });
}

// A line comes without a completion, and a rank may sleep long before its neighbour comes.
TEST(RingLines, Whoever_sleeps_for_a_line_is_woken_by_a_rank_that_was_late) {
  const test::MeetingPoint point;
  test::run_ranks(2, [&](int32_t rank, test::Wire&) {
    test::RingRank member(point, rank, 2, "auto");
    ASSERT_NE(member.ring, nullptr);
    for (int round = 0; round < 4; ++round) {
      // Nobody is in the last one any more.  One comes late, when the other is asleep for good.
      ASSERT_TRUE(member.control->all_gather("round", "", now_ns() + test::kPatience).is_ok());
      const Nanoseconds until = now_ns() + (round % 2 == rank ? 20_ms : 0);
      while (now_ns() < until) ::poll(nullptr, 0, 1);
      Collective barrier;
      barrier.kind = Kind::barrier;
      member.ring->start(barrier);
      const Nanoseconds deadline = now_ns() + test::kPatience;
      auto progress = Ring::Progress::some;
      while (progress != Ring::Progress::finished && now_ns() < deadline) {
        progress = member.ring->advance();
        ASSERT_NE(progress, Ring::Progress::failed) << member.ring->failure().text;
        if (progress == Ring::Progress::none) {
          ASSERT_TRUE(member.domain->arm_and_wait(deadline, -1).is_ok());
        }
      }
      ASSERT_EQ(progress, Ring::Progress::finished) << member.ring->waiting_for();
    }
  });
}

TEST(RingConnect, Ranks_that_ask_for_different_ways_to_fetch_are_told) {
  const test::MeetingPoint point;
  test::run_ranks(3, [&](int32_t rank, test::Wire&) {
    Params params = test::params_from_environment();
    params.ring_fetch = rank == 2 ? "message" : rank == 1 ? "read" : "auto";
    const auto provider = test::provider_from_environment();
    const auto control = point.join(rank, 3);
    const auto domain = test::make_domain(provider, params);
    ASSERT_NE(control, nullptr);
    ASSERT_NE(domain, nullptr);
    const auto ring =
        Ring::connect(*domain, *control, params, "127.0.0.1", now_ns() + test::kPatience);

    // Expect: the same text everywhere, with both ranks and values.
    ASSERT_FALSE(ring.is_ok());
    EXPECT_EQ(ring.failure().code, NORIA_E_MISMATCH);
    EXPECT_EQ(
        ring.failure().text,
        "NORIA_RING_FETCH is read on rank 1 and message on rank 2: set it alike on all ranks");
    control->leave(now_ns() + test::kPatience);
  });
}

}  // namespace
}  // namespace noria::bucketing
