#include "bucketing/tensor_table.hpp"

#include <gtest/gtest.h>

namespace noria::bucketing {
namespace {

TEST(TensorTable, Ids_count_up_and_bytes_add_up) {
  TensorTable table;
  EXPECT_EQ(table.add("a", NORIA_FLOAT32, 3).value(), 0u);
  EXPECT_EQ(table.add("b", NORIA_BFLOAT16, 0).value(), 1u);
  EXPECT_EQ(table.add("c", NORIA_INT64, 2).value(), 2u);
  EXPECT_EQ(table.size(), 3u);
  EXPECT_EQ(table.bytes(), 12u + 16u);
  EXPECT_EQ(table.describe(0), "'a', float32, 3 elements");
}

TEST(TensorTable, A_name_is_taken_once) {
  TensorTable table;
  ASSERT_TRUE(table.add("fc.weight", NORIA_FLOAT32, 3).is_ok());
  const auto again = table.add("fc.weight", NORIA_FLOAT16, 4);

  // Expect: refused by name and by the id that has it; the table is as before.
  ASSERT_FALSE(again.is_ok());
  EXPECT_EQ(again.failure().code, NORIA_E_ARG);
  EXPECT_NE(again.failure().text.find("'fc.weight' was registered before, with id 0"),
            std::string::npos)
      << again.failure().text;
  EXPECT_EQ(table.size(), 1u);
  EXPECT_EQ(table.bytes(), 12u);
}

TEST(TensorTable, Names_without_use_are_refused) {
  TensorTable table;
  EXPECT_EQ(table.add("", NORIA_FLOAT32, 3).failure().code, NORIA_E_ARG);
  EXPECT_EQ(table.add(std::string(TensorTable::kMaxName + 1, 'n'), NORIA_FLOAT32, 3).failure().code,
            NORIA_E_ARG);
  EXPECT_TRUE(table.add(std::string(TensorTable::kMaxName, 'n'), NORIA_FLOAT32, 3).is_ok());
}

TEST(TensorTable, Dtypes_that_cannot_be_reduced_are_refused) {
  TensorTable table;
  EXPECT_EQ(table.add("a", NORIA_UINT8, 3).failure().code, NORIA_E_UNSUPPORTED);
  EXPECT_EQ(table.add("a", -1, 3).failure().code, NORIA_E_ARG);
  EXPECT_EQ(table.add("a", 99, 3).failure().code, NORIA_E_ARG);
  EXPECT_EQ(table.size(), 0u);
}

TEST(TensorTable, Sizes_past_the_address_space_are_refused_without_overflow) {
  TensorTable table;
  EXPECT_EQ(table.add("a", NORIA_FLOAT64, UINT64_MAX).failure().code, NORIA_E_ARG);
  EXPECT_EQ(table.add("a", NORIA_FLOAT64, (UINT64_MAX >> 3) + 2).failure().code, NORIA_E_ARG);
  ASSERT_TRUE(table.add("a", NORIA_FLOAT64, TensorTable::kMaxBytes / 8).is_ok());
  // The sum counts, not the one.
  EXPECT_EQ(table.add("b", NORIA_FLOAT32, 1).failure().code, NORIA_E_ARG);
  EXPECT_TRUE(table.add("c", NORIA_FLOAT32, 0).is_ok());
}

TEST(TensorTable, A_name_of_two_lines_is_told_in_one) {
  TensorTable table;
  ASSERT_TRUE(table.add("a\nb", NORIA_FLOAT32, 3).is_ok());
  EXPECT_EQ(table.describe(0), "'a?b', float32, 3 elements");
  const auto twice = table.add("a\nb", NORIA_FLOAT32, 3);
  EXPECT_EQ(twice.failure().text,
            "tensor 'a?b' was registered before, with id 0: names must differ");
}

TEST(TensorTable, A_hash_sees_names_dtypes_sizes_and_order) {
  const auto hash = [](std::vector<Tensor> tensors) {
    TensorTable table;
    for (const Tensor& tensor : tensors)
      EXPECT_TRUE(table.add(tensor.name, tensor.dtype, tensor.numel).is_ok());
    return table.hash(0, table.size());
  };
  const Tensor a{"a", NORIA_FLOAT32, 1}, b{"b", NORIA_FLOAT32, 1};
  const uint64_t reference = hash({a, b});
  EXPECT_EQ(hash({a, b}), reference);
  EXPECT_NE(hash({b, a}), reference);
  EXPECT_NE(hash({a}), reference);
  EXPECT_NE(hash({a, {"c", NORIA_FLOAT32, 1}}), reference);
  EXPECT_NE(hash({a, {"b", NORIA_INT32, 1}}), reference);
  // Names that are told alike are not the same.
  EXPECT_NE(hash({{"a\nb", NORIA_FLOAT32, 1}}), hash({{"a\tb", NORIA_FLOAT32, 1}}));
  EXPECT_NE(hash({a, {"b", NORIA_FLOAT32, 2}}), reference);
}

}  // namespace
}  // namespace noria::bucketing
