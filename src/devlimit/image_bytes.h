// How much a module takes once it is loaded, guessed from its image.
#pragma once

#include <cstdint>

namespace flatout::devlimit {

/// Of `bytes` of code and data: whole pages of the device.
uint64_t loaded_bytes(uint64_t bytes);
/// Of a cubin (ELF), a fat binary, its wrapper, or PTX text; 0 for null.
uint64_t image_bytes(const void* image);

}  // namespace flatout::devlimit
