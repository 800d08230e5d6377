// Curves: what logs of nccl-tests say of one choice on one communicator, and lines through it.
//
// A row's choice is what NCCL said of it (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=TUNING), else what
// NCCL_ALGO and NCCL_PROTO of its table leave, else what the caller assumes; it stays open where
// none of them says it. All logs of one call are of one cluster.
//
// Threads: any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "perf/cells_left.hpp"
#include "perf/nccl_tests_text.hpp"
#include "perf/piecewise_fit.hpp"
#include "plugin/tuner/table.hpp"

namespace noria::perf {

// What the caller knows and a log does not say; 0 and none: not known either.
struct Assumed {
  uint64_t nodes = 0;
  uint64_t ranks_per_node = 0;
  std::optional<plugin::tuner::Algorithm> algorithm;
  std::optional<plugin::tuner::Protocol> protocol;
  std::optional<plugin::tuner::Collective> collective;
};

struct NamedLog {
  std::string file;
  NcclTestsLog log;
};

struct CurveKey {
  plugin::tuner::Collective collective = plugin::tuner::Collective::all_reduce;
  uint64_t nodes = 0;
  uint64_t ranks_per_node = 0;
  std::optional<plugin::tuner::Algorithm> algorithm;  // none: NCCL chose, and did not say what
  std::optional<plugin::tuner::Protocol> protocol;
  // Of those that algorithm and protocol leave, which NCCL chose from: all, unless the user's
  // variables left some out.
  Cells cells = kAllCells;

  bool is_free() const { return !algorithm && !protocol && cells == kAllCells; }
  uint64_t ranks() const { return nodes * ranks_per_node; }
  auto operator<=>(const CurveKey&) const = default;
};
CurveKey communicator_of(CurveKey key);  // without the choice

// Where the measurements are from of a curve that is not of its own communicator.
struct Scaling {
  uint64_t nodes = 0;
  uint64_t ranks_per_node = 0;
  std::vector<plugin::tuner::Range> stands_for;  // numbers of nodes that nobody measured
  plugin::tuner::Range bytes;                    // beyond, another scaled curve holds, or none
  uint64_t nics = 0, nics_there = 0;             // of a node

  // Tells scaled curves of one key apart: where they are from, and what they stand for.
  std::pair<uint64_t, uint64_t> origin() const { return {nodes, stands_for.front().first}; }
};

struct Curve {
  CurveKey key;
  std::vector<TimedSize> times;
  std::vector<std::string> sources;  // "job.log table 2"
  std::string gpu, nccl_version;     // of the last source; empty where it does not say
  bool is_guess = false;             // its choice is what NCCL's model says, and no log
  std::optional<Line> shape;         // of a guess: the model's line, for what has one size
  std::vector<uint64_t> edges;       // of a guess: where the model changes its choice
  std::optional<Scaling> scaling;    // scaled_curves()
};

// Where a curve of these times holds, in order: half an octave around each size, as sizes are that
// double, and between two that are four octaves apart or less. From 0 where 4 KiB or less was
// measured, for there is latency alone, and without end from 256 MiB on, where is bandwidth alone.
std::vector<plugin::tuner::Range> held_by(const std::vector<TimedSize>& times);
bool holds(const std::vector<plugin::tuner::Range>& held, uint64_t bytes);

inline constexpr double kHalfAnOctave = 1.41421356237309505;
inline constexpr uint64_t kWidestGap = 16;

// Five significant bits, within 3 %: the edge of a row is not known better, and reads as 20M.
uint64_t edge_at(double bytes);

struct Measured {
  std::vector<Curve> curves;          // in order of their keys
  std::vector<std::string> left_out;  // what gives no curve, and why, a line each
};

// Throws ToolError (usage) that names file, line and reason: a log without rows, a table that is
// not to be trusted (fault_of), of which ranks or nodes are not known, or that is contradicted by
// another of the same choice; logs of unlike GPUs.
Measured read_curves(const std::vector<NamedLog>& logs, const Assumed& assumed);

struct FittedCurve {
  Curve curve;
  std::vector<LinePiece> pieces;
  // Medians, and the largest of the residuals with its size; left_out is none below three sizes.
  double residual = 0;
  double worst = 0;
  uint64_t worst_bytes = 0;
  std::optional<double> left_out;
};

// Curves of one size without a shape join what was left out: a line takes two.
std::vector<FittedCurve> fit_curves(Measured* measured);

// Hopper for "NVIDIA H100 80GB HBM3"; nothing for a name that is not known.
std::optional<plugin::tuner::Gpu> gpu_of(const std::string& name);

// "all_reduce Ring/Simple, 2 nodes of 8"
std::string text_of(const CurveKey& key);
// "all_reduce, 2 nodes of 8"
std::string text_of_communicator(const CurveKey& key);

// Messages that have to follow each other. Tree: up and down, the nodes of a tree and the ranks of
// a node in a chain; NVLS: to the switch and back (nccl.md 4.3 counts the same).
double steps_of(const CurveKey& key);
// Of each byte of the message what a rank has to send, as nccl-tests' bus bandwidth counts.
double bus_factor(const CurveKey& key);
// GB/s of the bus, of a message that takes so long.
double bus_gbs(const CurveKey& key, uint64_t bytes, double us);

}  // namespace noria::perf
