// The image of pack_kernels.cu that a CUDA driver loads.
//
// Threads: any thread.
#pragma once

#include <cstddef>
#include <span>

namespace noria::bucketing {

// Whether nvcc was there when noria was built.
extern const bool kHasPackImage;
// What to give to cuModuleLoadData(); without nvcc it is one that no driver loads.
std::span<const std::byte> pack_image();

}  // namespace noria::bucketing
