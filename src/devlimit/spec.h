// FLATOUT_DEVLIMIT: "8GiB", "0.5", "50%", or by device "0=8GiB,1=0.25".
#pragma once

#include <cstdint>

namespace flatout::devlimit {

/// What a device may take by that text, `total` being its memory; UINT64_MAX where the text does
/// not name it. What cannot be read limits to nothing: a limit that silently is none is worse.
uint64_t limit_of(const char* text, int device, uint64_t total);

}  // namespace flatout::devlimit
