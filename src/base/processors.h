// How many processors this process may use: less than the machine has in a cpuset or under taskset.
#pragma once

#include <sched.h>

#include <algorithm>

namespace flatout {

inline unsigned allowed_processors() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 1;
  return static_cast<unsigned>(std::max(CPU_COUNT(&allowed), 1));
}

}  // namespace flatout
