#include "screen/history.h"

#include <algorithm>

namespace flatout::screen {
namespace {

// What a snapshot keeps for itself; command lines are shared by all.
size_t bytes_of(const Snapshot& s) {
  size_t bytes = sizeof(Snapshot) + s.task_list.capacity() * sizeof(Task) +
                 s.cores.size() * sizeof(Core) + s.disks.size() * sizeof(Disk) +
                 s.gpus.size() * sizeof(Gpu) + s.jobs.size() * sizeof(Job);
  for (const Gpu& gpu : s.gpus) {
    bytes += gpu.now.processes.size() * sizeof(probe::GpuProcess) +
             gpu.now.instances.size() * sizeof(probe::MigInstance);
  }
  if (s.details) {
    bytes += s.details->files.size() * (sizeof(OpenFile) + 64) +
             s.details->python.functions.size() * (sizeof(Function) + 64) +
             s.details->environment.size() * 128;
  }
  return bytes;
}

}  // namespace

void History::add(std::shared_ptr<const Snapshot> snapshot) {
  bytes_ += bytes_of(*snapshot);
  snapshots_.push_back(std::move(snapshot));
  while (snapshots_.size() > 1 && snapshots_.back()->at - snapshots_.front()->at > length_) {
    bytes_ -= bytes_of(*snapshots_.front());
    snapshots_.pop_front();
  }
  if (bytes_ > max_bytes_) thin();
}

void History::thin() {
  const size_t half = snapshots_.size() / 2;
  std::deque<std::shared_ptr<const Snapshot>> kept;
  bytes_ = 0;
  for (size_t i = 0; i < snapshots_.size(); ++i) {
    if (i < half && i % 2 == 1) continue;
    bytes_ += bytes_of(*snapshots_[i]);
    kept.push_back(std::move(snapshots_[i]));
  }
  snapshots_ = std::move(kept);
}

std::shared_ptr<const Snapshot> History::back(size_t steps) const {
  if (snapshots_.empty()) return nullptr;
  return snapshots_[snapshots_.size() - 1 - std::min(steps, snapshots_.size() - 1)];
}

}  // namespace flatout::screen
