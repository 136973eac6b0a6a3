#include "probe/job_tree.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "base/text.h"
#include "probe/proc_files.h"

namespace flatout::probe {
namespace {

constexpr Nanos kCheckPeriod = std::chrono::milliseconds(400);
constexpr Nanos kListPeriod = std::chrono::seconds(2);
constexpr int32_t kMaxProbedPids = 256;  // beyond that, listing /proc costs less
// Reporting short-lived processes without bound would fill the recording.
constexpr double kReportBurst = 500;
constexpr double kReportsPerSecond = 1;
constexpr Nanos kLongLived = std::chrono::seconds(1);
constexpr size_t kMaxGroups = 4096;

std::string path_of(int32_t pid, std::string_view leaf) {
  std::string out = "proc/" + std::to_string(pid);
  out += '/';
  out += leaf;
  return out;
}

// Start times count from boot, suspend included; ours is CLOCK_MONOTONIC.
TimePoint start_time(uint64_t start_ticks, TimePoint now) {
  timespec boot{};
  clock_gettime(CLOCK_BOOTTIME, &boot);
  const double since_boot = static_cast<double>(boot.tv_sec) + 1e-9 * boot.tv_nsec;
  const double start = static_cast<double>(start_ticks) / static_cast<double>(sysconf(_SC_CLK_TCK));
  return now - nanos(std::max(0.0, since_boot - start) * 1e9);
}

std::string_view base_name(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

}  // namespace

JobTree::JobTree(fs::Root root, int32_t job_pid, int32_t self_pid)
    : root_(std::move(root)), job_pid_(job_pid), self_pid_(self_pid), tokens_(kReportBurst) {}

const JobProcess* JobTree::find(int32_t pid) const {
  const auto it = job_.find(pid);
  return it == job_.end() ? nullptr : &it->second;
}

void JobTree::update(TimePoint now, model::Sink& sink) {
  tokens_ = std::min(kReportBurst, tokens_ + to_s(now - last_refill_) * kReportsPerSecond);
  last_refill_ = now;
  // Ends first: a pid that was given out again must not hide behind the old process.
  if (now - last_check_ >= kCheckPeriod) {
    check_known(now, sink);
    last_check_ = now;
  }
  find_new(now, sink);
  rebuild();
}

void JobTree::find_new(TimePoint now, model::Sink& sink) {
  int32_t newest = -1;
  if (root_.read_into("proc/loadavg", buffer_, 256).ok()) {
    std::string_view text = trim(buffer_);
    const size_t blank = text.rfind(' ');
    if (blank != std::string_view::npos) {
      newest = parse_number<int32_t>(text.substr(blank + 1)).value_or(-1);
    }
  }
  const bool listing_due = now - last_listing_ >= kListPeriod;
  if (newest < 0 || !listed_once_ || listing_due) {
    const uint64_t before = seen_;
    const bool stood_still = listed_once_ && newest >= 0 && newest == newest_pid_;
    list_all(now, sink);
    if (stood_still && seen_ != before) trust_newest_ = false;
  } else if (!trust_newest_) {
    list_all(now, sink);
  } else if (newest > newest_pid_ && newest - newest_pid_ <= kMaxProbedPids) {
    // In order: a parent's pid is looked at before its child's.
    for (int32_t pid = newest_pid_ + 1; pid <= newest; ++pid) consider(pid, now, sink);
  } else if (newest != newest_pid_) {
    list_all(now, sink);  // pids wrapped around, or very many are new
  }
  newest_pid_ = newest;
}

void JobTree::list_all(TimePoint now, model::Sink& sink) {
  last_listing_ = now;
  const auto names = root_.list("proc");
  if (!names.ok()) {
    sink.missing({"proc", names.error().message, "mount /proc"});
    consider(job_pid_, now, sink);
    return;
  }
  std::vector<int32_t> pids;
  for (const std::string& name : *names) {
    if (name[0] < '0' || name[0] > '9') continue;
    if (const auto pid = parse_number<int32_t>(name)) pids.push_back(*pid);
  }
  std::sort(pids.begin(), pids.end());
  if (!listed_once_) consider(job_pid_, now, sink);
  listed_once_ = true;
  std::vector<int32_t> candidates;
  std::set_difference(pids.begin(), pids.end(), all_pids_.begin(), all_pids_.end(),
                      std::back_inserter(candidates));
  // Repeated, since a child may have a smaller pid than its parent once pids have wrapped around.
  // The parents of strangers are kept, so that each file is read once.
  std::vector<std::pair<int32_t, int32_t>> strangers;  // pid, ppid
  for (const int32_t pid : candidates) {
    int32_t ppid = 0;
    if (!consider(pid, now, sink, &ppid) && ppid > 0) strangers.emplace_back(pid, ppid);
  }
  for (bool again = true; again;) {
    again = false;
    for (const auto& [pid, ppid] : strangers) {
      if (job_.contains(ppid) && !job_.contains(pid)) again |= consider(pid, now, sink);
    }
  }
  all_pids_ = std::move(pids);
}

bool JobTree::consider(int32_t pid, TimePoint now, model::Sink& sink, int32_t* ppid) {
  if (pid == self_pid_ || pid == ignored_pid_ || job_.contains(pid)) return false;
  if (!root_.read_into(path_of(pid, "stat"), buffer_, 4096).ok()) return false;
  const std::string text = buffer_;  // add() reads more files
  const auto stat = parse_pid_stat(text);
  if (!stat || stat->pid != pid) return false;
  if (ppid != nullptr) *ppid = stat->ppid;
  if (pid == job_pid_) {
    if (main_start_ticks_ != 0) return false;  // the command has ended; its pid was given out again
    main_start_ticks_ = stat->start_ticks;
    adopts_ = stat->ppid == self_pid_;
  } else if (!belongs(*stat)) {
    return false;
  }
  if (stat->zombie() && pid != job_pid_) return false;
  // A thread's id also has a directory, hidden from listings: only leaders are processes.
  if (root_.read_into(path_of(pid, "status"), buffer_, 4096).ok()) {
    const auto tgid = find_field(buffer_, "Tgid");
    if (tgid && static_cast<int64_t>(*tgid) != pid) return false;
  }
  add(*stat, now, sink);
  return true;
}

bool JobTree::belongs(const PidStat& stat) const {
  if (job_.contains(stat.ppid)) return true;
  if (adopts_ && stat.ppid == self_pid_ && !is_helper(stat.pid)) return true;
  // Handed to init after its parent ended, before we saw it: it is ours if a process of the job
  // leads its process group or session.
  const auto led = [&](int32_t pid) {
    return pid > 1 && std::find(groups_.begin(), groups_.end(), pid) != groups_.end();
  };
  return main_start_ticks_ != 0 && stat.start_ticks >= main_start_ticks_ &&
         (led(stat.pgrp) || led(stat.session));
}

// flatout's own helper processes are its children too: forked, so of the same executable.
bool JobTree::is_helper(int32_t pid) const {
  const auto own = root_.read_link(path_of(self_pid_, "exe"));
  const auto exe = root_.read_link(path_of(pid, "exe"));
  return own.ok() && exe.ok() && *own == *exe;
}

void JobTree::add(const PidStat& stat, TimePoint now, model::Sink& sink) {
  JobProcess& process = job_[stat.pid];
  process = JobProcess{};
  process.pid = stat.pid;
  process.ppid = stat.ppid;
  process.pgrp = stat.pgrp;
  process.session = stat.session;
  process.start_time_ticks = stat.start_ticks;
  process.start = start_time(stat.start_ticks, now);
  process.main = stat.pid == job_pid_;
  process.name = stat.comm;
  process.seen = now;
  ++seen_;
  if (groups_.size() < kMaxGroups) groups_.push_back(stat.pid);
  const JobProcess* parent = find(stat.ppid);
  if (parent != nullptr) process.python = parent->python;  // until its executable says otherwise
  read_identity(process, now);
  report(process, now, sink);
}

void JobTree::check_known(TimePoint now, model::Sink& sink) {
  for (auto it = job_.begin(); it != job_.end();) {
    JobProcess& process = it->second;
    const Status got = root_.read_into(path_of(process.pid, "stat"), buffer_, 4096);
    const auto stat = got.ok() ? parse_pid_stat(buffer_) : std::nullopt;
    const bool unreadable =
        !got.ok() && got.error().code != Code::kNotFound && got.error().code != Code::kGone;
    if (unreadable || (got.ok() && !stat)) {  // not a sign of its end
      ++it;
      continue;
    }
    if (!stat || stat->zombie() || stat->start_ticks != process.start_time_ticks) {
      const bool same = stat && stat->start_ticks == process.start_time_ticks;
      if (process.reported) sink.process_end(process.pid, same ? stat->exit_status : -1, now);
      it = job_.erase(it);
      continue;
    }
    process.ppid = stat->ppid;
    process.pgrp = stat->pgrp;
    process.session = stat->session;
    bool changed = process.name != stat->comm;
    if (changed) process.name = stat->comm;
    const std::string exe = root_.read_link(path_of(process.pid, "exe")).value_or(process.exe);
    if (changed || exe != process.exe || now >= process.next_python_check) {
      const JobProcess before = process;
      read_identity(process, now);
      changed = changed || before.exe != process.exe || before.command != process.command ||
                before.python != process.python;
    }
    if (changed || !process.reported) report(process, now, sink);
    ++it;
  }
}

void JobTree::read_identity(JobProcess& process, TimePoint now) {
  const auto exe = root_.read_link(path_of(process.pid, "exe"));
  const std::string old_exe = process.exe;
  if (exe.ok()) process.exe = *exe;
  if (root_.read_into(path_of(process.pid, "cmdline"), buffer_, 4096).ok()) {
    process.command = join_command_line(buffer_);
  }
  const JobProcess* parent = find(process.ppid);
  const bool forked = old_exe.empty() && parent != nullptr && parent->exe == process.exe;
  process.python = (forked && parent->python) || looks_like_python(process);
  // An interpreter may be loaded late: look again at growing distances.
  const Nanos age = now - process.seen;
  process.next_python_check = process.python || age > std::chrono::minutes(10)
                                  ? TimePoint::max()
                                  : now + std::max<Nanos>(std::chrono::seconds(1), age * 2);
}

bool JobTree::looks_like_python(const JobProcess& process) const {
  const std::string_view exe = base_name(process.exe);
  if (exe.starts_with("python") || exe.starts_with("pypy")) return true;
  // Embedded: libpython is mapped. Read in full, but only for other executables and rarely.
  const auto maps = root_.read(path_of(process.pid, "maps"), 4 << 20);
  return maps.ok() && maps->find("/libpython") != std::string::npos;
}

void JobTree::report(JobProcess& process, TimePoint now, model::Sink& sink) {
  if (!process.reported && !process.main) {
    const bool lasting = now - process.seen >= kLongLived;
    if (tokens_ < 1 && !lasting) return;
    if (tokens_ >= 1) tokens_ -= 1;
  }
  process.reported = true;
  model::Process out;
  out.pid = process.pid;
  out.ppid = process.ppid;
  out.start_time_ticks = process.start_time_ticks;
  out.start = process.start;
  out.end = now;
  out.in_job = true;
  out.main = process.main;
  out.python = process.python;
  out.name = process.name;
  out.exe = process.exe;
  out.command = process.command;
  sink.process(out);
}

void JobTree::rebuild() {
  alive_.clear();
  for (const auto& [pid, process] : job_) alive_.push_back(&process);
}

}  // namespace flatout::probe
