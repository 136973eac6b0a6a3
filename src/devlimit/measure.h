// What NVML says that this process holds.
#pragma once

#include <cstdint>

#include "devlimit/cuda_abi.h"

namespace flatout::devlimit {

inline constexpr uint64_t kUnknown = UINT64_MAX;

/// Bytes of this process on the card, 0 where it has none there; kUnknown without NVML, on MIG, and
/// in containers, where NVML knows another pid. NVML lists no process without a context, so it is
/// kUnknown until it has listed this process once.
uint64_t own_bytes(const CUuuid& uuid);
/// In a forked process.
void forget_measurements();

}  // namespace flatout::devlimit
