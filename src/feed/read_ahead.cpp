#include "feed/read_ahead.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "feed/files.h"
#include "feed/ring.h"
#include "feed/start_thread.h"

namespace flatout::feed {
namespace {

constexpr unsigned kInFlight = 32;          // of a ring
constexpr size_t kChunk = size_t{1} << 18;  // bytes of one read
constexpr const char* kThreadName = "flatout-read";

}  // namespace

void ReadAhead::want(std::span<const uint64_t> samples) {
  if (samples.empty()) return;
  const std::lock_guard lock(mutex_);
  if (stop_) return;
  if (asked_ == 0) since_ = MonotonicClock::now();
  asked_ += samples.size();
  queue_.insert(queue_.end(), samples.begin(), samples.end());
  if (threads_.empty()) {
    // What a sample takes is not known yet: one thread is enough for a ring, and for a beginning.
    // Where there can be none, nothing is read ahead.
    if (!start_thread(threads_, kThreadName, [this] { by_ring(); })) queue_.clear();
  } else if (running_ == "threads") {
    add_threads();
  }
  wanted_.notify_all();
}

// Little's law: as many are under way as come in while one takes its time. Under the lock.
void ReadAhead::add_threads() {
  const double elapsed = std::max(1e-3, to_s(MonotonicClock::now() - since_));
  const double needed = std::ceil(static_cast<double>(asked_) / elapsed * took_s_) + 1;
  const size_t most = static_cast<size_t>(std::min<double>(needed, kMostThreads));
  while (threads_.size() < std::min(most, queue_.size()) &&
         start_thread(threads_, kThreadName, [this] { by_threads(); }))
    continue;
}

void ReadAhead::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    queue_.clear();
  }
  wanted_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  const std::lock_guard lock(mutex_);
  running_ = {};
  asked_ = 0;
  stop_ = false;
}

ReadAhead::State ReadAhead::state() const {
  const std::lock_guard lock(mutex_);
  return {running_, threads_.size(), done_, queue_.size()};
}

void ReadAhead::by_threads() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wanted_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (stop_) return;
    const uint64_t sample = queue_.front();
    queue_.pop_front();
    lock.unlock();
    const TimePoint begin = MonotonicClock::now();
    Extent extent;
    if (source_.extent(sample, extent)) {
      if (const auto file = DataFile::open(extent.path); file.ok())
        file->will_need(extent.offset, std::min(extent.bytes, file->bytes()));
    }
    const double took = to_s(MonotonicClock::now() - begin);
    lock.lock();
    took_s_ += (took - took_s_) / 16;
    ++done_;
  }
}

namespace {

// A sample on its way through the ring: its file is opened, then read to the end of the sample.
struct Transfer {
  Extent extent;
  int fd = -1;
  std::vector<uint8_t> buffer;
  bool busy = false;

  // True while there is more to do.
  bool go_on(Ring& ring, uint64_t tag, int result, bool stopping) {
    if (fd < 0) {
      if (result < 0) return false;
      fd = result;
    } else {
      if (result <= 0) return false;
      extent.offset += static_cast<uint64_t>(result);
      if (extent.bytes != UINT64_MAX) extent.bytes -= static_cast<uint64_t>(result);
    }
    if (stopping || extent.bytes == 0) return false;
    buffer.resize(kChunk);
    const size_t size = static_cast<size_t>(std::min<uint64_t>(kChunk, extent.bytes));
    ring.read(fd, extent.offset, std::span(buffer).first(size), tag);
    return true;
  }
  void end() {
    if (fd >= 0) ::close(fd);
    fd = -1;
    busy = false;
  }
};

}  // namespace

// What is read goes nowhere but into the page cache, where the thread that decodes finds it.
void ReadAhead::by_ring() {
  auto opened = way_ == Way::kThreads ? Error{Code::kUnsupported, "", ""} : Ring::open(kInFlight);
  {
    const std::lock_guard lock(mutex_);
    running_ = opened.ok() ? "io_uring" : "threads";
  }
  if (!opened.ok()) return by_threads();
  Ring& ring = **opened;
  std::vector<Transfer> transfers(kInFlight);
  size_t busy = 0;
  for (;;) {
    bool stopping = false;
    {
      std::unique_lock lock(mutex_);
      if (busy == 0) wanted_.wait(lock, [this] { return stop_ || !queue_.empty(); });
      stopping = stop_;
      for (size_t i = 0; i < transfers.size() && !queue_.empty(); ++i) {
        Transfer& transfer = transfers[i];
        if (transfer.busy) continue;
        const uint64_t sample = queue_.front();
        queue_.pop_front();
        if (!source_.extent(sample, transfer.extent)) continue;
        transfer.busy = true;
        ring.open_file(transfer.extent.path.c_str(), i);
        ++busy;
      }
    }
    if (busy == 0 && stopping) return;
    if (busy == 0) continue;
    const Ring::Done done = ring.wait();
    Transfer& transfer = transfers[done.tag];
    if (transfer.go_on(ring, done.tag, done.result, stopping)) continue;
    transfer.end();
    --busy;
    const std::lock_guard lock(mutex_);
    ++done_;
  }
}

}  // namespace flatout::feed
