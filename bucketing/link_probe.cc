#include "bucketing/link_probe.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "bucketing/collective.hpp"
#include "bucketing/plan.hpp"

namespace noria::bucketing {

namespace {

constexpr std::array<uint64_t, 2> kProbedBytes{64_KiB, kMostProbedBytes};
constexpr int kRounds = 5;  // of each, after one that warms up

template <class T>
std::string bytes_of(const T& value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

// The slowest rank's, point by point.
Outcome<std::array<double, 2>> slowest(const std::vector<std::string>& ranks) {
  std::array<double, 2> most{};
  for (const std::string& bytes : ranks) {
    std::array<double, 2> us{};
    if (bytes.size() != sizeof us)
      return Failure{NORIA_E_MISMATCH, "a rank's times of the link have another size than here"};
    std::memcpy(us.data(), bytes.data(), sizeof us);
    for (size_t i = 0; i < us.size(); ++i) most[i] = std::max(most[i], us[i]);
  }
  return most;
}

}  // namespace

Outcome<double> median_us(const std::function<Outcome<double>()>& probe) {
  std::vector<double> us;
  for (int round = 0; round <= kRounds; ++round) {
    NORIA_TRY_ASSIGN(const double took, probe());
    if (round > 0) us.push_back(took);
  }
  std::nth_element(us.begin(), us.begin() + kRounds / 2, us.end());
  return us[kRounds / 2];
}

Outcome<double> ring_probe_us(const ReducerHost& host, const Arena& arena, Nanoseconds timeout,
                              uint64_t bytes) {
  Collective probe;
  probe.parts = {{.in = arena.base(),
                  .out = arena.base(),
                  .count = bytes / sizeof(float),
                  .dtype = NORIA_FLOAT32,
                  .op = NORIA_SUM,
                  .in_region = arena.region(),
                  .out_region = arena.region()}};
  probe.timeout_ns = timeout;
  prepare(probe, static_cast<uint32_t>(host.size));
  if (Ring* ring = host.engine->ring(); ring != nullptr)
    NORIA_TRY(ring->exchange_parts(probe, now_ns() + host.start_timeout));
  return median_us([&]() -> Outcome<double> {
    probe.state.store(Collective::State::queued, std::memory_order_relaxed);  // as in a step
    const Nanoseconds begun = now_ns();
    NORIA_TRY(host.engine->run(probe));
    return static_cast<double>(now_ns() - begun) * 1e-3;
  });
}

Outcome<LinkCurve> measure_link(const ReducerHost& host, uint64_t most_bytes, const Gather& ask_all,
                                const std::function<Outcome<double>(uint64_t)>& probe_us) {
  if (host.size == 1) return LinkCurve{};
  const bool is_busy = host.open_steps->any();
  const Outcome<Ok> free =
      is_busy ? Outcome<Ok>(Failure{NORIA_E_STATE,
                                    "a planned reducer measures the link at seal, and another "
                                    "reducer has a step open on this communicator: end it first"})
              : Ok{};
  NORIA_TRY(agree_on_success(free, "reducer seal, link", ask_all));
  std::array<LinkPoint, 2> points;
  std::array<double, 2> mine{};
  for (size_t i = 0; i < points.size(); ++i) {
    points[i].bytes = std::min(kProbedBytes[i], most_bytes / kBucketAlign * kBucketAlign);
    NORIA_TRY_ASSIGN(mine[i], probe_us(points[i].bytes));
  }
  NORIA_TRY_ASSIGN(const auto all, ask_all("reducer seal, times of the link", bytes_of(mine)));
  NORIA_TRY_ASSIGN(const auto us, slowest(all));
  for (size_t i = 0; i < points.size(); ++i) points[i].us = us[i];
  const LinkCurve link = fit_link_curve(points[0], points[1]);
  log(LogLevel::info, "rank %d: the link takes %.1f us and %.2f GB/s for a bucket", host.rank,
      link.alpha_us, link.bytes_per_us * 1e-3);
  return link;
}

}  // namespace noria::bucketing
