#include "train/pool.h"

#include <pthread.h>

namespace flatout::train {

Pool::Pool(int threads, bool spin) : spin_(spin) {
  for (int i = 1; i < threads; ++i) {
    threads_.emplace_back([this] { serve(); });
    pthread_setname_np(threads_.back().native_handle(), "compute");
  }
}

Pool::~Pool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    round_.fetch_add(1);
  }
  start_.notify_all();
  for (std::thread& t : threads_) t.join();
}

// Waiting as a spinning runtime does: the core is kept, nobody else gets it.
static void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}
__attribute__((noinline)) static void spin_until_changed(const std::atomic<uint64_t>& value,
                                                         uint64_t old) {
  while (value.load(std::memory_order_acquire) == old) relax();
}
__attribute__((noinline)) static void spin_until_zero(const std::atomic<int>& value) {
  while (value.load(std::memory_order_acquire) != 0) relax();
}

bool Pool::wait_for_round(uint64_t last) {
  if (spin_) {
    spin_until_changed(round_, last);
  } else {
    std::unique_lock lock(mutex_);
    start_.wait(lock, [&] { return round_.load() != last; });
  }
  return !stop_;
}

void Pool::take_items() {
  for (int i = next_.fetch_add(1); i < count_; i = next_.fetch_add(1)) (*work_)(i);
}

void Pool::serve() {
  uint64_t last = 0;
  while (wait_for_round(last)) {
    last = round_.load();
    take_items();
    if (busy_.fetch_sub(1) == 1 && !spin_) {
      const std::lock_guard lock(mutex_);
      done_.notify_one();
    }
  }
}

void Pool::run(int n, const std::function<void(int)>& work) {
  if (threads_.empty()) {
    for (int i = 0; i < n; ++i) work(i);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    work_ = &work;
    count_ = n;
    next_ = 0;
    busy_ = static_cast<int>(threads_.size());
    round_.fetch_add(1);
  }
  if (!spin_) start_.notify_all();
  take_items();
  if (spin_) {
    spin_until_zero(busy_);
  } else {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return busy_.load() == 0; });
  }
}

}  // namespace flatout::train
