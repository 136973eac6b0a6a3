/* CLOCK_MONOTONIC, as the recorder and Python's time.monotonic_ns(). Where the kernel itself reads
 * the processor's counter for it, so do we: the way through libc and the vDSO leads over four pages
 * that the job has pushed out of the caches since the last hook, two microseconds in all. */
#ifndef FLATOUT_AGENT_CLOCK_H_
#define FLATOUT_AGENT_CLOCK_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Puts the line of the counter through the present, so that a clock that is slewed is followed.
 * First called at start, then about once a second; by one thread at a time. */
void clock_adjust(void);

/* As the kernel's own call says it. */
uint64_t kernel_ns(void);
uint64_t now_ns(void);

#ifdef __cplusplus
}
#endif
#endif /* FLATOUT_AGENT_CLOCK_H_ */
