#include "bucketing/plan_timed.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "bucketing/kernels.hpp"
#include "bucketing/plan_walk.hpp"

namespace noria::bucketing {
namespace {

// What a bucket of the dtype costs, by its bytes in the arena: those that travel may be fewer.
LinkCurve curve_for(noria_dtype dtype, LinkCurve link, noria_dtype wire_dtype) {
  if (wire_dtype != 0 && dtype == NORIA_FLOAT32)
    link.bytes_per_us *= static_cast<double>(dtype_bytes(dtype)) / dtype_bytes(wire_dtype);
  return link;
}

// What lies between two possible edges.
struct Atom {
  uint64_t bytes = 0;
  double ready_us = 0;
  uint32_t tensors = 0;
};

std::vector<Atom> atoms_of(std::span<const PlanTensor> tensors, std::span<const uint32_t> line,
                           std::span<const uint32_t> ready_us) {
  const size_t together = div_up(std::max(line.size(), size_t{1}), kMostEdges);
  std::vector<Atom> atoms;
  for (size_t i = 0; i < line.size(); ++i) {
    if (i % together == 0) atoms.emplace_back();
    Atom& atom = atoms.back();
    atom.bytes += tensors[line[i]].numel * dtype_bytes(tensors[line[i]].dtype);
    atom.ready_us = std::max(atom.ready_us, static_cast<double>(ready_us[line[i]]));
    ++atom.tensors;
  }
  return atoms;
}

// Edges of one dtype's buckets: the numbers of atoms after which one ends.
class EdgeSearch {
 public:
  EdgeSearch(std::span<const Atom> atoms, const LinkCurve& curve) : atoms_(atoms), curve_(curve) {}

  std::vector<size_t> run() {
    find_earliest_ends();
    return fewest_edges();
  }

 private:
  // earliest_[n]: when the first n atoms can have arrived.
  void find_earliest_ends() {
    earliest_.assign(atoms_.size() + 1, std::numeric_limits<double>::infinity());
    earliest_[0] = 0;
    for (size_t end = 1; end <= atoms_.size(); ++end)
      for_each_last_bucket(end, [&](size_t begin, double ready, double cost) {
        earliest_[end] = std::min(earliest_[end], std::max(earliest_[begin], ready) + cost);
      });
  }

  // From the end: the largest bucket that still arrives by then, if what is before it can have
  // arrived when it must start.
  std::vector<size_t> fewest_edges() const {
    std::vector<size_t> edges;
    double by = earliest_.back();
    for (size_t end = atoms_.size(); end > 0;) {
      edges.push_back(end);
      size_t best = end - 1;
      double start = 0;
      // Sums in another order differ in their last digits.
      const double limit = by * (1 + 1e-12) + 1e-9;
      for_each_last_bucket(end, [&](size_t begin, double ready, double cost) {
        if (std::max(earliest_[begin], ready) + cost > limit) return;
        best = begin;
        start = by - cost;
      });
      by = std::max(start, earliest_[best]);
      end = best;
    }
    std::reverse(edges.begin(), edges.end());
    return edges;
  }

  // Of [begin, end), for each begin, from the smallest bucket to the largest.
  template <class Visit>
  void for_each_last_bucket(size_t end, const Visit& visit) const {
    double ready = 0;
    uint64_t bytes = 0;
    for (size_t begin = end; begin-- > 0;) {
      ready = std::max(ready, atoms_[begin].ready_us);
      bytes += atoms_[begin].bytes;
      visit(begin, ready, curve_.us(bytes));
    }
  }

  std::span<const Atom> atoms_;
  const LinkCurve& curve_;
  std::vector<double> earliest_;
};

void cut_line(std::span<const PlanTensor> tensors, std::span<const uint32_t> line,
              std::span<const uint32_t> ready_us, const LinkCurve& link, noria_dtype wire_dtype,
              std::vector<Bucket>& buckets) {
  if (line.empty()) return;
  const LinkCurve curve = curve_for(tensors[line[0]].dtype, link, wire_dtype);
  const std::vector<Atom> atoms = atoms_of(tensors, line, ready_us);
  size_t atom = 0, next = 0;
  for (const size_t edge : EdgeSearch(atoms, curve).run()) {
    Bucket bucket{.dtype = tensors[line[next]].dtype};
    for (; atom < edge; ++atom) {
      bucket.bytes += atoms[atom].bytes;
      for (uint32_t i = 0; i < atoms[atom].tensors; ++i) bucket.tensors.push_back(line[next++]);
    }
    bucket.numel = bucket.bytes / dtype_bytes(bucket.dtype);
    buckets.push_back(std::move(bucket));
  }
}

double ready_of(const Bucket& bucket, std::span<const uint32_t> ready_us) {
  double ready = 0;
  for (const uint32_t index : bucket.tensors)
    ready = std::max(ready, static_cast<double>(ready_us[index]));
  return ready;
}

}  // namespace

double modelled_end_us(const Plan& plan, std::span<const uint32_t> ready_us, const LinkCurve& curve,
                       noria_dtype wire_dtype) {
  double end = 0;
  for (const Bucket& bucket : plan.buckets)
    end = std::max(end, ready_of(bucket, ready_us)) +
          curve_for(bucket.dtype, curve, wire_dtype).us(bucket.bytes);
  return end;
}

Plan plan_by_times(std::span<const PlanTensor> tensors, std::span<const uint32_t> fill_order,
                   const PlanCaps& caps, std::span<const uint32_t> ready_us, const LinkCurve& curve,
                   noria_dtype wire_dtype) {
  std::array<std::vector<uint32_t>, kPlanDtypes> lines;
  for (const uint32_t index : fill_order)
    lines[static_cast<size_t>(tensors[index].dtype)].push_back(index);
  Plan searched;
  for (const auto& line : lines)
    cut_line(tensors, line, ready_us, curve, wire_dtype, searched.buckets);
  lay_out(searched, tensors, 1);
  Plan as_ddp = plan_buckets(PlanKind::planned, tensors, fill_order, caps);
  launch_in_order(searched, ready_us);
  launch_in_order(as_ddp, ready_us);
  const auto end_of = [&](const Plan& plan) {
    return modelled_end_us(plan, ready_us, curve, wire_dtype);
  };
  return end_of(as_ddp) < end_of(searched) ? as_ddp : searched;
}

}  // namespace noria::bucketing
