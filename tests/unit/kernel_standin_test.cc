// The stand-in's kernels: launched by name, run block by block, and checked as that.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "bucketing/pack_tile.hpp"
#include "tests/support/cuda_standin/on_device.hpp"

namespace noria::standin {
namespace {

using bucketing::PackArgs;
using bucketing::PackTile;

// Two tensors of four floats and their bucket.
class KernelStandinTest : public testing::Test {
 protected:
  void SetUp() override {
    reset(1);
    device.emplace(0);
    ASSERT_EQ(cuModuleLoadData(&module, "any image"), kSuccess);
    ASSERT_EQ(cuModuleGetFunction(&pack, module, "noria_pack_f32_bf16"), kSuccess);
    stream = device->stream();
    for (uint64_t& tensor : tensors) tensor = device->memory<float>(4);
    bucket = device->memory<uint16_t>(8);
    table = device->memory<uint64_t>(2);
    ASSERT_EQ(cuMemcpyHtoDAsync_v2(table, tensors, sizeof tensors, stream), kSuccess);
    device->write<float>(stream, tensors[0], {1, 2, 3, 4});
    device->write<float>(stream, tensors[1], {5, 6, 7, 8});
  }
  void TearDown() override {
    ASSERT_EQ(cuModuleUnload(module), kSuccess);
    device.reset();
    EXPECT_EQ(violations(), std::vector<std::string>());
    EXPECT_EQ(objects_alive(), 0u);
  }

  int launch_pack(const std::vector<PackTile>& tiles, void* on) {
    const uint64_t at = device->memory<PackTile>(tiles.size() + 1);
    EXPECT_EQ(cuMemcpyHtoDAsync_v2(at, tiles.data(), tiles.size() * sizeof(PackTile), stream),
              kSuccess);
    PackArgs args{.tiles = reinterpret_cast<const PackTile*>(at),
                  .pointers = reinterpret_cast<const uint64_t*>(table),
                  .bucket = reinterpret_cast<void*>(bucket),
                  .divisor = 1,
                  .inverse = 1,
                  .element_bytes = 0};
    void* parameters[] = {&args};
    return cuLaunchKernel(pack, static_cast<unsigned>(tiles.size()), 1, 1, 256, 1, 1, 0, on,
                          parameters, nullptr);
  }
  static void expect_violation(const std::string& words) {
    const std::vector<std::string> found = violations();
    ASSERT_FALSE(found.empty());
    EXPECT_NE(found[0].find(words), std::string::npos) << found[0];
  }

  std::optional<OnDevice> device;
  void* module = nullptr;
  void* pack = nullptr;
  void* stream = nullptr;
  uint64_t tensors[2] = {};
  uint64_t bucket = 0;
  uint64_t table = 0;
};

TEST_F(KernelStandinTest, Runs_all_blocks) {
  ASSERT_EQ(launch_pack({{0, 4, 0, 0}, {1, 4, 0, 4}}, stream), kSuccess);
  EXPECT_EQ(
      device->read<uint16_t>(stream, bucket, 8),
      (std::vector<uint16_t>{0x3F80, 0x4000, 0x4040, 0x4080, 0x40A0, 0x40C0, 0x40E0, 0x4100}));
}

TEST_F(KernelStandinTest, Blocks_are_not_in_order_with_each_other) {
  ASSERT_EQ(launch_pack({{0, 4, 0, 0}, {1, 4, 0, 3}}, stream), kSuccess);
  expect_violation("noria_pack_f32_bf16");
}

TEST_F(KernelStandinTest, Each_block_s_reads_are_checked) {
  ASSERT_EQ(launch_pack({{0, 4, 0, 0}, {1, 4, 0, 4}}, device->stream()), kSuccess);
  expect_violation("noria_pack_f32_bf16");
}

TEST_F(KernelStandinTest,
       A_tile_past_its_tensor_or_a_table_that_is_not_there_is_an_illegal_address) {
  ASSERT_EQ(launch_pack({{0, 4, 1, 0}}, stream), kSuccess);
  expect_violation("no allocation holds");
  EXPECT_EQ(cuStreamSynchronize(stream), kIllegalAddress);
  fail_device(0, 0);
  ASSERT_EQ(launch_pack({{2, 4, 0, 0}}, stream), kSuccess);
  expect_violation("no allocation holds");
  fail_device(0, 0);
}

TEST_F(KernelStandinTest, Refuses_what_no_device_would_launch) {
  void* other = nullptr;
  EXPECT_EQ(cuModuleGetFunction(&other, module, "noria_pack_f32_f64"), kNotFound);
  EXPECT_EQ(cuModuleLoadData(&other, nullptr), kInvalidValue);
  EXPECT_EQ(launch_pack({}, stream), kInvalidValue);
  OnDevice elsewhere(1);
  void* const of_other = elsewhere.stream();
  EXPECT_EQ(cuLaunchKernel(pack, 1, 1, 1, 256, 1, 1, 0, of_other, nullptr, nullptr),
            kInvalidHandle);
  expect_violation("cuLaunchKernel of");
}

}  // namespace
}  // namespace noria::standin
