// How much of which device may be taken, as users write it: "8GiB", "0.5", "50%", by device
// "0=8GiB,1=25%", and for several pools on one device "0=4GiB+4GiB".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "devmem/driver.h"

namespace flatout::devmem {

struct Limit {
  Bytes bytes = 0;      // 0: by the fraction
  double fraction = 1;  // of the device's memory, above 0
  Bytes of(Bytes total) const;
};

struct DeviceLimits {
  int device = -1;            // -1: every device
  std::vector<Limit> limits;  // one for each pool
};

/// One value. Errors: kBadInput.
Result<Limit> parse_limit(std::string_view text);
/// All of them; either one entry with device -1, or each device once. Errors: kBadInput.
Result<std::vector<DeviceLimits>> parse_limits(std::string_view text);

}  // namespace flatout::devmem
