#include "nn/parallel.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

namespace flatout::nn {
namespace {

// Threads that wait for a task. They are never joined: they live as long as the process.
class Pool {
 public:
  pid_t owner() const { return owner_; }

  void run(int count, void (*task)(void*), void* data) {
    // Whoever comes while another's task runs does his alone: a task may be run by any number.
    const std::unique_lock<std::mutex> alone(user_, std::try_to_lock);
    if (!alone.owns_lock()) return task(data);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      start_threads(count - 1);
      task_ = task;
      data_ = data;
      open_ = running_ = std::min(count - 1, threads_);
    }
    start_.notify_all();
    task(data);
    std::unique_lock<std::mutex> lock(mutex_);
    running_ -= open_;  // those that have not begun need not
    open_ = 0;
    done_.wait(lock, [this] { return running_ == 0; });
  }

 private:
  // Where the system allows no more threads, those that there are do the work.
  void start_threads(int wanted) {
    try {
      for (; threads_ < wanted; ++threads_) std::thread([this] { serve(); }).detach();
    } catch (const std::system_error&) {
    }
  }

  [[noreturn]] void serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      start_.wait(lock, [this] { return open_ > 0; });
      --open_;
      const auto task = task_;
      void* const data = data_;
      lock.unlock();
      task(data);
      lock.lock();
      if (--running_ == 0) done_.notify_one();
    }
  }

  const pid_t owner_ = getpid();
  std::mutex user_, mutex_;
  std::condition_variable start_, done_;
  int threads_ = 0;
  int open_ = 0;     // places in the task that nobody has taken
  int running_ = 0;  // of those begun and those open, what has not ended
  void (*task_)(void*) = nullptr;
  void* data_ = nullptr;
};

// A child of fork() has none of its parent's threads, and a new pool. No lock: another thread might
// hold it while the child is made.
Pool& pool() {
  static std::atomic<Pool*> instance{nullptr};
  Pool* known = instance.load();
  while (known == nullptr || known->owner() != getpid()) {
    auto* const fresh = new Pool;
    if (instance.compare_exchange_strong(known, fresh)) return *fresh;
    delete fresh;
  }
  return *known;
}

// The OpenMP run time of the process: its threads spin between two parallel regions, so that
// threads of ours would share their cores with them. GOMP_parallel is libgomp's ABI; LLVM's and
// Intel's run times have it, too.
using GompParallel = void (*)(void (*)(void*), void*, unsigned, unsigned);

GompParallel loaded_openmp() {
  static const auto parallel = reinterpret_cast<GompParallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
  return parallel;
}

}  // namespace

void run_on_threads(const Threads& threads, int count, void (*task)(void*), void* data) {
  if (threads.run != nullptr) return threads.run(count, task, data);
  if (const GompParallel parallel = loaded_openmp()) {
    return parallel(task, data, static_cast<unsigned>(count), 0);
  }
  pool().run(count, task, data);
}

}  // namespace flatout::nn
