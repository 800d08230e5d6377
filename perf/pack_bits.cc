#include "perf/pack_bits.hpp"

#include <array>
#include <cstring>
#include <random>

#include "bucketing/kernels.hpp"
#include "perf/format_text.hpp"

namespace noria::perf {

namespace {

using bucketing::dtype_bytes;
using bucketing::kTileElements;
using bucketing::PackArgs;
using bucketing::PackTensor;
using bucketing::PackTile;
using bucketing::PackWay;

using Bytes = std::vector<std::byte>;

// Before and behind what is written, to see what is written beside it.
constexpr uint64_t kMargin = 256;

// A tensor in the heap of them, all of it or a part in the bucket.
struct Placed {
  uint64_t heap_at;  // bytes
  bool has_memory;
  PackTensor part;
};

struct Scene {
  std::vector<Placed> tensors;
  uint64_t heap_bytes = kMargin;
  uint64_t elements = 0;  // of the bucket
};

Scene scene_of(uint32_t element_bytes) {
  constexpr uint64_t kCounts[] = {
      0,     1, 7, 8, 61, 1000, kTileElements, kTileElements - 1, 3 * uint64_t{kTileElements} + 5,
      300000};
  Scene scene;
  for (uint64_t round = 0; round < 8; ++round)
    for (const uint64_t count : kCounts) {
      const uint64_t first = round % 3 == 1 ? 13 : 0;  // the end of a tensor that was split
      const bool has_memory = round != 2 || count % 2 == 0;
      scene.heap_bytes += round * element_bytes;  // to stand at every place of 16 bytes
      scene.tensors.push_back(
          {scene.heap_bytes, has_memory, {.first = first, .count = count, .at = scene.elements}});
      scene.heap_bytes += (first + count) * element_bytes;
      scene.elements += count;
    }
  scene.heap_bytes += kMargin;
  return scene;
}

Bytes any_bits(uint64_t bytes, uint64_t seed) {
  Bytes bits((bytes + 7) / 8 * 8);
  std::mt19937_64 random(seed);
  for (size_t i = 0; i < bits.size(); i += 8) {
    const uint64_t word = random();
    std::memcpy(bits.data() + i, &word, sizeof word);
  }
  bits.resize(bytes);
  return bits;
}

uint64_t address_of(const Bytes& bytes) { return reinterpret_cast<uint64_t>(bytes.data()); }

std::vector<uint64_t> addresses(const Scene& scene, uint64_t heap) {
  std::vector<uint64_t> table;
  for (const Placed& tensor : scene.tensors)
    table.push_back(tensor.has_memory ? heap + tensor.heap_at : 0);
  return table;
}

std::vector<PackTensor> parts(const Scene& scene) {
  std::vector<PackTensor> all;
  for (const Placed& tensor : scene.tensors) all.push_back(tensor.part);
  return all;
}

// The kernel on the host, all tiles.
void run_here(const std::string& kernel, float divisor, uint32_t element_bytes, const Scene& scene,
              uint64_t heap, std::byte* bucket) {
  const std::vector<uint64_t> table = addresses(scene, heap);
  PackArgs args = bucketing::pack_args(divisor, element_bytes);
  args.pointers = table.data();
  args.bucket = bucket;
  const bucketing::PackKernel& found = *bucketing::find_pack_kernel(kernel);
  for (const PackTile& tile : bucketing::cut_tiles(parts(scene))) found.run(args, tile, {0, 1});
}

uint64_t count_different(const Bytes& a, const Bytes& b) {
  uint64_t different = 0;
  for (size_t i = 0; i < a.size(); ++i) different += a[i] != b[i] ? 1 : 0;
  return different;
}

}  // namespace

std::vector<PackCase> pack_cases() {
  constexpr std::array<std::pair<noria_dtype, noria_dtype>, 6> kPairs{
      {{NORIA_FLOAT32, NORIA_FLOAT32},
       {NORIA_FLOAT32, NORIA_FLOAT16},
       {NORIA_FLOAT32, NORIA_BFLOAT16},
       {NORIA_FLOAT16, NORIA_FLOAT16},
       {NORIA_BFLOAT16, NORIA_BFLOAT16},
       {NORIA_FLOAT64, NORIA_FLOAT64}}};
  // As they are; by powers of two; by others.
  constexpr std::array<bucketing::PackScale, 4> kScales{{{1, 1}, {8, 4}, {3, 1.75F}, {1, 7}}};
  std::vector<PackCase> cases{{NORIA_INT32, NORIA_INT32, {}}, {NORIA_INT64, NORIA_INT64, {}}};
  for (const auto& [tensor, bucket] : kPairs)
    for (const bucketing::PackScale& scale : kScales) cases.push_back({tensor, bucket, scale});
  return cases;
}

std::string describe(const PackCase& which) {
  return format_text("%s in %s, / %g and / %g", bucketing::dtype_name(which.tensor),
                     bucketing::dtype_name(which.bucket), static_cast<double>(which.scale.before),
                     static_cast<double>(which.scale.after));
}

uint64_t count_wrong_bytes(CudaLane& lane, const PackCase& which) {
  const uint32_t element_bytes = dtype_bytes(which.tensor);
  const Scene scene = scene_of(element_bytes);
  Bytes heap = any_bits(scene.heap_bytes, 1);
  Bytes bucket = any_bits(2 * kMargin + scene.elements * dtype_bytes(which.bucket), 2);
  const auto heap_there = lane.memory(heap.size());
  const auto bucket_there = lane.memory(bucket.size());
  lane.to_device(heap_there.pointer(), heap.data(), heap.size());
  lane.to_device(bucket_there.pointer(), bucket.data(), bucket.size());
  auto pack = need(bucketing::DevicePack::create(lane.device(), parts(scene), which.tensor,
                                                 which.bucket, which.scale));
  const std::vector<uint64_t> table = addresses(scene, heap_there.pointer());
  for (uint32_t slot = 0; slot < table.size(); ++slot) pack.point(slot, table[slot]);

  need(pack.pack(lane.handle(), bucket_there.pointer() + kMargin));
  Bytes packed(bucket.size());
  lane.to_host(packed.data(), bucket_there.pointer(), packed.size());
  run_here(
      bucketing::pack_kernel_name(PackWay::pack, which.tensor, which.bucket, which.scale.before),
      which.scale.before, element_bytes, scene, address_of(heap), bucket.data() + kMargin);
  uint64_t wrong = count_different(packed, bucket);

  // Back, from what no rounding left.
  bucket = any_bits(bucket.size(), 3);
  lane.to_device(bucket_there.pointer(), bucket.data(), bucket.size());
  need(pack.unpack(lane.handle(), bucket_there.pointer() + kMargin));
  Bytes unpacked(heap.size());
  lane.to_host(unpacked.data(), heap_there.pointer(), unpacked.size());
  run_here(
      bucketing::pack_kernel_name(PackWay::unpack, which.bucket, which.tensor, which.scale.after),
      which.scale.after, element_bytes, scene, address_of(heap), bucket.data() + kMargin);
  wrong += count_different(unpacked, heap);
  return wrong;
}

}  // namespace noria::perf
