// A bucket is packed and unpacked on the stand-in for a GPU, by kernels and without them.

#include "bucketing/device_pack.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "bucketing/pack_image.hpp"
#include "tests/support/cuda_standin/on_device.hpp"

namespace noria::bucketing {
namespace {

constexpr int kInvalidImage = 200, kOutOfMemory = 2;

class DevicePackTest : public testing::Test {
 protected:
  DevicePackTest() : on_(0) {
    standin::reset(1);
    Outcome<std::unique_ptr<CudaDevice>> made = CudaDevice::create(std::getenv("NORIA_CUDA"), 0);
    if (made) device_ = std::move(*made);
  }
  void SetUp() override { ASSERT_NE(device_, nullptr); }
  // Packs die when their work is done.
  void TearDown() override {
    EXPECT_EQ(cuStreamSynchronize(stream_), 0);
    packs_.clear();
    EXPECT_EQ(standin::violations(), std::vector<std::string>{});
  }

  Outcome<DevicePack*> make(noria_dtype tensor = NORIA_FLOAT32, noria_dtype bucket = NORIA_FLOAT32,
                            PackScale scale = {}) {
    return make_of(parts_, tensor, bucket, scale);
  }
  Outcome<DevicePack*> make_of(const std::vector<PackTensor>& parts, noria_dtype tensor,
                               noria_dtype bucket, PackScale scale) {
    NORIA_TRY_ASSIGN(DevicePack made, DevicePack::create(*device_, parts, tensor, bucket, scale));
    packs_.push_back(std::make_unique<DevicePack>(std::move(made)));
    return packs_.back().get();
  }
  // A tensor of the numbers from `first` on.
  uint64_t tensor(const std::vector<float>& values) {
    const uint64_t address = on_.memory<float>(values.size());
    on_.write(stream_, address, values);
    return address;
  }
  std::vector<float> floats(uint64_t address, size_t count) {
    EXPECT_TRUE(standin::finish());
    const auto* const values = standin::memory_as<float>(address);
    return {values, values + count};
  }

  // Three elements, none, and the last two of four: in a bucket of five.
  const std::vector<PackTensor> parts_{{.first = 0, .count = 3, .at = 0},
                                       {.first = 0, .count = 0, .at = 3},
                                       {.first = 2, .count = 2, .at = 3}};
  standin::OnDevice on_;
  std::unique_ptr<CudaDevice> device_;
  void* stream_ = on_.stream();
  const cuda::Stream on_stream_ = static_cast<cuda::Stream>(stream_);
  const uint64_t bucket_ = on_.memory<float>(5);
  std::vector<std::unique_ptr<DevicePack>> packs_;
};

using Floats = std::vector<float>;

TEST_F(DevicePackTest, One_launch_packs_and_one_unpacks) {
  auto pack = make();
  ASSERT_TRUE(pack) << pack.failure().text;
  const uint64_t first = tensor({1, 2, 3}), last = tensor({4, 5, 6, 7});
  (*pack)->point(0, first);
  (*pack)->point(2, last);
  const uint64_t launches = standin::calls("cuLaunchKernel");
  ASSERT_TRUE((*pack)->pack(on_stream_, bucket_));

  // Expect:
  EXPECT_EQ(floats(bucket_, 5), (Floats{1, 2, 3, 6, 7}));
  EXPECT_EQ(standin::calls("cuLaunchKernel"), launches + 1);

  on_.write(stream_, bucket_, Floats{10, 20, 30, 60, 70});
  ASSERT_TRUE((*pack)->unpack(on_stream_, bucket_));

  // Expect: what is no part of the bucket stays.
  EXPECT_EQ(floats(first, 3), (Floats{10, 20, 30}));
  EXPECT_EQ(floats(last, 4), (Floats{4, 5, 60, 70}));
  EXPECT_EQ(standin::calls("cuLaunchKernel"), launches + 2);
}

TEST_F(DevicePackTest, The_table_goes_to_the_device_only_where_a_gradient_moved) {
  auto pack = make();
  ASSERT_TRUE(pack) << pack.failure().text;
  const uint64_t first = tensor({1, 2, 3}), last = tensor({4, 5, 6, 7});
  const auto copies_of_a_pack = [&] {
    const uint64_t before = standin::calls("cuMemcpyHtoDAsync");
    EXPECT_TRUE((*pack)->pack(on_stream_, bucket_));
    return standin::calls("cuMemcpyHtoDAsync") - before;
  };
  (*pack)->point(0, first);
  (*pack)->point(2, last);

  // Expect: tiles and table; nothing; the table.
  EXPECT_EQ(copies_of_a_pack(), 2U);
  (*pack)->point(2, last);
  EXPECT_EQ(copies_of_a_pack(), 0U);
  (*pack)->point(0, tensor({8, 9, 10}));
  EXPECT_EQ(copies_of_a_pack(), 1U);
  EXPECT_EQ(floats(bucket_, 5), (Floats{8, 9, 10, 6, 7}));
}

TEST_F(DevicePackTest, A_tensor_without_memory_gives_zeros_and_gets_nothing) {
  auto pack = make();
  ASSERT_TRUE(pack) << pack.failure().text;
  on_.write(stream_, bucket_, Floats{9, 9, 9, 9, 9});
  (*pack)->point(2, tensor({4, 5, 6, 7}));
  ASSERT_TRUE((*pack)->pack(on_stream_, bucket_));

  // Expect:
  EXPECT_EQ(floats(bucket_, 5), (Floats{0, 0, 0, 6, 7}));
  EXPECT_TRUE((*pack)->unpack(on_stream_, bucket_));
}

TEST_F(DevicePackTest, Values_are_cast_and_divided_both_ways) {
  auto pack = make(NORIA_FLOAT32, NORIA_BFLOAT16, {.before = 2, .after = 4});
  ASSERT_TRUE(pack) << pack.failure().text;
  const uint64_t first = tensor({2, 4, 6}), last = tensor({0, 0, 8, 16});
  (*pack)->point(0, first);
  (*pack)->point(2, last);
  ASSERT_TRUE((*pack)->pack(on_stream_, bucket_));
  ASSERT_TRUE(standin::finish());

  // Expect: 1, 2, 3, 4 and 8 in bfloat16, and these over four.
  const auto* const narrow = standin::memory_as<uint16_t>(bucket_);
  EXPECT_EQ(std::vector<uint16_t>(narrow, narrow + 5),
            (std::vector<uint16_t>{0x3F80, 0x4000, 0x4040, 0x4080, 0x4100}));
  ASSERT_TRUE((*pack)->unpack(on_stream_, bucket_));
  EXPECT_EQ(floats(first, 3), (Floats{0.25F, 0.5F, 0.75F}));
  EXPECT_EQ(floats(last, 4), (Floats{0, 0, 1, 2}));
}

TEST_F(DevicePackTest, A_bucket_without_elements_costs_nothing) {
  auto pack = make_of({{}}, NORIA_FLOAT32, NORIA_FLOAT32, {});
  ASSERT_TRUE(pack) << pack.failure().text;
  const uint64_t launches = standin::calls("cuLaunchKernel");

  // Expect:
  EXPECT_TRUE((*pack)->pack(on_stream_, bucket_));
  EXPECT_TRUE((*pack)->unpack(on_stream_, bucket_));
  EXPECT_EQ(standin::calls("cuLaunchKernel"), launches);
}

// ---- without kernels ---------------------------------------------------------------------------

TEST_F(DevicePackTest, Without_kernels_tensors_are_copied_one_by_one) {
  standin::fail_call("cuModuleLoadData", 1, kInvalidImage);
  auto pack = make();
  ASSERT_TRUE(pack) << pack.failure().text;
  const uint64_t last = tensor({4, 5, 6, 7});
  on_.write(stream_, bucket_, Floats{9, 9, 9, 9, 9});
  (*pack)->point(2, last);
  const uint64_t launches = standin::calls("cuLaunchKernel");
  ASSERT_TRUE((*pack)->pack(on_stream_, bucket_));

  // Expect:
  EXPECT_EQ(floats(bucket_, 5), (Floats{0, 0, 0, 6, 7}));
  on_.write(stream_, bucket_, Floats{10, 20, 30, 60, 70});
  ASSERT_TRUE((*pack)->unpack(on_stream_, bucket_));
  EXPECT_EQ(floats(last, 4), (Floats{4, 5, 60, 70}));
  EXPECT_EQ(standin::calls("cuLaunchKernel"), launches);
}

TEST_F(DevicePackTest, Without_kernels_nothing_is_cast_or_divided) {
  for (const auto& [bucket, scale] :
       {std::pair(NORIA_BFLOAT16, PackScale{}), std::pair(NORIA_FLOAT32, PackScale{.before = 2}),
        std::pair(NORIA_FLOAT32, PackScale{.after = 2})}) {
    standin::fail_call("cuModuleLoadData", 1, kInvalidImage);
    const auto pack = make(NORIA_FLOAT32, static_cast<noria_dtype>(bucket), scale);

    // Expect: why, and what to do.
    ASSERT_FALSE(pack);
    EXPECT_EQ(pack.failure().code, NORIA_E_UNSUPPORTED);
    EXPECT_NE(
        pack.failure().text.find(kHasPackImage ? "CUDA_ERROR_INVALID_IMAGE" : "built without nvcc"),
        std::string::npos)
        << pack.failure().text;
    EXPECT_NE(pack.failure().text.find("NORIA_AVERAGE_POST"), std::string::npos);
  }
}

// ---- what goes wrong ---------------------------------------------------------------------------

TEST_F(DevicePackTest, A_call_of_the_driver_that_fails_is_told_when_a_pack_is_made) {
  for (const char* call : {"cuModuleLoadData", "cuModuleGetFunction", "cuMemAlloc"}) {
    standin::fail_call(call, 1, kOutOfMemory);
    const auto pack = make();

    // Expect:
    ASSERT_FALSE(pack) << call;
    EXPECT_EQ(pack.failure().code, NORIA_E_NOMEM);
    EXPECT_NE(pack.failure().text.find(call), std::string::npos) << pack.failure().text;
  }
  // Expect: that of the way back too, and that nothing is left of those that failed.
  standin::fail_call("cuModuleGetFunction", 2, kOutOfMemory);
  EXPECT_FALSE(make());
  EXPECT_TRUE(make());
}

TEST_F(DevicePackTest, A_call_of_the_driver_that_fails_is_told_by_pack_and_unpack) {
  auto pack = make();
  ASSERT_TRUE(pack) << pack.failure().text;
  (*pack)->point(0, tensor({1, 2, 3}));
  for (const uint64_t nth : {1, 2}) {  // the tiles; the table
    standin::fail_call("cuMemcpyHtoDAsync", nth, kOutOfMemory);
    EXPECT_FALSE((*pack)->pack(on_stream_, bucket_)) << nth;
    standin::reset(1);
  }
  standin::fail_call("cuLaunchKernel", 1, kOutOfMemory);
  EXPECT_FALSE((*pack)->pack(on_stream_, bucket_));
  standin::fail_call("cuLaunchKernel", 1, kOutOfMemory);
  EXPECT_FALSE((*pack)->unpack(on_stream_, bucket_));

  // Expect: the next time it is done.
  ASSERT_TRUE((*pack)->pack(on_stream_, bucket_));
  EXPECT_EQ(floats(bucket_, 5), (Floats{1, 2, 3, 0, 0}));
}

TEST_F(DevicePackTest, A_copy_that_fails_is_told) {
  standin::fail_call("cuModuleLoadData", 1, kInvalidImage);
  auto pack = make();
  ASSERT_TRUE(pack) << pack.failure().text;
  (*pack)->point(0, tensor({1, 2, 3}));

  // Expect:
  standin::fail_call("cuMemcpyDtoDAsync", 1, kOutOfMemory);
  EXPECT_FALSE((*pack)->pack(on_stream_, bucket_));
  standin::fail_call("cuMemsetD8Async", 1, kOutOfMemory);
  EXPECT_FALSE((*pack)->pack(on_stream_, bucket_));
  standin::fail_call("cuMemcpyDtoDAsync", 1, kOutOfMemory);
  EXPECT_FALSE((*pack)->unpack(on_stream_, bucket_));
}

TEST(PackModule, Is_shared_while_it_is_used) {
  standin::reset(1);
  const standin::OnDevice on(1);
  auto device = CudaDevice::create(std::getenv("NORIA_CUDA"), 1);
  ASSERT_TRUE(device) << device.failure().text;
  const uint64_t loads = standin::calls("cuModuleLoadData");
  const uint64_t unloads = standin::calls("cuModuleUnload");
  {
    const auto one = PackModule::of(**device), other = PackModule::of(**device);
    ASSERT_TRUE(one && other);
    EXPECT_EQ(*one, *other);
    EXPECT_EQ(standin::calls("cuModuleLoadData"), loads + 1);
  }

  // Expect: unloaded with the last, and loaded again.
  EXPECT_EQ(standin::calls("cuModuleUnload"), unloads + 1);
  EXPECT_TRUE(PackModule::of(**device));
  EXPECT_EQ(standin::calls("cuModuleLoadData"), loads + 2);
}

TEST(PackImage, Is_what_nvcc_makes_or_nothing_that_loads) {
  const std::span<const std::byte> image = pack_image();
  ASSERT_GE(image.size(), 64U);
  const bool is_fatbin = image[0] == std::byte{0x50} && image[1] == std::byte{0xED} &&
                         image[2] == std::byte{0x55} && image[3] == std::byte{0xBA};
  EXPECT_EQ(is_fatbin, kHasPackImage);
}

}  // namespace
}  // namespace noria::bucketing
