#include "screen/sampling_thread.h"

#include <algorithm>

#include "base/cpu_time.h"
#include "base/uneven_beat.h"

namespace flatout::screen {
namespace {

constexpr Nanos kPeriod = std::chrono::milliseconds(20);
constexpr int64_t kLeastPause = 19;  // times what a reading took: a twentieth of a core at most
// Between attempts; and after a reading that was dear once, since it had to load symbols.
constexpr Nanos kLongestPause = std::chrono::seconds(2);

}  // namespace

SamplingThread::SamplingThread(Tick tick) : tick_(std::move(tick)) {
  thread_ = std::thread([this] { work(); });
}

SamplingThread::~SamplingThread() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void SamplingThread::work() {
  UnevenBeat beat;
  TimePoint last = MonotonicClock::now();
  for (;;) {
    const Nanos cpu = thread_cpu();
    const TimePoint now = MonotonicClock::now();
    const bool read = tick_(now - last);
    last = now;
    const Nanos due = beat.vary(std::max(kPeriod, (thread_cpu() - cpu) * kLeastPause));
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, read ? std::min(due, kLongestPause) : kLongestPause,
                          [&] { return stop_; })) {
      return;
    }
  }
}

}  // namespace flatout::screen
