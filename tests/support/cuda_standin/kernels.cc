#include "tests/support/cuda_standin/kernels.hpp"

#include <array>
#include <cstring>

#include "bucketing/pack_tile.hpp"
#include "tests/support/cuda_standin/machine.hpp"

namespace noria::standin {

namespace {

using bucketing::PackArgs;
using bucketing::PackTile;

template <class T>
const T* behind(const T* address) {
  return static_cast<const T*>(Memory::backing(reinterpret_cast<uint64_t>(address)));
}

// What cannot be read, or was freed, is told by the access that says so.
bool is_there(const void* address, size_t bytes) {
  const auto first = reinterpret_cast<uint64_t>(address);
  const Allocation* const found = Machine::instance().memory.find(first);
  return found != nullptr && !found->is_freed && first + bytes <= found->first + found->bytes;
}

// As the host reads the tables, while what they point to keeps its device's addresses.
PackArgs with_tables(const void* parameter) {
  PackArgs args;
  memcpy(&args, parameter, sizeof args);
  args.tiles = behind(args.tiles);
  args.pointers = behind(args.pointers);
  return args;
}

template <class Work>
std::vector<Access> touches(const void* parameter, unsigned blocks) {
  PackArgs given;
  memcpy(&given, parameter, sizeof given);
  const PackArgs args = with_tables(parameter);
  std::vector<Access> accesses;
  for (unsigned block = 0; block < blocks; ++block) {
    const auto add = [&](const void* first, uint64_t bytes, bool writes) {
      if (first != nullptr)
        accesses.push_back({reinterpret_cast<uint64_t>(first), bytes, writes, block});
    };
    add(given.tiles + block, sizeof(PackTile), false);
    if (!is_there(given.tiles + block, sizeof(PackTile))) return accesses;
    const PackTile& tile = args.tiles[block];
    add(given.pointers + tile.tensor, sizeof *given.pointers, false);
    if (!is_there(given.pointers + tile.tensor, sizeof *given.pointers)) return accesses;
    const bucketing::TileSides sides = Work::sides(args, tile);
    add(sides.in, sides.in_bytes, false);
    add(sides.out, sides.out_bytes, true);
  }
  return accesses;
}

template <class Work>
void run(const void* parameter, unsigned blocks) {
  PackArgs args = with_tables(parameter);
  args.bucket = Memory::backing(reinterpret_cast<uint64_t>(args.bucket));
  for (unsigned block = 0; block < blocks; ++block) {
    PackTile tile = args.tiles[block];
    // A table of the one tensor, where the host can reach it.
    const uint64_t tensor = args.pointers[tile.tensor];
    const uint64_t reached = tensor == 0 ? 0 : reinterpret_cast<uint64_t>(Memory::backing(tensor));
    PackArgs own = args;
    own.pointers = &reached;
    tile.tensor = 0;
    Work::run(own, tile, {.thread = 0, .threads = 1});
  }
}

#define NORIA_PACK_KERNEL(function, Way, From, To)                                             \
  Kernel{#function, sizeof(PackArgs), touches<bucketing::Way<bucketing::From, bucketing::To>>, \
         run<bucketing::Way<bucketing::From, bucketing::To>>},
constexpr std::array kKernels{
#include "bucketing/pack_kernels.def"
};
#undef NORIA_PACK_KERNEL

}  // namespace

const Kernel* find_kernel(std::string_view name) {
  for (const Kernel& kernel : kKernels)
    if (name == kernel.name) return &kernel;
  return nullptr;
}

}  // namespace noria::standin
