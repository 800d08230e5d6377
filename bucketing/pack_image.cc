#include "bucketing/pack_image.hpp"

#ifdef NORIA_PACK_IMAGE_FILE
// The assembler takes the file as it is: as text of C++ it would be five times as long.
asm(".pushsection .rodata\n"
    ".balign 64\n"
    ".hidden noria_pack_image_begin, noria_pack_image_end\n"
    ".globl noria_pack_image_begin, noria_pack_image_end\n"
    "noria_pack_image_begin:\n"
    ".incbin \"" NORIA_PACK_IMAGE_FILE
    "\"\n"
    "noria_pack_image_end:\n"
    ".popsection\n");

extern "C" const std::byte noria_pack_image_begin[];
extern "C" const std::byte noria_pack_image_end[];
#endif

namespace noria::bucketing {

#ifdef NORIA_PACK_IMAGE_FILE
const bool kHasPackImage = true;

std::span<const std::byte> pack_image() { return {noria_pack_image_begin, noria_pack_image_end}; }
#else
const bool kHasPackImage = false;

std::span<const std::byte> pack_image() {
  static constexpr std::byte kNothing[64] = {};
  return kNothing;
}
#endif

}  // namespace noria::bucketing
