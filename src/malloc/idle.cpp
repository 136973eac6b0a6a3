#include "malloc/idle.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "malloc/cache.h"
#include "malloc/demand.h"
#include "malloc/os.h"
#include "malloc/page_heap.h"
#include "malloc/pressure.h"

namespace flatout::malloc {
namespace {

constexpr uint32_t kSmallProcess = (32u << 20) >> kPageShift;  // pages: no thread for less
constexpr size_t kStackBytes = 256 << 10;  // holds the program's static TLS as well
constexpr size_t kLargeStackBytes = 8 << 20;

enum State : uint32_t { kNone, kRunning, kAsleep, kOff };

std::atomic<uint32_t> g_state{kNone};  // also what the thread sleeps on
constinit Lock g_lock;
constinit DemandWindow g_demand;

void sleep_for(uint64_t ns) {
  const timespec time{static_cast<time_t>(ns / DemandWindow::kSecond),
                      static_cast<long>(ns % DemandWindow::kSecond)};
  ::nanosleep(&time, nullptr);
}

void* keep_tidy(void*) {
  ::prctl(PR_SET_NAME, "flatout_malloc");
  for (;;) {
    sleep_for(idle_window_ns() / DemandWindow::kParts);
    idle_tick(os_now_ns());
    if (g_page_heap.counts().dirty_free > DemandWindow::kSlack) continue;
    g_state.store(kAsleep, std::memory_order_seq_cst);
    // What was freed in between has woken nobody.
    if (g_page_heap.counts().dirty_free > DemandWindow::kSlack) {
      uint32_t expected = kAsleep;
      if (g_state.compare_exchange_strong(expected, kRunning, std::memory_order_relaxed)) continue;
    }
    while (g_state.load(std::memory_order_relaxed) == kAsleep) {
      syscall(SYS_futex, &g_state, FUTEX_WAIT_PRIVATE, kAsleep, nullptr, nullptr, 0);
    }
  }
  return nullptr;
}

void start_thread() {
  // The thread takes no signal of the program's: it inherits this mask.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_t attributes;
  pthread_t thread;
  bool started = false;
  if (pthread_attr_init(&attributes) == 0) {
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, kStackBytes);
    started = pthread_create(&thread, &attributes, keep_tidy, nullptr) == 0;
    if (!started && pthread_attr_setstacksize(&attributes, kLargeStackBytes) == 0) {
      started = pthread_create(&thread, &attributes, keep_tidy, nullptr) == 0;
    }
    pthread_attr_destroy(&attributes);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!started) g_state.store(kOff, std::memory_order_relaxed);
}

}  // namespace

__attribute__((noinline)) void idle_kick(uint32_t parked) {
  const uint32_t state = g_state.load(std::memory_order_relaxed);
  if (__builtin_expect(state == kRunning || state == kOff, 1)) return;
  if (g_page_heap.dirty_hint() + parked <= DemandWindow::kSlack) return;
  const PageCounts counts = g_page_heap.counts();
  if (counts.dirty_free + counts.used < kSmallProcess) return;
  uint32_t expected = state;
  if (!g_state.compare_exchange_strong(expected, kRunning, std::memory_order_relaxed)) return;
  const int saved = errno;
  if (state == kAsleep) {
    syscall(SYS_futex, &g_state, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  } else {
    start_thread();
  }
  errno = saved;
}

uint32_t idle_tick(uint64_t now_ns) {
  release_parked();
  trim_caches();
  uint32_t excess;
  bool pressed;
  {
    const LockHolder hold(g_lock);
    excess = g_demand.tick(now_ns, g_page_heap.take_counts());
    pressed = under_pressure();
  }
  if (excess == 0 && !pressed) return 0;
  // This takes long: a step that is marked meanwhile, or a fork, does not wait for it.
  const uint32_t pages = g_page_heap.release(pressed ? UINT32_MAX : excess, pressed);
  if (pages == 0) return 0;
  const LockHolder hold(g_lock);
  g_demand.released(now_ns);
  return pages;
}

void set_idle_thread(bool on) {
  uint32_t expected = on ? kOff : kNone;
  g_state.compare_exchange_strong(expected, on ? kNone : kOff, std::memory_order_relaxed);
}

void idle_mark_step(uint64_t now_ns) {
  const LockHolder hold(g_lock);
  g_demand.mark_step(now_ns);
}

uint64_t idle_window_ns() {
  const LockHolder hold(g_lock);
  return g_demand.window_ns();
}

void lock_idle() { g_lock.lock(); }
void unlock_idle() { g_lock.unlock(); }
void reset_idle() {
  if (g_state.load(std::memory_order_relaxed) != kOff) {
    g_state.store(kNone, std::memory_order_relaxed);
  }
  g_lock.reset();
}

}  // namespace flatout::malloc
