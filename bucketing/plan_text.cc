#include "bucketing/plan_text.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "base/fingerprint.hpp"
#include "base/value_text.hpp"
#include "bucketing/kernels.hpp"
#include "bucketing/plan_walk.hpp"

namespace noria::bucketing {
namespace {

constexpr std::string_view kHead = "noria_plan";
constexpr std::string_view kVersion = "1";
constexpr std::string_view kPacked = "packed";
constexpr std::string_view kLines = "lines";
constexpr uint64_t kMostElements = uint64_t{1} << 47;  // TensorTable takes no more bytes than that

std::optional<noria_dtype> find_dtype(std::string_view name) {
  for (noria_dtype dtype = 0; dtype < static_cast<noria_dtype>(kPlanDtypes); ++dtype)
    if (is_reducible(dtype) && name == dtype_name(dtype)) return dtype;
  return std::nullopt;
}

// A line, taken apart from its front; remembers where it is for the text of a failure.
class Line {
 public:
  Line(std::string_view text, const std::string& file, size_t number)
      : file_(&file), all_(text), rest_(text), number_(number) {}

  size_t number() const { return number_; }

  // Of the last word that was taken.
  Failure failure(const std::string& what) const {
    return Failure{NORIA_E_ARG, printable(*file_) + ":" + std::to_string(number_) + ":" +
                                    std::to_string(token_ + 1) + ": " + what};
  }

  // Up to the next space, which is taken too.
  std::string_view word() {
    token_ = all_.size() - rest_.size();
    return detail::take_until(&rest_, ' ');
  }
  std::string_view to_end() {
    token_ = all_.size() - rest_.size();
    return std::exchange(rest_, {});
  }
  Outcome<uint64_t> number_below(uint64_t limit, const char* what) {
    const std::string_view text = word();
    uint64_t value = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (text.empty() || error != std::errc() || stop != text.data() + text.size() || value >= limit)
      return failure(std::string(what) + " is '" + printable(std::string(text)) +
                     "': a whole number below " + std::to_string(limit) + " is expected");
    return value;
  }
  Outcome<noria_dtype> dtype() {
    const std::string_view text = word();
    if (const auto found = find_dtype(text)) return *found;
    return failure("'" + printable(std::string(text)) + "' is no dtype that can be reduced");
  }
  Outcome<Ok> end() {
    if (rest_.empty()) return Ok{};
    token_ = all_.size() - rest_.size();
    return failure("nothing more is expected here");
  }

 private:
  const std::string* file_;
  std::string_view all_, rest_;
  size_t number_ = 0, token_ = 0;
};

// Each dtype's buckets in the order of its elements; dtype by dtype.
std::vector<uint32_t> buckets_along_lines(const SavedPlan& plan) {
  std::vector<uint32_t> order(plan.buckets.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    const SavedPlan::OfBucket &left = plan.buckets[a], &right = plan.buckets[b];
    // One without elements comes behind all others.
    return std::tuple(left.dtype, left.first, left.end()) <
           std::tuple(right.dtype, right.first, right.end());
  });
  return order;
}

// Reads the rows, then looks whether they fit together.
class PlanReader {
 public:
  PlanReader(std::string_view text, const std::string& file) : text_(text), file_(file) {}

  Outcome<SavedPlan> run() {
    bool has_head = false;
    size_t number = 0;
    for (std::string_view rest = text_; !rest.empty();) {
      const std::string_view text = detail::take_until(&rest, '\n');
      Line line(text, file_, ++number);
      if (text.empty() || text.front() == '#') continue;
      NORIA_TRY(has_head ? read_row(line) : read_head(line));
      has_head = true;
    }
    const Line last("", file_, number + 1);
    if (!has_head) return last.failure(expected_head());
    NORIA_TRY(check_ids(last));
    NORIA_TRY(check_cover(last));
    return std::move(plan_);
  }

 private:
  static std::string expected_head() {
    return "a plan begins with '" + std::string(kHead) + " " + std::string(kVersion) +
           " packed' or '... lines'";
  }

  Outcome<Ok> read_head(Line& line) {
    if (line.word() != kHead) return line.failure(expected_head());
    if (line.word() != kVersion)
      return line.failure("this noria reads version " + std::string(kVersion) + " of plans");
    const std::string_view layout = line.word();
    if (layout != kPacked && layout != kLines) return line.failure(expected_head());
    plan_.is_packed = layout == kPacked;
    return line.end();
  }

  Outcome<Ok> read_row(Line& line) {
    const std::string_view kind = line.word();
    if (kind == "tensor") return read_tensor(line);
    if (kind == "bucket") return read_bucket(line);
    return line.failure("a row begins with 'tensor' or 'bucket'");
  }

  Outcome<Ok> read_tensor(Line& line) {
    SavedPlan::OfTensor tensor;
    if (!plan_.buckets.empty()) return line.failure("tensors come before buckets");
    NORIA_TRY_ASSIGN(const uint64_t id, line.number_below(UINT32_MAX, "a tensor's index"));
    tensor.id = static_cast<uint32_t>(id);
    NORIA_TRY_ASSIGN(tensor.dtype, line.dtype());
    NORIA_TRY_ASSIGN(tensor.numel, line.number_below(kMostElements, "a number of elements"));
    tensor.name = line.to_end();
    if (tensor.name.empty() || tensor.name != printable(tensor.name))
      return line.failure("a tensor's name of printable characters is expected");
    elements_ += tensor.numel;
    if (elements_ >= kMostElements)
      return line.failure("all tensors together have more elements than an address space holds");
    line_end(tensor.dtype) += tensor.numel;
    plan_.tensors.push_back(std::move(tensor));
    tensor_lines_.push_back(line.number());
    return Ok{};
  }

  Outcome<Ok> read_bucket(Line& line) {
    SavedPlan::OfBucket bucket;
    NORIA_TRY_ASSIGN(bucket.dtype, line.dtype());
    NORIA_TRY_ASSIGN(bucket.first, line.number_below(kMostElements, "a bucket's first element"));
    NORIA_TRY_ASSIGN(bucket.numel, line.number_below(kMostElements, "a number of elements"));
    NORIA_TRY(line.end());
    plan_.buckets.push_back(bucket);
    bucket_lines_.push_back(line.number());
    return Ok{};
  }

  Outcome<Ok> check_ids(const Line& last) const {
    std::vector<bool> is_seen(plan_.tensors.size(), false);
    for (size_t i = 0; i < plan_.tensors.size(); ++i) {
      const uint32_t id = plan_.tensors[i].id;
      if (id >= is_seen.size() || is_seen[id])
        return Line("", file_, tensor_lines_[i])
            .failure("index " + std::to_string(id) +
                     (id < is_seen.size()
                          ? " comes twice"
                          : ": only " + std::to_string(is_seen.size()) + " tensors are listed"));
      is_seen[id] = true;
    }
    if (plan_.tensors.empty() != plan_.buckets.empty())
      return last.failure("tensors need buckets, and buckets tensors");
    return Ok{};
  }

  // Of each dtype the buckets, put in order, follow each other from its first element to its last.
  Outcome<Ok> check_cover(const Line& last) {
    std::array<uint64_t, kPlanDtypes> covered{};
    std::array<bool, kPlanDtypes> is_over{};  // nothing comes behind a bucket without elements
    for (const uint32_t b : buckets_along_lines(plan_)) {
      const SavedPlan::OfBucket& bucket = plan_.buckets[b];
      const auto dtype = static_cast<size_t>(bucket.dtype);
      const Line line("", file_, bucket_lines_[b]);
      if (bucket.first != covered[dtype] || is_over[dtype])
        return line.failure("a " + std::string(dtype_name(bucket.dtype)) +
                            " bucket is expected to begin at element " +
                            std::to_string(covered[dtype]));
      if (bucket.end() > line_end(bucket.dtype))
        return line.failure("it ends past the " + std::to_string(line_end(bucket.dtype)) + " " +
                            dtype_name(bucket.dtype) + " elements that there are");
      covered[dtype] = bucket.end();
      is_over[dtype] = bucket.numel == 0;
    }
    for (const SavedPlan::OfTensor& tensor : plan_.tensors) {
      const auto dtype = static_cast<size_t>(tensor.dtype);
      if (covered[dtype] != line_end(tensor.dtype) || !has_bucket(tensor.dtype))
        return last.failure("no bucket holds the " + std::string(dtype_name(tensor.dtype)) +
                            " elements from " + std::to_string(covered[dtype]) + " on");
    }
    return check_cuts();
  }

  bool has_bucket(noria_dtype dtype) const {
    return std::any_of(plan_.buckets.begin(), plan_.buckets.end(),
                       [&](const SavedPlan::OfBucket& bucket) { return bucket.dtype == dtype; });
  }

  // A tensor that is split must lie without a gap, though the next bucket begins on a line.
  Outcome<Ok> check_cuts() const {
    if (plan_.is_packed) return Ok{};
    std::array<std::vector<uint64_t>, kPlanDtypes> edges;  // between tensors
    std::array<uint64_t, kPlanDtypes> next{};
    for (const SavedPlan::OfTensor& tensor : plan_.tensors) {
      const auto dtype = static_cast<size_t>(tensor.dtype);
      edges[dtype].push_back(next[dtype] += tensor.numel);
    }
    for (size_t b = 0; b < plan_.buckets.size(); ++b) {
      const SavedPlan::OfBucket& bucket = plan_.buckets[b];
      const auto& of_dtype = edges[static_cast<size_t>(bucket.dtype)];
      const bool is_cut =
          bucket.end() != 0 && !std::binary_search(of_dtype.begin(), of_dtype.end(), bucket.end());
      if (is_cut && bucket.numel * dtype_bytes(bucket.dtype) % kBucketAlign != 0)
        return Line("", file_, bucket_lines_[b])
            .failure("it ends within a tensor, so that its bytes must be a multiple of " +
                     std::to_string(kBucketAlign));
    }
    return Ok{};
  }

  uint64_t& line_end(noria_dtype dtype) { return line_ends_[static_cast<size_t>(dtype)]; }

  std::string_view text_;
  const std::string& file_;
  SavedPlan plan_;
  std::vector<size_t> tensor_lines_, bucket_lines_;
  std::array<uint64_t, kPlanDtypes> line_ends_{};  // elements
  uint64_t elements_ = 0;
};

std::string row(std::initializer_list<std::string_view> words) {
  std::string text;
  for (const std::string_view word : words) text += (text.empty() ? "" : " ") + std::string(word);
  return text + "\n";
}

}  // namespace

Outcome<SavedPlan> parse_plan(std::string_view text, const std::string& file) {
  return PlanReader(text, file).run();
}

std::string text_of(const SavedPlan& saved) {
  std::string text = row({kHead, kVersion, saved.is_packed ? kPacked : kLines});
  for (const SavedPlan::OfTensor& tensor : saved.tensors)
    text += row({"tensor", std::to_string(tensor.id), dtype_name(tensor.dtype),
                 std::to_string(tensor.numel), tensor.name});
  for (const SavedPlan::OfBucket& bucket : saved.buckets)
    text += row({"bucket", dtype_name(bucket.dtype), std::to_string(bucket.first),
                 std::to_string(bucket.numel)});
  return text;
}

SavedPlan saved_of(const Plan& plan, const TensorTable& tensors, bool is_packed) {
  SavedPlan saved{.is_packed = is_packed};
  std::vector<uint32_t> along(plan.buckets.size());
  std::iota(along.begin(), along.end(), 0U);
  std::stable_sort(along.begin(), along.end(), [&](uint32_t a, uint32_t b) {
    const Bucket &left = plan.buckets[a], &right = plan.buckets[b];
    // One without elements lies anywhere in the arena; along the line it comes behind all others.
    return std::tuple(left.dtype, left.bytes != 0 ? 0 : 1, left.arena_offset) <
           std::tuple(right.dtype, right.bytes != 0 ? 0 : 1, right.arena_offset);
  });
  saved.buckets.resize(plan.buckets.size());
  std::array<uint64_t, kPlanDtypes> next{};
  uint32_t split = kNoTensor;
  for (const uint32_t b : along) {
    const Bucket& bucket = plan.buckets[b];
    uint64_t& first = next[static_cast<size_t>(bucket.dtype)];
    saved.buckets[b] = {.dtype = bucket.dtype, .first = first, .numel = bucket.numel};
    first += bucket.numel;
    for (const uint32_t id : bucket.tensors) {
      if (id == split) continue;
      const Tensor& tensor = tensors[id];
      saved.tensors.push_back(
          {.id = id, .dtype = tensor.dtype, .numel = tensor.numel, .name = printable(tensor.name)});
    }
    if (!bucket.tensors.empty()) split = bucket.tensors.back();
  }
  return saved;
}

Outcome<Plan> plan_of(const SavedPlan& saved, const TensorTable& tensors) {
  if (saved.tensors.size() != tensors.size())
    return Failure{NORIA_E_ARG, "the loaded plan is of " + std::to_string(saved.tensors.size()) +
                                    " tensors, and " + std::to_string(tensors.size()) +
                                    " were registered"};
  std::vector<PlanTensor> shapes(tensors.size());
  for (const SavedPlan::OfTensor& of : saved.tensors) {
    const Tensor& tensor = tensors[of.id];
    if (of.dtype != tensor.dtype || of.numel != tensor.numel || of.name != printable(tensor.name))
      return Failure{NORIA_E_ARG, "tensor " + std::to_string(of.id) + " of the loaded plan is '" +
                                      of.name + "', " + dtype_name(of.dtype) + ", " +
                                      std::to_string(of.numel) + " elements; registered was " +
                                      tensors.describe(of.id)};
    shapes[of.id] = {.numel = of.numel, .dtype = of.dtype};
  }

  Plan plan;
  const std::vector<uint32_t> along = buckets_along_lines(saved);
  for (const uint32_t b : along) {
    const SavedPlan::OfBucket& of = saved.buckets[b];
    plan.buckets.push_back(
        {.dtype = of.dtype, .numel = of.numel, .bytes = of.numel * dtype_bytes(of.dtype)});
  }
  // A tensor is of each bucket that it overlaps; without elements, of the one that begins there.
  std::array<size_t, kPlanDtypes> current{};
  std::array<uint64_t, kPlanDtypes> next{};
  for (size_t i = along.size(); i-- > 0;)
    current[static_cast<size_t>(saved.buckets[along[i]].dtype)] = i;
  for (const SavedPlan::OfTensor& tensor : saved.tensors) {
    size_t& i = current[static_cast<size_t>(tensor.dtype)];
    uint64_t& at = next[static_cast<size_t>(tensor.dtype)];
    const auto begins_by = [&](size_t bucket, uint64_t element) {
      return bucket < along.size() && saved.buckets[along[bucket]].dtype == tensor.dtype &&
             saved.buckets[along[bucket]].first <= element;
    };
    while (begins_by(i + 1, at)) ++i;
    plan.buckets[i].tensors.push_back(tensor.id);
    at += tensor.numel;
    while (saved.buckets[along[i]].end() < at) plan.buckets[++i].tensors.push_back(tensor.id);
  }
  lay_out(plan, shapes, saved.is_packed ? 1 : kBucketAlign);

  std::vector<Bucket> launched(plan.buckets.size());
  for (size_t i = 0; i < along.size(); ++i) launched[along[i]] = std::move(plan.buckets[i]);
  plan.buckets = std::move(launched);
  return plan;
}

uint64_t fingerprint_of(const SavedPlan& saved) {
  Fingerprint fingerprint;
  for (const char c : text_of(saved)) fingerprint.add(static_cast<unsigned char>(c));
  return std::max(fingerprint.value(), uint64_t{1});
}

}  // namespace noria::bucketing
