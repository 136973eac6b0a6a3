/* CLOCK_MONOTONIC, as the recorder and Python's time.monotonic_ns(). */
#ifndef FLATOUT_AGENT_CLOCK_H_
#define FLATOUT_AGENT_CLOCK_H_

#include <stdint.h>
#include <time.h>

static inline uint64_t now_ns(void) {
  struct timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

#endif /* FLATOUT_AGENT_CLOCK_H_ */
