#include <algorithm>
#include <array>
#include <utility>

#include "bucketing/kernels.hpp"
#include "bucketing/plan_walk.hpp"

namespace noria::bucketing {
namespace {

// A cap that a bucket may reach and still be followed without a gap by the rest of a tensor.
uint64_t whole_lines(uint64_t cap) {
  return std::max(cap / kBucketAlign, uint64_t{1}) * kBucketAlign;
}

struct Closed {
  Bucket bucket;
  uint32_t step = 0;  // of the walk, in which it became complete
};

// Fills the buckets of one dtype.
class StrictLine {
 public:
  // A first or a last bucket larger than the others would break the cap.
  explicit StrictLine(const PlanCaps& caps)
      : cap_(whole_lines(caps.bucket_bytes)),
        last_cap_(std::min(cap_, whole_lines(caps.last_bucket_bytes))),
        room_(std::min(cap_, whole_lines(caps.first_bucket_bytes))) {}

  // Of each tensor before the first add(): where the last bucket begins depends on it.
  void expect(uint64_t bytes) { to_come_ += bytes; }

  void add(uint32_t index, uint64_t bytes, uint32_t step, std::vector<Closed>& closed) {
    const bool is_last_tensor = bytes != 0 && to_come_ == bytes;
    uint64_t head = is_last_tensor && bytes > last_cap_ ? bytes - last_cap_ : 0;
    const bool begins_last_bucket = !is_in_last_bucket_ && to_come_ <= last_cap_;
    const bool fits_the_next = bytes > room_ && bytes <= cap_ && head == 0;
    if (begins_last_bucket || fits_the_next) close(closed);
    is_in_last_bucket_ |= begins_last_bucket || head != 0;
    to_come_ -= bytes;

    step_ = step;
    if (head != 0) {
      pour(index, head, closed);
      const uint64_t to_edge = align_up(open_.bytes, kBucketAlign) - open_.bytes;
      pour(index, to_edge, closed);
      head += to_edge;
      close(closed);
    }
    pour(index, bytes - head, closed);
    list(index);  // an empty tensor too has a place
  }

  // What never became full.
  void close(std::vector<Closed>& closed) {
    if (open_.tensors.empty()) return;
    closed.push_back({.bucket = std::exchange(open_, Bucket{}), .step = step_});
    room_ = cap_;
  }

 private:
  // A full bucket is closed when more is to come, and the tensor goes on in the next.
  void pour(uint32_t index, uint64_t bytes, std::vector<Closed>& closed) {
    while (bytes != 0) {
      if (room_ == 0) close(closed);
      list(index);
      const uint64_t piece = std::min(bytes, room_);
      open_.bytes += piece;
      room_ -= piece;
      bytes -= piece;
    }
  }

  void list(uint32_t index) {
    if (open_.tensors.empty() || open_.tensors.back() != index) open_.tensors.push_back(index);
  }

  const uint64_t cap_, last_cap_;
  uint64_t room_, to_come_ = 0;
  bool is_in_last_bucket_ = false;
  Bucket open_;
  uint32_t step_ = 0;
};

}  // namespace

std::vector<Bucket> walk_strict(std::span<const PlanTensor> tensors,
                                std::span<const uint32_t> fill_order, const PlanCaps& caps) {
  std::vector<StrictLine> lines(kPlanDtypes, StrictLine(caps));
  const auto line_of = [&](const PlanTensor& tensor) -> StrictLine& {
    return lines[static_cast<size_t>(tensor.dtype)];
  };
  const auto bytes_of = [](const PlanTensor& tensor) {
    return tensor.numel * dtype_bytes(tensor.dtype);
  };
  for (const PlanTensor& tensor : tensors) line_of(tensor).expect(bytes_of(tensor));

  std::vector<Closed> closed;
  for (uint32_t step = 0; step < fill_order.size(); ++step) {
    const PlanTensor& tensor = tensors[fill_order[step]];
    line_of(tensor).add(fill_order[step], bytes_of(tensor), step, closed);
  }
  for (StrictLine& line : lines) line.close(closed);
  std::stable_sort(closed.begin(), closed.end(),
                   [](const Closed& a, const Closed& b) { return a.step < b.step; });

  std::vector<Bucket> buckets;
  buckets.reserve(closed.size());
  for (Closed& one : closed) {
    Bucket& bucket = one.bucket;
    bucket.dtype = tensors[bucket.tensors.front()].dtype;
    bucket.numel = bucket.bytes / dtype_bytes(bucket.dtype);
    buckets.push_back(std::move(bucket));
  }
  return buckets;
}

}  // namespace noria::bucketing
