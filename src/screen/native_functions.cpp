#include "screen/native_functions.h"

#include <algorithm>
#include <array>

#include "base/text.h"
#include "probe/proc_files.h"
#include "probe/reading.h"

namespace flatout::screen {
namespace {

constexpr Nanos kChoicePeriod = std::chrono::seconds(1);
constexpr size_t kMostWatched = 16;
constexpr size_t kMostThreads = 4096;
constexpr size_t kMostFunctions = 200;

}  // namespace

NativeWatch::NativeWatch(fs::Root root, int32_t pid)
    : root_(std::move(root)),
      pid_(pid),
      function_names_(root_, true),
      stacks_(root_, pid, function_names_),
      files_(probe::FileBudget::from_limit()),
      thread_([this](Nanos weight) { return tick(weight); }) {}

NativeProfile NativeWatch::take() {
  const std::lock_guard lock(mutex_);
  PythonProfile sums = table_.take(kMostFunctions);
  NativeProfile out;
  out.trouble = trouble_;
  out.readings = sums.readings;
  out.threads = all_threads_;
  out.watched = watched_;
  out.functions = std::move(sums.functions);
  return out;
}

// Those that used most CPU time since the last choice; among equals the oldest, so that a process
// that only waits shows where its first threads do.
void NativeWatch::choose_threads() {
  const auto names = root_.list(probe::proc_path(pid_, "task"));
  std::vector<std::pair<uint64_t, int32_t>> used;
  std::unordered_map<int32_t, uint64_t> ticks;
  for (const std::string& name : names.value_or({})) {
    const auto tid = parse_number<int32_t>(name);
    if (!tid || used.size() == kMostThreads) continue;
    const auto text = root_.read(probe::proc_path(pid_, "task/" + name + "/stat"), 4096);
    const auto stat = text.ok() ? probe::parse_pid_stat(*text) : std::nullopt;
    if (!stat) continue;
    const uint64_t now = stat->user_ticks + stat->system_ticks;
    const auto before = cpu_ticks_.find(*tid);
    ticks.emplace(*tid, now);
    used.emplace_back(before == cpu_ticks_.end() ? 0 : now - std::min(now, before->second), *tid);
  }
  cpu_ticks_ = std::move(ticks);
  const size_t all = used.size(), most = std::min(all, kMostWatched);
  std::partial_sort(used.begin(), used.begin() + static_cast<std::ptrdiff_t>(most), used.end(),
                    [](const auto& a, const auto& b) {
                      return a.first != b.first ? a.first > b.first : a.second < b.second;
                    });
  used.resize(most);
  std::map<int32_t, Thread> chosen;
  for (const auto& [ticks_used, tid] : used) {
    const auto known = threads_.find(tid);
    chosen.emplace(tid, known == threads_.end() ? Thread{} : std::move(known->second));
  }
  for (const auto& [tid, thread] : threads_) {
    if (!chosen.contains(tid)) stacks_.forget(tid);
  }
  threads_ = std::move(chosen);
  const std::lock_guard lock(mutex_);
  all_threads_ = static_cast<uint32_t>(all);
  watched_ = static_cast<uint32_t>(most);
}

void NativeWatch::keep(const std::vector<symbols::NativeFrame>& frames, Thread& thread) {
  thread.frames.clear();
  for (const symbols::NativeFrame& frame : frames) {
    const auto [entry, is_new] =
        codes_.try_emplace({frame.function, frame.file}, static_cast<uint32_t>(names_.size()));
    if (is_new) names_.push_back(&entry->first);
    thread.frames.push_back({entry->second, 0});
  }
}

void NativeWatch::read(int32_t tid, Thread& thread) {
  std::array<char, 1024> buffer{};
  const auto text = thread.files.read(root_, pid_, tid, probe::ThreadFiles::kStat, buffer, files_);
  const auto stat = text.ok() ? probe::parse_pid_stat(*text) : std::nullopt;
  const bool was_running = thread.running;
  thread.running = stat && stat->state == 'R';
  if (!stat) {  // it has ended
    thread.frames.clear();
    return;
  }
  if (thread.running) {
    if (!was_running) thread.frames.clear();
    // Between two samples it runs what it ran in the last one.
    if (const auto& frames = stacks_.running(tid); !frames.empty()) keep(frames, thread);
    thread.call.reset();
    return;
  }
  const auto line =
      thread.files.read(root_, pid_, tid, probe::ThreadFiles::kSyscall, buffer, files_);
  calls_denied_ = !line.ok() && line.error().code == Code::kDenied;
  const auto call = line.ok() ? probe::parse_syscall(*line) : std::nullopt;
  if (!call) {
    thread.frames.clear();
    return;
  }
  // Still in the same call, of the same function: most threads wait for long.
  if (thread.call == call) return;
  thread.call = call;
  keep(stacks_.blocked(tid, *call), thread);
  if (stacks_.went_on()) thread.call.reset();
}

std::string NativeWatch::trouble() const {
  if (calls_denied_) return "its threads may not be read: run flatout as that user, or as root";
  if (stacks_.trouble().ok()) return "";
  const Error& error = stacks_.trouble().error();
  return error.message + (error.hint.empty() ? "" : ": " + error.hint);
}

bool NativeWatch::tick(Nanos weight) {
  const TimePoint now = MonotonicClock::now();
  if (now >= next_choice_) {
    choose_threads();
    next_choice_ = now + kChoicePeriod;
  }
  reading_.threads.clear();
  for (auto& [tid, thread] : threads_) {
    read(tid, thread);
    probe::PythonThread& out = reading_.threads.emplace_back();
    out.tid = tid;
    out.frames = thread.frames;
  }
  const std::lock_guard lock(mutex_);
  trouble_ = trouble();
  table_.add(
      reading_, weight, [&](int32_t tid) { return threads_.at(tid).running; },
      [&](uint32_t code, Function& out) {
        out.function = names_[code]->first;
        out.file = names_[code]->second;
      });
  return !threads_.empty();
}

}  // namespace flatout::screen
