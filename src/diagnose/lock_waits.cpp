// Which readings wait until another thread or process lets go of a lock.
#include <unordered_map>

#include "diagnose/view.h"
#include "model/system_call.h"

namespace flatout::diagnose {

void RunView::find_lock_waits() {
  const auto waits = [](const model::StackReading& r) {
    return r.state == model::ThreadState::kLock;
  };
  // Lines that take a lock, where that was seen in most of the readings in which anything was.
  std::unordered_map<model::FrameId, int64_t> balance;
  for (const model::StackReading& r : run_.readings) {
    if (!waits(r)) continue;
    const FutexWait wait = stacks_.futex_wait(r.stack);
    if (wait == FutexWait::kMutex) ++balance[stacks_.futex_line(r.stack)];
    if (wait == FutexWait::kNotAtLine) --balance[stacks_.futex_line(r.stack)];
  }
  at_mutex_.resize(run_.readings.size());
  std::vector<bool> last(run_.threads.size());  // by thread: what it waited for last
  for (size_t i = 0; i < run_.readings.size(); ++i) {
    const model::StackReading& r = run_.readings[i];
    if (!waits(r) || r.thread >= last.size()) continue;
    if (r.stack != 0) {
      const FutexWait wait = stacks_.futex_wait(r.stack);
      const auto line = balance.find(stacks_.futex_line(r.stack));
      last[r.thread] =
          (stacks_.traits(r.stack) & (kInMalloc | kInQueue)) == 0 &&
          (model::call_kind(r.syscall) == model::CallKind::kFileLock || wait == FutexWait::kMutex ||
           (wait == FutexWait::kUnseen && line != balance.end() && line->second > 0));
    }
    at_mutex_[i] = last[r.thread];
  }
}

Traits RunView::traits(const model::StackReading& reading) const {
  const Traits traits = stacks_.traits(reading.stack);
  return at_mutex_[&reading - run_.readings.data()] ? traits | kAtMutex : traits;
}

}  // namespace flatout::diagnose
