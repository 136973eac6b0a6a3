// Finds the training jobs among the processes: by the libraries that they have mapped, and by the
// `flatout run` or `flatout attach` that records them, whose run folder says how they fare.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/fs.h"
#include "screen/snapshot.h"
#include "screen/task_table.h"

namespace flatout::screen {

/// "PyTorch", "TensorFlow", "JAX", "CUDA" or "": by the libraries that /proc/PID/maps names.
std::string framework_of(std::string_view maps);

/// How the job of a run folder fares.
struct Progress {
  int32_t pid = 0;  // the job's main process
  std::string folder;
  std::optional<double> steps_per_s;
  std::array<double, model::kPartCount> breakdown{};
  std::string suspect, where;
};
/// Reads the folder. Errors: as timeline::read_run_folder().
Result<Progress> read_progress(const std::string& folder);

/// Reads run folders again and again in a thread of its own, for a run of hours takes seconds to
/// read; spends at most a twentieth of a core on it.
class ProgressReader {
 public:
  ProgressReader() = default;
  ~ProgressReader();
  ProgressReader(const ProgressReader&) = delete;
  ProgressReader& operator=(const ProgressReader&) = delete;

  /// From now on these are read.
  void watch(const std::set<std::string>& folders);
  std::vector<Progress> latest() const;

 private:
  void work();
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::set<std::string> folders_;
  std::map<std::string, Progress> latest_;
  std::thread thread_;  // started with the first folder
};

class Jobs {
 public:
  Jobs(fs::Root root, TaskTable::Clock clock) : root_(std::move(root)), clock_(clock) {}
  /// Fills in out.jobs from out.task_list.
  void look(Snapshot& out);

 private:
  struct Candidate {
    uint64_t start_ticks = 0, look = 0;
    std::string framework;
    TimePoint next_check{};
    Nanos pause{};
    std::string folder;  // of a flatout: what it writes into
  };
  void inspect(const Task& task, Candidate& candidate);
  std::string folder_of(int32_t pid) const;

  fs::Root root_;
  TaskTable::Clock clock_;
  uint64_t looks_ = 0;
  int checks_left_ = 0;
  std::unordered_map<int32_t, Candidate> candidates_;
  ProgressReader progress_;
};

}  // namespace flatout::screen
