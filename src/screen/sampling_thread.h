// Takes readings of a process some 50 times a second in a thread of its own, and less often where
// they cost more than a twentieth of a core.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "base/clock.h"

namespace flatout::screen {

class SamplingThread {
 public:
  /// `weight`: the time that this reading stands for. False: nothing could be read; it is asked
  /// again in two seconds.
  using Tick = std::function<bool(Nanos weight)>;

  explicit SamplingThread(Tick tick);
  ~SamplingThread();
  SamplingThread(const SamplingThread&) = delete;
  SamplingThread& operator=(const SamplingThread&) = delete;

 private:
  void work();

  Tick tick_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace flatout::screen
