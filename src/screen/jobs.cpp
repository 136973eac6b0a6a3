#include "screen/jobs.h"

#include <algorithm>

#include "base/cpu_time.h"
#include "base/text.h"
#include "diagnose/diagnose.h"
#include "model/step_rate.h"
#include "probe/leftover.h"
#include "probe/reading.h"
#include "timeline/import_folder.h"

namespace flatout::screen {
namespace {

constexpr uint64_t kLeastRss = 24 << 20;  // no framework is smaller
constexpr int kFirstChecks = 64;          // of the first look: it shall find the jobs that run
constexpr int kChecksPerLook = 4;         // mappings of a big process take a millisecond to read
constexpr Nanos kFirstPause = std::chrono::seconds(1);
constexpr Nanos kLongestPause = std::chrono::seconds(60);
constexpr size_t kMaxMaps = 16 << 20;
constexpr size_t kMaxLinks = 256;
constexpr std::string_view kOnlyCuda = "CUDA";
constexpr size_t kRunBytes = 14 << 20;  // as the recorder's own live Run
constexpr double kProgressShare = 0.05;
constexpr Nanos kProgressPeriod = std::chrono::seconds(2);

std::string_view base_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

}  // namespace

std::string framework_of(std::string_view maps) {
  struct Row {
    std::string_view library, framework;
  };
  // The first that is found wins: whoever uses a framework has CUDA's libraries mapped, too.
  static constexpr Row kRows[] = {
      {"/libtorch_cpu.so", "PyTorch"},
      {"/libtorch.so", "PyTorch"},
      {"/libc10.so", "PyTorch"},
      {"/libtensorflow_framework.so", "TensorFlow"},
      {"/libtensorflow_cc.so", "TensorFlow"},
      {"/_pywrap_tensorflow", "TensorFlow"},
      {"/jaxlib/", "JAX"},
      {"/libcudart.so", kOnlyCuda},
      {"/libcuda.so", kOnlyCuda},
      {"/libcudnn.so", kOnlyCuda},
  };
  for (const Row& row : kRows) {
    if (maps.find(row.library) != std::string_view::npos) return std::string(row.framework);
  }
  return "";
}

Result<Progress> read_progress(const std::string& folder) {
  FLATOUT_TRY(const model::Run run, timeline::read_run_folder(folder, nullptr, kRunBytes));
  Progress out;
  out.folder = folder;
  if (const model::Process* main = run.main_process()) out.pid = main->pid;
  out.steps_per_s = model::recent_rate(run.steps);
  out.breakdown = run.steps.summary.breakdown;
  const model::Diagnosis diagnosis = diagnose::diagnose(run);
  if (diagnosis.verdict != "none") out.suspect = diagnosis.verdict;
  if (!diagnosis.findings.empty() && diagnosis.findings[0].where) {
    const model::Where& where = *diagnosis.findings[0].where;
    out.where = std::string(base_name(where.file));
    if (where.line > 0) out.where += ":" + std::to_string(where.line);
  }
  return out;
}

ProgressReader::~ProgressReader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void ProgressReader::watch(const std::set<std::string>& folders) {
  {
    const std::lock_guard lock(mutex_);
    if (folders == folders_) return;
    folders_ = folders;
    std::erase_if(latest_, [&](const auto& entry) { return !folders.contains(entry.first); });
  }
  changed_.notify_all();
  if (!thread_.joinable() && !folders.empty()) thread_ = std::thread([this] { work(); });
}

std::vector<Progress> ProgressReader::latest() const {
  const std::lock_guard lock(mutex_);
  std::vector<Progress> out;
  for (const auto& [folder, progress] : latest_) out.push_back(progress);
  return out;
}

void ProgressReader::work() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    const std::set<std::string> folders = folders_;
    lock.unlock();
    const Nanos before = thread_cpu();
    std::vector<Progress> fresh;
    for (const std::string& folder : folders) {
      if (auto progress = read_progress(folder); progress.ok()) {
        fresh.push_back(std::move(*progress));
      }
    }
    const Nanos pause =
        std::max(kProgressPeriod,
                 nanos(static_cast<double>((thread_cpu() - before).count()) / kProgressShare));
    lock.lock();
    for (Progress& progress : fresh) {
      if (folders_.contains(progress.folder)) latest_[progress.folder] = std::move(progress);
    }
    changed_.wait_for(lock, pause, [&] { return stop_ || folders_ != folders; });
  }
}

// flatout keeps the two files of its run folder open.
std::string Jobs::folder_of(int32_t pid) const {
  constexpr std::string_view kFile = "/events.bin";
  const std::string dir = probe::proc_path(pid, "fd");
  const auto names = root_.list(dir);
  if (!names.ok()) return "";
  for (size_t i = 0; i < names->size() && i < kMaxLinks; ++i) {
    const auto target = root_.read_link(dir + "/" + (*names)[i]);
    if (target.ok() && target->ends_with(kFile)) {
      return target->substr(0, target->size() - kFile.size());
    }
  }
  return "";
}

void Jobs::inspect(const Task& task, Candidate& candidate) {
  const TimePoint now = clock_();
  const bool flatout = std::string_view(task.comm.data()) == "flatout";
  // Who is importing a framework has CUDA's libraries mapped before its own.
  const bool known = !candidate.framework.empty() && candidate.framework != kOnlyCuda;
  if ((!flatout && task.rss_bytes < kLeastRss) || known || !candidate.folder.empty() ||
      now < candidate.next_check || (!flatout && checks_left_ == 0)) {
    return;
  }
  candidate.pause = std::clamp(candidate.pause * 2, kFirstPause, kLongestPause);
  candidate.next_check = now + candidate.pause;
  if (flatout) {
    candidate.folder = folder_of(task.pid);
  } else {
    --checks_left_;
    const auto maps = root_.read(probe::proc_path(task.pid, "maps"), kMaxMaps);
    std::string found = maps.ok() ? framework_of(*maps) : "";
    if (!found.empty()) candidate.framework = std::move(found);
  }
}

void Jobs::look(Snapshot& out) {
  ++looks_;
  checks_left_ = looks_ == 1 ? kFirstChecks : kChecksPerLook;
  std::set<std::string> folders;
  std::unordered_map<int32_t, size_t> index;  // of processes, by pid
  std::unordered_map<int32_t, std::string> framework;
  for (size_t i = 0; i < out.task_list.size(); ++i) {
    const Task& task = out.task_list[i];
    if (task.is_thread() || task.kernel) continue;
    index[task.pid] = i;
    if (task.state == 'Z') continue;
    Candidate& candidate = candidates_[task.pid];
    if (candidate.start_ticks != task.start_ticks) candidate = Candidate{task.start_ticks};
    candidate.look = looks_;
    inspect(task, candidate);
    if (!candidate.framework.empty()) framework[task.pid] = candidate.framework;
    if (!candidate.folder.empty()) folders.insert(candidate.folder);
  }
  std::erase_if(candidates_, [&](const auto& entry) { return entry.second.look != looks_; });
  progress_.watch(folders);
  std::unordered_map<int32_t, Progress> progress;
  for (Progress& one : progress_.latest()) {
    if (index.contains(one.pid)) {
      framework.try_emplace(one.pid, "");  // what flatout watches is a job, whatever it uses
      progress[one.pid] = std::move(one);
    }
  }

  if (framework.empty()) return;
  // The topmost process that uses a framework is the job, unless Flatout watches one below it (a
  // notebook may have started that); what descends from a job belongs to it.
  const auto find_job = [&](int32_t pid) {
    int32_t job = 0;
    for (int depth = 0; depth < 64; ++depth) {
      const auto it = index.find(pid);
      if (it == index.end()) break;
      if (progress.contains(pid)) return pid;
      if (framework.contains(pid)) job = pid;
      pid = out.task_list[it->second].ppid;
    }
    return job;
  };
  std::map<int32_t, Job> jobs;
  for (const auto& [pid, i] : index) {
    const int32_t root = find_job(pid);
    if (root == 0) continue;
    const Task& task = out.task_list[i];
    Job& job = jobs[root];
    if (const auto own = framework.find(pid); own != framework.end() && job.framework.empty()) {
      job.framework = own->second;  // a launcher has none of its own
    }
    ++job.processes;
    job.threads += task.threads;
    job.cores += static_cast<double>(task.cores);
    job.rss_bytes += task.rss_bytes;
    job.gpu_bytes += task.gpu_bytes;
    if (task.read_bytes_per_s >= 0) {
      job.read_bytes_per_s =
          job.read_bytes_per_s.value_or(0) + static_cast<double>(task.read_bytes_per_s);
    }
  }
  for (auto& [pid, job] : jobs) {
    job.pid = pid;
    if (!framework[pid].empty()) job.framework = framework[pid];
    if (job.framework.empty()) job.framework = "other";
    const auto cmdline = root_.read(probe::proc_path(pid, "cmdline"), 4096);
    job.name = probe::program_and_script(cmdline.value_or(""));
    if (const auto it = progress.find(pid); it != progress.end()) {
      job.folder = it->second.folder;
      job.steps_per_s = it->second.steps_per_s;
      job.breakdown = it->second.breakdown;
      job.suspect = it->second.suspect;
      job.where = it->second.where;
    }
    out.jobs.push_back(std::move(job));
  }
}

}  // namespace flatout::screen
