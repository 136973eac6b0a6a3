// CPU time of the calling thread, for those who watch what they cost.
#pragma once

#include <time.h>

#include "base/clock.h"

namespace flatout {

inline Nanos thread_cpu() {
  timespec ts{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
  return Nanos(int64_t{ts.tv_sec} * 1'000'000'000 + ts.tv_nsec);
}

}  // namespace flatout
