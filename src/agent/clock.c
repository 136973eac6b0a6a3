#include "agent/clock.h"

#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#ifdef __x86_64__
#include <x86intrin.h>
#endif

#include "agent/agent.h"

#define LEAST_NS 20000000u   /* between two readings that give a ratio */
#define GOOD_FOR 10          /* times as long as that it was made of */
#define MOST_NS 10000000000u /* and no longer */
#define MOST_DEVIATION 100   /* a ratio that moves by more than a hundredth is another machine's */

__attribute__((cold, noinline)) uint64_t kernel_ns(void) {
  struct timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

#ifdef __x86_64__

__extension__ typedef unsigned __int128 agent_u128;

/* The line that the counter's readings are put on; changed about once a second, under a sequence
 * lock. */
FLATOUT_HOT_DATA __attribute__((aligned(64))) static struct agent_clock {
  uint32_t sequence; /* odd while it is changed; 0: the kernel is asked */
  uint64_t counter, ns;
  uint64_t ratio; /* ns a tick, in 2^-32 */
  uint64_t most;  /* ticks from `counter` on that it is good for */
} agent_clock = {0};

FLATOUT_HOT uint64_t now_ns(void) {
  const uint32_t sequence = __atomic_load_n(&agent_clock.sequence, __ATOMIC_ACQUIRE);
  if (sequence == 0 || (sequence & 1) != 0) return kernel_ns();
  const uint64_t ns = __atomic_load_n(&agent_clock.ns, __ATOMIC_RELAXED);
  const uint64_t ratio = __atomic_load_n(&agent_clock.ratio, __ATOMIC_RELAXED);
  const uint64_t most = __atomic_load_n(&agent_clock.most, __ATOMIC_RELAXED);
  const uint64_t from = __atomic_load_n(&agent_clock.counter, __ATOMIC_RELAXED);
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
  if (__atomic_load_n(&agent_clock.sequence, __ATOMIC_RELAXED) != sequence) return kernel_ns();
  _mm_lfence(); /* not before what came before */
  const uint64_t ticks = __rdtsc() - from;
  if (ticks >= most) return kernel_ns();
  return ns + (uint64_t)((agent_u128)ticks * ratio >> 32);
}

static enum { UNKNOWN, TRUSTED, NOT_TRUSTED } counter_is = UNKNOWN;
static uint64_t last_counter, last_ns;

/* The kernel uses it only where all cores count alike and at one rate. */
static int kernel_trusts_counter(void) {
  char name[8] = {0};
  const int fd = open("/sys/devices/system/clocksource/clocksource0/current_clocksource",
                      O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  const ssize_t n = read(fd, name, sizeof name - 1);
  close(fd);
  return n >= 4 && memcmp(name, "tsc\n", 4) == 0;
}

/* Both clocks at one moment: of a few readings the one that took shortest. */
static void read_both(uint64_t* counter, uint64_t* ns) {
  uint64_t shortest = UINT64_MAX;
  for (int i = 0; i < 4; ++i) {
    _mm_lfence();
    const uint64_t before = __rdtsc();
    const uint64_t now = kernel_ns();
    _mm_lfence();
    const uint64_t took = __rdtsc() - before;
    if (took >= shortest) continue;
    shortest = took;
    *counter = before + took / 2;
    *ns = now;
  }
}

static void put(uint64_t counter, uint64_t ns, uint64_t ratio, uint64_t most) {
  const uint32_t sequence = agent_clock.sequence;
  __atomic_store_n(&agent_clock.sequence, sequence + 1, __ATOMIC_RELAXED);
  __atomic_thread_fence(__ATOMIC_RELEASE);
  __atomic_store_n(&agent_clock.counter, counter, __ATOMIC_RELAXED);
  __atomic_store_n(&agent_clock.ns, ns, __ATOMIC_RELAXED);
  __atomic_store_n(&agent_clock.ratio, ratio, __ATOMIC_RELAXED);
  __atomic_store_n(&agent_clock.most, most, __ATOMIC_RELAXED);
  const uint32_t next = sequence + 2;
  __atomic_store_n(&agent_clock.sequence, next != 0 ? next : 2, __ATOMIC_RELEASE);
}

void clock_adjust(void) {
  if (counter_is == UNKNOWN) counter_is = kernel_trusts_counter() ? TRUSTED : NOT_TRUSTED;
  if (counter_is == NOT_TRUSTED) return;
  uint64_t counter = 0, ns = 0;
  read_both(&counter, &ns);
  const uint64_t ticks = counter - last_counter, passed = ns - last_ns;
  const int usable = last_ns != 0 && passed >= LEAST_NS && passed < MOST_NS * 100;
  if (last_ns != 0 && passed < LEAST_NS) return;
  last_counter = counter;
  last_ns = ns;
  if (!usable || ticks == 0 || ticks >> 62 != 0) return;
  const uint64_t ratio = (uint64_t)(((agent_u128)passed << 32) / ticks);
  const uint64_t before = agent_clock.ratio;
  if (before != 0 && (ratio > before ? ratio - before : before - ratio) > before / MOST_DEVIATION) {
    counter_is = NOT_TRUSTED; /* moved to a machine that counts at another rate */
    __atomic_store_n(&agent_clock.sequence, 0, __ATOMIC_RELEASE);
    return;
  }
  const uint64_t longest = passed < MOST_NS / GOOD_FOR ? passed * GOOD_FOR : MOST_NS;
  put(counter, ns, ratio, (uint64_t)(((agent_u128)longest << 32) / ratio));
}

#else

FLATOUT_HOT uint64_t now_ns(void) { return kernel_ns(); }

void clock_adjust(void) {}

#endif
