// One epoll set and who to call for each descriptor: the whole of flatout waits here.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>

#include "base/clock.h"
#include "base/result.h"

namespace flatout::recorder {

class EventLoop {
 public:
  using Handler = std::function<void(uint32_t events)>;

  static Result<EventLoop> open();
  EventLoop(EventLoop&& other) noexcept;
  EventLoop& operator=(EventLoop&&) = delete;
  ~EventLoop();

  /// Calls `handler` when `fd` is ready for `events` (EPOLLIN, ...). Does not own `fd`.
  Status add(int fd, uint32_t events, Handler handler);
  /// Forgets `fd`; may be called from a handler, also for descriptors with events outstanding.
  void remove(int fd);
  /// Waits until something is ready or `deadline` has passed, and calls the handlers.
  void wait(TimePoint deadline);

 private:
  explicit EventLoop(int epoll) : epoll_(epoll) {}

  struct Entry {
    uint32_t generation = 0;  // tells a reused descriptor from the one that an old event means
    Handler handler;
  };
  int epoll_ = -1;
  uint32_t generation_ = 0;
  std::unordered_map<int, Entry> entries_;
};

}  // namespace flatout::recorder
