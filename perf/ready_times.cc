#include "perf/ready_times.hpp"

#include <algorithm>
#include <numeric>

namespace noria::perf {
namespace {

// Each tensor costs something however small it is: kernels are launched for it.
constexpr double kFixedWeight = 2000;

std::vector<uint32_t> reverse_registration(const Trace& trace) {
  std::vector<uint32_t> order(trace.tensors.size());
  std::iota(order.rbegin(), order.rend(), 0U);
  std::stable_partition(order.begin(), order.end(),
                        [&](uint32_t index) { return !is_embedding(trace.tensors[index].name); });
  return order;
}

std::vector<uint32_t> order_of(const Trace& trace) {
  if (!trace.arrival.empty()) return trace.arrival;
  std::vector<uint32_t> order = reverse_registration(trace);
  if (!trace.tensors.empty() && trace.tensors[0].ready_ms)
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
      return *trace.tensors[a].ready_ms < *trace.tensors[b].ready_ms;
    });
  return order;
}

}  // namespace

ReadyTimes ready_times(const Trace& trace, std::optional<double> backward_ms) {
  ReadyTimes times{.order = order_of(trace)};
  times.ready_ms.resize(trace.tensors.size());
  double clock = 0;
  for (const uint32_t index : times.order) {
    const TraceTensor& tensor = trace.tensors[index];
    if (tensor.ready_ms)
      clock = *tensor.ready_ms;
    else if (!is_embedding(tensor.name))
      clock += static_cast<double>(tensor.numel) + kFixedWeight;
    times.ready_ms[index] = clock;
  }
  times.backward_ms = backward_ms.value_or(clock);
  const double scale = clock > 0 ? times.backward_ms / clock : 0;
  for (double& ready : times.ready_ms) ready *= scale;
  // Where nothing weighs anything, all of it is ready at the end.
  if (clock <= 0) std::fill(times.ready_ms.begin(), times.ready_ms.end(), times.backward_ms);
  return times;
}

std::vector<uint32_t> ready_us(const ReadyTimes& times) {
  std::vector<uint32_t> us;
  for (const double ms : times.ready_ms)
    us.push_back(static_cast<uint32_t>(std::min(ms * 1e3, double{UINT32_MAX})));
  return us;
}

Trace tail_of(const Trace& trace, const ReadyTimes& times) {
  Trace tail{.name = trace.name};
  if (times.order.empty()) return tail;
  const double last_ms = times.ready_ms[times.order.back()];
  for (size_t i = 0; i < trace.tensors.size(); ++i)
    if (times.ready_ms[i] == last_ms) tail.tensors.push_back(trace.tensors[i]);
  return tail;
}

double step_of_full_buckets(std::span<const FullBucket> buckets) {
  double end = 0;
  for (const FullBucket& bucket : buckets) end = std::max(end, bucket.ready_ms) + bucket.wire_ms;
  return end;
}

}  // namespace noria::perf
