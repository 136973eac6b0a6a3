/* libflatout_agent.so: what the Python hooks (by ctypes) and flatout/marker.h (by dlsym) call.
 * Every function may be called from any thread, before and after fork, and does nothing unless
 * Flatout listens. None blocks, allocates or takes a lock, but for flatout_agent_start and the
 * first call after a fork, which wait for the recorder's answer for at most a fifth of a second. */
#ifndef FLATOUT_AGENT_AGENT_H_
#define FLATOUT_AGENT_AGENT_H_

#include <pthread.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FLATOUT_EXPORT __attribute__((visibility("default")))

/* What every hook runs and touches lies together: each page and line of ours that it needs was
 * pushed out of the caches by the job since the last one. */
#define FLATOUT_HOT __attribute__((hot))
#define FLATOUT_NOT_HOT __attribute__((noinline)) /* seldom wanted by what is */
#define FLATOUT_HOT_DATA __attribute__((section("flatout_hot")))

/* Where the code of hooks begins. What all of them run to send a slice comes first (agent.c, then
 * clock.c), and is about so long. */
extern const char flatout_hot_code[] __attribute__((visibility("hidden")));
#define FLATOUT_HOT_CODE_SIZE 1472

/* Of the section, by the linker. */
extern char __start_flatout_hot[] __attribute__((visibility("hidden")));
extern char __stop_flatout_hot[] __attribute__((visibility("hidden")));

/* Fetch all of it at once, where each line by itself would be waited for when it is needed. */
__attribute__((always_inline)) static inline void flatout_fetch_hot_data(void) {
  for (const char* line = __start_flatout_hot; line < __stop_flatout_hot; line += 64)
    __builtin_prefetch(line, 1);
}
__attribute__((always_inline)) static inline void flatout_fetch_hot_code(void) {
  for (int at = 0; at < FLATOUT_HOT_CODE_SIZE; at += 64)
    __builtin_prefetch(flatout_hot_code + at, 0, 2);
}

/* Connects to $FLATOUT_SOCKET as this kind of agent (flatout_agent_kind). 1 if it is active;
 * calling it again only asks. */
FLATOUT_EXPORT int flatout_agent_start(uint32_t kind);
/* 0: quiet; 1: connected, but the ring has not come (until then packets are lost); 2: writing. */
FLATOUT_EXPORT int flatout_agent_active(void);
/* Quiet for good, in this process and its children. */
FLATOUT_EXPORT void flatout_agent_stop(void);

/* The id of a string for the calls below; 0 when there are too many. Kept over fork. */
FLATOUT_EXPORT uint32_t flatout_agent_intern(const char* text);

/* An interval of the calling thread. end_ns 0: now. */
FLATOUT_EXPORT void flatout_agent_slice(uint32_t kind, uint32_t name_id, uint64_t begin_ns,
                                        uint64_t end_ns, int64_t value, int64_t value2);
/* The same from a hook that took end_ns right after the job's own code returned: the time from then
 * until this function returns (and what flatout_agent_overhead said) is counted as our cost. */
FLATOUT_EXPORT void flatout_agent_hook(uint32_t kind, uint32_t name_id, uint64_t begin_ns,
                                       uint64_t end_ns, int64_t value, int64_t value2);
/* The same where interruption_watch() came right before end_ns was taken. */
void agent_watched_hook(uint32_t kind, uint32_t name_id, uint64_t begin_ns, uint64_t end_ns,
                        int64_t value, int64_t value2);

/* An interval of the calling thread that may wait until its step ends. */
void agent_later_slice(uint32_t kind, uint64_t begin_ns, uint64_t end_ns, int64_t value);

/* Time that a hook of this kind takes before begin_ns and after flatout_agent_hook; 0 only asks. */
FLATOUT_EXPORT uint64_t flatout_agent_overhead(uint32_t kind, uint64_t ns);
/* What a hook spent since interruption_watch() that sends nothing. */
void agent_watched_cost(uint64_t spent_ns);
/* Adds to the counted cost what hooks spent that sent nothing; sent with the next cost packet. */
FLATOUT_EXPORT void flatout_agent_cost(uint64_t hooks, uint64_t sum_ns, uint64_t max_ns,
                                       uint64_t steps);

/* For flatout/marker.h: starts the agent as a native one if nobody has, and interns the name. */
FLATOUT_EXPORT void flatout_agent_mark(uint32_t kind, const char* name, uint64_t begin_ns,
                                       uint64_t end_ns, int64_t value, int64_t value2);
FLATOUT_EXPORT void flatout_agent_count(const char* name, double value);

/* What a device did in a window (wire/messages.h). */
struct flatout_device;
void agent_send_device(const struct flatout_device* window);

/* A fact about this process; a later one with the same key replaces it. */
FLATOUT_EXPORT void flatout_agent_info(const char* key, const char* value);

/* pthread_self(), without the call. */
static inline uint64_t flatout_thread_self(void) {
#if defined(__x86_64__) && defined(__GLIBC__)
  uint64_t self;
  __asm__("movq %%fs:0x10, %0" : "=r"(self));
  return self;
#else
  return (uint64_t)(uintptr_t)pthread_self();
#endif
}

#ifdef __cplusplus
}
#endif
#endif /* FLATOUT_AGENT_AGENT_H_ */
