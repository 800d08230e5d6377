// What a collective computes, by plain loops.
//
// Sums are taken in the order of ranks and rounded to the type each time. An average multiplies
// each addend by the inverse of their number first, as NCCL does.
//
// Threads: any thread.
#pragma once

#include <cstddef>
#include <vector>

namespace noria::standin {

size_t dtype_bytes(int dtype);  // 0: no such, or none that is added
bool is_op(int op, int dtype);
void reduce(int dtype, int op, void* out, const std::vector<const std::byte*>& in, size_t count);

}  // namespace noria::standin
