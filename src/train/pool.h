// A fixed set of threads that run the same function over 0..n-1 together with the caller.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace flatout::train {

class Pool {
 public:
  /// `threads` counts the caller. With `spin` idle threads burn their core while they wait, as
  /// OpenMP's do by default (OMP_WAIT_POLICY=active).
  explicit Pool(int threads, bool spin = false);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  /// Calls work(i) for each i below n, each once, by any thread; returns when all are done.
  void run(int n, const std::function<void(int)>& work);
  int threads() const { return static_cast<int>(threads_.size()) + 1; }

 private:
  void serve();
  void take_items();
  bool wait_for_round(uint64_t last);

  std::vector<std::thread> threads_;
  const bool spin_;
  std::mutex mutex_;
  std::condition_variable start_, done_;
  const std::function<void(int)>* work_ = nullptr;
  int count_ = 0;
  std::atomic<int> next_{0};
  std::atomic<int> busy_{0};        // threads still in this round
  std::atomic<uint64_t> round_{0};  // the round that may begin
  std::atomic<bool> stop_{false};
};

}  // namespace flatout::train
