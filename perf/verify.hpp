// The data that tools send, and the check of what came back.
//
// An element depends on rank, index and round, so that a block of the wrong rank, a shifted block
// and a block of the round before all show. Two kinds of data:
//  - exact: few significant bits, so that every order of summation gives the same bits. The result
//    must equal the reference bit for bit: one flipped bit anywhere is counted.
//  - full: every bit of the significand in use. The result must lie within
//    n * eps * sum|x| of a float64 reference.
// Integers, maxima and minima are exact in both. Averages are exact where n is a power of two.
//
// Cost: about a nanosecond an element and rank.
//
// Threads: any thread.
#pragma once

#include <noria/bucketing.h>

#include <cstdint>

namespace noria::perf {

struct DataSpec {
  noria_dtype dtype = NORIA_FLOAT32;
  noria_op op = NORIA_SUM;
  int ranks = 1;
  uint32_t round = 0;
  bool exact = true;
};

// The elements [first, first + count) of what `rank` puts in.
void fill(void* out, uint64_t first, uint64_t count, int rank, const DataSpec& spec);

// How many elements of a result are not what the ranks' data reduce to.
uint64_t count_wrong(const void* result, uint64_t first, uint64_t count, const DataSpec& spec);

}  // namespace noria::perf
