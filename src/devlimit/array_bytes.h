// How much an array takes at most. The driver does not say: arrays lie in tiles of 64 bytes by 8
// rows, and a large one in pages of 64 KiB.
#pragma once

#include "devlimit/cuda_abi.h"

namespace flatout::devlimit {

/// 0 for arrays without memory of their own (sparse, deferred mapping): it comes from cuMemCreate.
/// UINT64_MAX where it passes 64 bits.
uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR& array, unsigned levels);

}  // namespace flatout::devlimit
