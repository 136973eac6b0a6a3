// Learns how processes of the job end, also those whose parent is not flatout: a descriptor for
// each process tells of its end at once, when the kernel still knows the status.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>

#include "recorder/event_loop.h"

namespace flatout::recorder {

class ExitWatch {
 public:
  /// `ended(pid, wait_status)`: -1 where the status could not be had.
  ExitWatch(EventLoop& loop, std::function<void(int32_t, int)> ended)
      : loop_(loop), ended_(std::move(ended)) {}
  ~ExitWatch();
  ExitWatch(const ExitWatch&) = delete;
  ExitWatch& operator=(const ExitWatch&) = delete;

  /// False where it cannot be watched: it is gone, or there are too many.
  bool watch(int32_t pid);
  bool watches(int32_t pid) const { return watched_.contains(pid); }
  void forget(int32_t pid);
  /// How many processes are watched: they live.
  size_t watching() const { return watched_.size(); }

 private:
  void on_end(int32_t pid);

  EventLoop& loop_;
  std::function<void(int32_t, int)> ended_;
  std::unordered_map<int32_t, int> watched_;  // pid -> pidfd
};

}  // namespace flatout::recorder
