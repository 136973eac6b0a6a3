// A lock of one word on a futex. Not pthread_mutex_t: that may not be usable yet when the dynamic
// linker allocates, and after fork the child has to be able to make any lock new.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

namespace flatout::malloc {

class Lock {
 public:
  void lock() {
    uint32_t free = kFree;
    if (!state_.compare_exchange_strong(free, kHeld, std::memory_order_acquire)) wait();
  }
  bool try_lock() {
    uint32_t free = kFree;
    return state_.compare_exchange_strong(free, kHeld, std::memory_order_acquire);
  }
  void unlock() {
    if (state_.exchange(kFree, std::memory_order_release) == kWaited) futex(FUTEX_WAKE_PRIVATE, 1);
  }
  /// In the child of a fork: the thread that held it is gone.
  void reset() { state_.store(kFree, std::memory_order_release); }

 private:
  enum : uint32_t { kFree, kHeld, kWaited };
  __attribute__((noinline, cold)) void wait() {
    for (int i = 0; i < 100; ++i) {
      if (try_lock()) return;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#elif defined(__aarch64__)
      asm volatile("yield");
#endif
    }
    while (state_.exchange(kWaited, std::memory_order_acquire) != kFree) {
      futex(FUTEX_WAIT_PRIVATE, kWaited);
    }
  }
  void futex(int operation, uint32_t value) {
    const int saved = errno;
    syscall(SYS_futex, &state_, operation, value, nullptr, nullptr, 0);
    errno = saved;
  }

  std::atomic<uint32_t> state_{kFree};
};

class LockHolder {
 public:
  explicit LockHolder(Lock& lock) : lock_(lock) { lock_.lock(); }
  ~LockHolder() { lock_.unlock(); }
  LockHolder(const LockHolder&) = delete;
  LockHolder& operator=(const LockHolder&) = delete;

 private:
  Lock& lock_;
};

}  // namespace flatout::malloc
