#include "recorder/event_loop.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/fs.h"

namespace flatout::recorder {

Result<EventLoop> EventLoop::open() {
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  if (epoll < 0) return fs::error_from_errno(errno, "cannot make an epoll set");
  return EventLoop(epoll);
}

EventLoop::EventLoop(EventLoop&& other) noexcept
    : epoll_(std::exchange(other.epoll_, -1)),
      generation_(other.generation_),
      entries_(std::move(other.entries_)) {}

EventLoop::~EventLoop() {
  if (epoll_ >= 0) ::close(epoll_);
}

Status EventLoop::add(int fd, uint32_t events, Handler handler) {
  ++generation_;
  epoll_event event{};
  event.events = events;
  event.data.u64 = uint64_t{generation_} << 32 | static_cast<uint32_t>(fd);
  if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) {
    return fs::error_from_errno(errno, "cannot wait for a file descriptor");
  }
  entries_[fd] = Entry{generation_, std::move(handler)};
  return {};
}

void EventLoop::remove(int fd) {
  if (entries_.erase(fd) != 0) ::epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr);
}

void EventLoop::wait(TimePoint deadline) {
  const Nanos left = std::max(Nanos(0), deadline - MonotonicClock::now());
  // Rounded up: waking a moment early would only spin.
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  std::array<epoll_event, 64> events;
  const int count = ::epoll_wait(epoll_, events.data(), static_cast<int>(events.size()),
                                 static_cast<int>(std::min<int64_t>(ms, 60'000)));
  for (int i = 0; i < count; ++i) {
    const int fd = static_cast<int>(events[i].data.u64 & 0xFFFFFFFF);
    const auto it = entries_.find(fd);
    if (it == entries_.end() || it->second.generation != events[i].data.u64 >> 32) continue;
    const Handler handler = it->second.handler;  // a copy: it may remove itself
    handler(events[i].events);
  }
}

}  // namespace flatout::recorder
