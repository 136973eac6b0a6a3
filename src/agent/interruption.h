/* Whether the kernel took the processor away within a short piece of code, for two stores and a
 * load. A thread that is preempted outside of the restartable sequence (rseq(2)) that it announced
 * finds the announcement gone when it runs again; ours announces one that no thread is ever in. */
#ifndef FLATOUT_AGENT_INTERRUPTION_H_
#define FLATOUT_AGENT_INTERRUPTION_H_

#include <stdint.h>

#include "agent/agent.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of glibc's registration (2.35 and later) from the thread pointer on; 0 where there is none, or
 * on another processor: then nothing ever counts as interrupted. */
extern int64_t interruption_offset;
extern const struct interruption_sequence interruption_never_inside
    __attribute__((visibility("hidden")));

/* Once, at start. */
void interruption_find(void);

#if defined(__x86_64__)
/* The address of the sequence that is announced; 0: none. */
static inline volatile uint64_t* interruption_slot(void) {
  return (volatile uint64_t*)(uintptr_t)(flatout_thread_self() + (uint64_t)interruption_offset);
}

/* From here on. */
__attribute__((always_inline)) static inline void interruption_watch(void) {
  if (interruption_offset != 0)
    *interruption_slot() = (uint64_t)(uintptr_t)&interruption_never_inside;
}

/* Until here. */
__attribute__((always_inline)) static inline int interruption_seen(void) {
  if (interruption_offset == 0) return 0;
  const uint64_t left = *interruption_slot();
  if (left == (uint64_t)(uintptr_t)&interruption_never_inside) *interruption_slot() = 0;
  return left == 0;
}
#else
static inline void interruption_watch(void) {}
static inline int interruption_seen(void) { return 0; }
#endif

#ifdef __cplusplus
}
#endif
#endif /* FLATOUT_AGENT_INTERRUPTION_H_ */
