// The pack kernels, run on the host, against a reference made of the host's own conversions:
// element by element, bit for bit, at every alignment.

#include "bucketing/pack_tile.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "bucketing/kernels.hpp"
#include "bucketing/pack_kernels.hpp"
#include "bucketing/pack_tiles.hpp"

namespace noria::bucketing {
namespace {

using Bytes = std::vector<std::byte>;

template <class T>
T value_at(const Bytes& bytes, size_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof value);
  return value;
}
template <class T>
void put(Bytes& bytes, size_t index, T value) {
  std::memcpy(bytes.data() + index * sizeof(T), &value, sizeof value);
}

// ---- what a kernel is to do --------------------------------------------------------------------

// What a kernel reads and writes, by its name.
struct Task {
  bool packs = false;
  noria_dtype from = NORIA_FLOAT32, to = NORIA_FLOAT32;

  explicit Task(std::string_view name) {
    const std::string_view way = name.substr(name.find('_') + 1);
    packs = way.starts_with("pack");
    const std::string_view rest = way.substr(way.find('_') + 1);
    from = dtype_of(rest.substr(0, rest.find('_')));
    to = dtype_of(rest.substr(rest.find('_') + 1));
  }
  // Raw elements are tried as integers of 4 bytes.
  static noria_dtype dtype_of(std::string_view word) {
    if (word == "f32") return NORIA_FLOAT32;
    if (word == "f64") return NORIA_FLOAT64;
    if (word == "f16") return NORIA_FLOAT16;
    if (word == "bf16") return NORIA_BFLOAT16;
    return NORIA_INT32;
  }
  // One that casts may leave values as they are otherwise, one that copies does.
  float least_divisor() const { return from == to && !is_raw() ? 2 : 1; }
  bool is_raw() const { return from == NORIA_INT32; }
  size_t in_bytes() const { return dtype_bytes(from); }
  size_t out_bytes() const { return dtype_bytes(to); }
  noria_dtype tensor() const { return packs ? from : to; }
  noria_dtype bucket() const { return packs ? to : from; }
};

template <class T>
T divided(T value, T divisor) {
  return divisor == 1 ? value : value / divisor;
}

// One element, by what the host reduces with.
void expect_of(const Task& task, float divisor, const Bytes& in, size_t index, Bytes& out) {
  if (task.is_raw()) return put(out, index, value_at<int32_t>(in, index));
  if (task.from == NORIA_FLOAT64)
    return put(out, index, divided(value_at<double>(in, index), static_cast<double>(divisor)));
  // Not as a float: clang takes a division by 1, which makes a signalling NaN quiet, for none.
  if (task.to == NORIA_FLOAT32 && task.from != NORIA_FLOAT32 && divisor == 1)
    return from_narrow(task.from, reinterpret_cast<float*>(out.data()) + index,
                       in.data() + index * task.in_bytes(), 1);
  float value = 0;
  if (task.from == NORIA_FLOAT32)
    value = value_at<float>(in, index);
  else
    from_narrow(task.from, &value, in.data() + index * task.in_bytes(), 1);
  if (task.to == NORIA_FLOAT32)
    put(out, index, divided(value, divisor));
  else
    to_narrow(task.to, out.data() + index * task.out_bytes(), &value, 1, divisor);
}

Bytes any_bits(size_t bytes, uint64_t seed) {
  Bytes bits(bytes);
  std::mt19937_64 random(seed);
  for (std::byte& byte : bits) byte = static_cast<std::byte>(random());
  return bits;
}

void run_tile(const PackKernel& kernel, const PackArgs& args, const PackTile& tile,
              uint32_t threads) {
  for (uint32_t thread = 0; thread < threads; ++thread) kernel.run(args, tile, {thread, threads});
}

// ---- one tile ----------------------------------------------------------------------------------

struct Shape {
  uint32_t count;
  uint32_t in_shift, out_shift;  // elements past a boundary of 64 bytes
  uint32_t threads;
  float divisor;
};

constexpr std::byte kUntouched{0xA5};

// Runs a kernel on memory that begins and ends elsewhere than the tile, and compares all of it.
void check(const PackKernel& kernel, const Shape& shape) {
  SCOPED_TRACE(std::string(kernel.name) + ", " + std::to_string(shape.count) +
               " elements, shifts " + std::to_string(shape.in_shift) + " and " +
               std::to_string(shape.out_shift) + ", threads " + std::to_string(shape.threads) +
               ", divisor " + std::to_string(shape.divisor));
  const Task task(kernel.name);
  const uint32_t room = shape.count + 32;
  alignas(64) static std::byte in_memory[(kTileElements + 64) * 8];
  alignas(64) static std::byte out_memory[(kTileElements + 64) * 8];
  const Bytes in = any_bits(size_t{room} * task.in_bytes(), shape.count + shape.in_shift);
  std::memcpy(in_memory, in.data(), in.size());
  Bytes expected(size_t{room} * task.out_bytes(), kUntouched);
  std::memcpy(out_memory, expected.data(), expected.size());

  Bytes moved(in.begin() + shape.in_shift * task.in_bytes(), in.end());
  Bytes results(size_t{room} * task.out_bytes());
  for (uint32_t i = 0; i < shape.count; ++i) expect_of(task, shape.divisor, moved, i, results);
  std::memcpy(expected.data() + shape.out_shift * task.out_bytes(), results.data(),
              size_t{shape.count} * task.out_bytes());

  PackArgs args = pack_args(shape.divisor, 4);
  const auto address = [](const std::byte* memory) { return reinterpret_cast<uint64_t>(memory); };
  const uint64_t tensor = address(task.packs ? in_memory : out_memory);
  args.pointers = &tensor;
  args.bucket = task.packs ? out_memory : in_memory;
  const PackTile tile{0, shape.count, task.packs ? shape.in_shift : shape.out_shift,
                      task.packs ? shape.out_shift : shape.in_shift};
  run_tile(kernel, args, tile, shape.threads);

  // Expect: the elements of the tile, and nothing around them.
  EXPECT_EQ(std::memcmp(out_memory, expected.data(), expected.size()), 0);
  const TileSides sides = kernel.sides(args, tile);
  EXPECT_EQ(address(reinterpret_cast<const std::byte*>(sides.in)),
            address(in_memory) + shape.in_shift * task.in_bytes());
  EXPECT_EQ(sides.in_bytes, uint64_t{shape.count} * task.in_bytes());
  EXPECT_EQ(sides.out_bytes, uint64_t{shape.count} * task.out_bytes());
}

class EachKernel : public testing::TestWithParam<PackKernel> {};

std::string name_of(const testing::TestParamInfo<PackKernel>& kernel) {
  return std::string(kernel.param.name.substr(sizeof("noria_") - 1));
}
INSTANTIATE_TEST_SUITE_P(Pack, EachKernel, testing::ValuesIn(kPackKernels), name_of);

TEST_P(EachKernel, Is_the_same_as_element_by_element_at_every_alignment) {
  const float divisor = Task(GetParam().name).least_divisor();
  for (uint32_t in_shift = 0; in_shift < 16; ++in_shift)
    for (uint32_t out_shift = 0; out_shift < 16; ++out_shift)
      check(GetParam(), {61, in_shift, out_shift, 3, divisor});
}

TEST_P(EachKernel, Does_tiles_of_any_length_with_any_number_of_threads) {
  const float divisor = Task(GetParam().name).least_divisor();
  for (uint32_t threads : {1U, 7U, kPackThreads})
    for (uint32_t shift : {0U, 1U}) {
      for (uint32_t count = 0; count < 40; ++count)
        check(GetParam(), {count, shift, shift, threads, divisor});
      for (uint32_t count : {kTileElements - 1, kTileElements})
        check(GetParam(), {count, shift, 0, threads, divisor});
    }
}

TEST_P(EachKernel, Divides_as_the_host_does_but_never_bytes) {
  for (float divisor : {Task(GetParam().name).least_divisor(), 3.F, 8.F, 1000.F, 1.75F})
    check(GetParam(), {kTileElements, 0, 0, kPackThreads, divisor});
}

TEST_P(EachKernel, A_tensor_without_memory_is_zeros_in_the_bucket_and_is_not_written) {
  const Task task(GetParam().name);
  for (uint32_t at = 0; at < 8; ++at) {
    alignas(64) std::byte bucket[1024];
    std::memset(bucket, 0xFF, sizeof bucket);
    const uint64_t nothing = 0;
    PackArgs args = pack_args(3, 4);
    args.pointers = &nothing;
    args.bucket = bucket;
    const PackTile tile{0, 50, 7, at};
    run_tile(GetParam(), args, tile, 5);
    const TileSides sides = GetParam().sides(args, tile);

    // Expect:
    const size_t size = dtype_bytes(task.bucket());
    for (uint32_t i = 0; i < sizeof bucket; ++i) {
      const bool zeroed = task.packs && i >= at * size && i < (at + 50) * size;
      ASSERT_EQ(bucket[i], zeroed ? std::byte{0} : std::byte{0xFF}) << "byte " << i;
    }
    EXPECT_EQ(sides.in, nullptr);
    EXPECT_EQ(sides.in_bytes, 0U);
    EXPECT_EQ(sides.out, task.packs ? reinterpret_cast<char*>(bucket) + at * size : nullptr);
  }
}

// Nothing is read or written, so that no such memory need be there.
TEST_P(EachKernel, Finds_elements_beyond_4_GiB_of_a_tensor_and_of_a_bucket) {
  const Task task(GetParam().name);
  constexpr uint64_t kTensor = uint64_t{1} << 40U, kBucket = uint64_t{1} << 44U;
  const uint64_t tensor = kTensor;
  PackArgs args = pack_args(1, 4);
  args.pointers = &tensor;
  args.bucket = reinterpret_cast<void*>(kBucket);
  // Each alone, as number of an element and as bytes, and both.
  const uint64_t places[] = {3, (1U << 31U) + 5, (uint64_t{1} << 32U) + 7, uint64_t{9} << 32U};
  for (const uint64_t first : places)
    for (const uint64_t at : places) {
      const TileSides sides = GetParam().sides(args, {0, 17, first, at});

      // Expect:
      const uint64_t in_tensor = kTensor + first * dtype_bytes(task.packs ? task.from : task.to);
      const uint64_t in_bucket = kBucket + at * dtype_bytes(task.bucket());
      EXPECT_EQ(reinterpret_cast<uint64_t>(sides.in), task.packs ? in_tensor : in_bucket);
      EXPECT_EQ(reinterpret_cast<uint64_t>(sides.out), task.packs ? in_bucket : in_tensor);
      EXPECT_EQ(sides.in_bytes, 17 * dtype_bytes(task.from));
      EXPECT_EQ(sides.out_bytes, 17 * dtype_bytes(task.to));
    }
}

TEST(PackKernels, Bytes_are_copied_whatever_the_size_of_an_element) {
  for (const size_t size : {1U, 2U, 4U, 8U})
    for (uint32_t apart = 0; apart < 16; ++apart) {
      alignas(64) std::byte tensor[512], bucket[512] = {};
      const Bytes bits = any_bits(sizeof tensor, size);
      std::memcpy(tensor, bits.data(), sizeof tensor);
      const auto address = reinterpret_cast<uint64_t>(tensor);
      PackArgs args = pack_args(1, static_cast<uint32_t>(size));
      args.pointers = &address;
      args.bucket = bucket;
      run_tile(*find_pack_kernel("noria_pack_bytes"), args, {0, 37, apart, 2}, 3);

      // Expect:
      EXPECT_EQ(std::memcmp(bucket + 2 * size, tensor + apart * size, 37 * size), 0);
      EXPECT_EQ(bucket[39 * size], std::byte{0});
    }
}

TEST(PackKernels, Are_found_by_names_that_differ) {
  std::set<std::string_view> names;
  for (const PackKernel& kernel : kPackKernels) {
    EXPECT_TRUE(names.insert(kernel.name).second) << kernel.name;
    EXPECT_EQ(find_pack_kernel(kernel.name), &kernel);
  }
  EXPECT_EQ(find_pack_kernel("noria_pack_f32_i32"), nullptr);
}

TEST(PackKernels, Are_named_by_what_they_read_and_write) {
  EXPECT_EQ(pack_kernel_name(PackWay::pack, NORIA_FLOAT32, NORIA_BFLOAT16, 1),
            "noria_pack_f32_bf16");
  EXPECT_EQ(pack_kernel_name(PackWay::unpack, NORIA_FLOAT16, NORIA_FLOAT32, 2),
            "noria_unpack_f16_f32");
  EXPECT_EQ(pack_kernel_name(PackWay::pack, NORIA_FLOAT64, NORIA_FLOAT64, 3), "noria_pack_f64_f64");
  EXPECT_EQ(pack_kernel_name(PackWay::unpack, NORIA_INT64, NORIA_INT64, 1), "noria_unpack_bytes");
  // Expect: what no kernel does is no kernel's name.
  EXPECT_EQ(find_pack_kernel(pack_kernel_name(PackWay::pack, NORIA_INT32, NORIA_INT32, 2)),
            nullptr);
}

// ---- tiles -------------------------------------------------------------------------------------

TEST(PackTiles, Cut_a_bucket_at_tensors_and_at_their_own_length) {
  const std::vector<PackTile> tiles =
      cut_tiles(std::vector<PackTensor>{{.first = 0, .count = 3, .at = 0},
                                        {.first = 0, .count = 0, .at = 3},
                                        {.first = 100, .count = 2 * kTileElements + 1, .at = 3},
                                        {.first = 0, .count = kTileElements, .at = 20000}});

  // Expect: slot, count, first, at.
  const uint32_t full = kTileElements;
  const std::vector<std::vector<uint64_t>> expected{
      {0, 3, 0, 0},
      {2, full, 100, 3},
      {2, full, 100 + full, 3 + full},
      {2, 1, 100 + 2 * full, 3 + 2 * full},
      {3, full, 0, 20000},
  };
  ASSERT_EQ(tiles.size(), expected.size());
  for (size_t i = 0; i < tiles.size(); ++i)
    EXPECT_EQ((std::vector<uint64_t>{tiles[i].tensor, tiles[i].count, tiles[i].first, tiles[i].at}),
              expected[i]);
  EXPECT_TRUE(cut_tiles({}).empty());
}

TEST(PackTiles, Count_elements_beyond_4_GiB) {
  constexpr uint64_t kMany = (uint64_t{1} << 32U) + 5, kAt = (uint64_t{3} << 32U) + 1;
  const std::vector<PackTile> tiles =
      cut_tiles(std::vector<PackTensor>{{.first = 11, .count = kMany, .at = kAt}});

  // Expect: one behind the other, to the last element.
  ASSERT_EQ(tiles.size(), kMany / kTileElements + 1);
  uint64_t done = 0;
  for (const PackTile& tile : tiles) {
    ASSERT_EQ(tile.first, 11 + done);
    ASSERT_EQ(tile.at, kAt + done);
    done += tile.count;
  }
  EXPECT_EQ(done, kMany);
}

// ---- every value -------------------------------------------------------------------------------

// Every exponent with fractions at, beside and between the places where rounding turns.
std::vector<uint32_t> telling_floats() {
  std::vector<uint32_t> bits;
  for (uint32_t top = 0; top < 512; ++top)
    for (uint32_t kept : {0U, 1U, 2U, 3U, 0x3FEU, 0x3FFU, 0x155U})
      for (uint32_t place : {13U, 16U})
        for (uint32_t rest : {0U, 1U, (1U << (place - 1)) - 1, 1U << (place - 1),
                              (1U << (place - 1)) + 1, (1U << place) - 1})
          bits.push_back((top << 23U) | (((kept << place) | rest) & 0x7FFFFFU));
  std::mt19937 random(1);
  for (int i = 0; i < 300000; ++i) bits.push_back(static_cast<uint32_t>(random()));
  // f16's subnormals, where the place of rounding moves with the exponent.
  for (int i = 0; i < 300000; ++i)
    bits.push_back(static_cast<uint32_t>(0x32000000U + random() % 0x07000000U));
  return bits;
}

template <class Format>
void check_rounding(noria_dtype narrow) {
  const std::vector<uint32_t> wide = telling_floats();
  std::vector<uint16_t> expected(wide.size());
  std::vector<float> values(wide.size());
  std::memcpy(values.data(), wide.data(), wide.size() * sizeof(float));
  to_narrow(narrow, expected.data(), values.data(), wide.size(), 1);
  for (size_t i = 0; i < wide.size(); ++i) {
    ASSERT_EQ(Format::bits(bits_as<float>(wide[i])), expected[i]) << std::hex << wide[i];
    const size_t other = wide.size() - 1 - i;
    ASSERT_EQ(Format::pair(bits_as<float>(wide[i]), bits_as<float>(wide[other])),
              expected[i] | (uint32_t{expected[other]} << 16U));
  }
}

template <class Format>
void check_widening(noria_dtype narrow) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    float expected = 0;
    from_narrow(narrow, &expected, &half, 1);
    ASSERT_EQ(bits_as<uint32_t>(Format::value(half)), bits_as<uint32_t>(expected)) << bits;
  }
}

TEST(PackFloats, Round_as_the_host_does_ties_subnormals_infinities_and_nans) {
  check_rounding<F16>(NORIA_FLOAT16);
  check_rounding<Bf16>(NORIA_BFLOAT16);
}

TEST(PackFloats, Every_narrow_value_is_widened_as_the_host_does) {
  check_widening<F16>(NORIA_FLOAT16);
  check_widening<Bf16>(NORIA_BFLOAT16);
}

TEST(PackFloats, A_word_takes_of_nans_what_belongs_to_them) {
  const float nan = bits_as<float>(0x7F800001U);
  EXPECT_EQ(pair_of(1, 2, 0x11112222U, 0x33334444U), 0x11112222U);
  EXPECT_EQ(pair_of(nan, 2, 0x11112222U, 0x33334444U), 0x11114444U);
  EXPECT_EQ(pair_of(1, nan, 0x11112222U, 0x33334444U), 0x33332222U);
}

}  // namespace
}  // namespace noria::bucketing
