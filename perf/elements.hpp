// Element types and reductions, by the names that nccl-tests and traces give them.
//
// Threads: any thread.
#pragma once

#include <noria/bucketing.h>

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

namespace noria::perf {

struct DtypeRow {
  noria_dtype dtype;
  const char* name;        // nccl-tests: -d float
  const char* trace_name;  // traces: "dtype": "f32"
  size_t bytes;
  int significand_bits;  // with the hidden one; 0 for integers
};

// In the order in which `-d all` runs them.
inline constexpr std::array<DtypeRow, 10> kAllDtypes{{
    {NORIA_INT32, "int32", "i32", 4, 0},
    {NORIA_INT64, "int64", "i64", 8, 0},
    {NORIA_FLOAT16, "half", "f16", 2, 11},
    {NORIA_FLOAT32, "float", "f32", 4, 24},
    {NORIA_FLOAT64, "double", "f64", 8, 53},
    {NORIA_BFLOAT16, "bfloat16", "bf16", 2, 8},
    {NORIA_INT8, "int8", "i8", 1, 0},
    {NORIA_UINT8, "uint8", "u8", 1, 0},
    {NORIA_UINT32, "uint32", "u32", 4, 0},
    {NORIA_UINT64, "uint64", "u64", 8, 0},
}};

// Those that reductions take; the others are moved only.
inline constexpr std::span<const DtypeRow, 6> kDtypes = std::span(kAllDtypes).first<6>();

struct OpRow {
  noria_op op;
  const char* name;
};

inline constexpr std::array<OpRow, 5> kOps{{
    {NORIA_SUM, "sum"},
    {NORIA_PROD, "prod"},
    {NORIA_MAX, "max"},
    {NORIA_MIN, "min"},
    {NORIA_AVG, "avg"},
}};

constexpr const DtypeRow& dtype_row(noria_dtype dtype) {
  for (const DtypeRow& row : kAllDtypes)
    if (row.dtype == dtype) return row;
  return kAllDtypes[3];
}

constexpr bool is_integer(noria_dtype dtype) { return dtype_row(dtype).significand_bits == 0; }

constexpr const char* op_name(noria_op op) {
  for (const OpRow& row : kOps)
    if (row.op == op) return row.name;
  return "?";
}

}  // namespace noria::perf
