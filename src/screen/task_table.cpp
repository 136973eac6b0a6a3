#include "screen/task_table.h"

#include <pwd.h>

#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "probe/proc_files.h"
#include "probe/reading.h"

namespace flatout::screen {
namespace {

constexpr uint64_t kRarely = 16;  // looks
constexpr size_t kMaxCommand = 4096;

}  // namespace

TaskTable::TaskTable(fs::Root root, Clock clock) : root_(std::move(root)), clock_(clock) {}

void TaskTable::look(bool threads, Snapshot& out) {
  ++looks_;
  out.task_list.reserve(known_.size() + 64);
  const auto names = root_.list("proc");
  if (!names.ok()) return;
  std::vector<int32_t> pids;
  pids.reserve(names->size());
  for (const std::string& name : *names) {
    if (name[0] < '1' || name[0] > '9') continue;
    if (const auto pid = parse_number<int32_t>(name)) pids.push_back(*pid);
  }
  std::sort(pids.begin(), pids.end());
  for (const int32_t pid : pids) read_process(pid, threads, out);
  std::erase_if(known_, [&](const auto& entry) { return entry.second.look != looks_; });
}

bool TaskTable::read_stat(const std::string& path, Task& task) {
  if (!root_.read_into(path, buffer_, 4096).ok()) return false;
  const auto stat = probe::parse_pid_stat(buffer_);
  if (!stat) return false;
  task.ppid = stat->ppid;
  task.state = stat->state;
  task.priority = static_cast<int32_t>(stat->priority);
  task.nice = static_cast<int32_t>(stat->nice);
  task.cpu = stat->cpu;
  task.threads = static_cast<uint32_t>(std::max<int64_t>(stat->threads, 0));
  task.kernel = stat->kernel_thread();
  task.virtual_bytes = stat->virtual_bytes;
  task.rss_bytes = static_cast<uint64_t>(std::max<int64_t>(stat->rss_pages, 0)) * page_bytes();
  task.cpu_ticks = stat->user_ticks + stat->system_ticks;
  task.start_ticks = stat->start_ticks;
  const size_t size = std::min(stat->comm.size(), task.comm.size() - 1);
  std::memcpy(task.comm.data(), stat->comm.data(), size);
  return true;
}

float TaskTable::cores_since(Usage& usage, const Task& task) const {
  const TimePoint now = clock_();
  float cores = 0;
  if (usage.at != TimePoint{} && usage.start_ticks == task.start_ticks && now > usage.at &&
      task.cpu_ticks >= usage.cpu_ticks) {
    cores = static_cast<float>(static_cast<double>(task.cpu_ticks - usage.cpu_ticks) *
                               probe::tick_ns() / static_cast<double>((now - usage.at).count()));
  }
  usage = {task.start_ticks, task.cpu_ticks, now};
  return cores;
}

void TaskTable::read_process(int32_t pid, bool threads, Snapshot& out) {
  Task task;
  task.pid = task.tid = pid;
  if (!read_stat(probe::proc_path(pid, "stat"), task)) return;  // it has ended
  Known& known = known_[pid];
  if (known.usage.start_ticks != task.start_ticks) known = Known{};  // the pid is another's now
  known.look = looks_;
  const bool due = (looks_ + static_cast<uint64_t>(pid)) % kRarely == 0;
  if (due || known.command == nullptr || known.comm != task.comm) read_identity(known, task);
  const uint64_t ticks_before = known.usage.cpu_ticks;
  const TimePoint looked_at = known.usage.at;
  task.cores = cores_since(known.usage, task);
  const bool moves = !known.io_denied && (known.read_rate != 0 || known.write_rate != 0);
  const bool ran = task.cpu_ticks != ticks_before || task.state == 'D';
  if (!task.kernel && (due || moves || ran)) {
    // Who did not run until the look before moved nothing until then.
    if (ran && known.io_at != TimePoint{}) known.io_at = std::max(known.io_at, looked_at);
    read_io(known, task);
  }
  task.read_bytes_per_s = known.read_rate;
  task.write_bytes_per_s = known.write_rate;
  task.uid = known.uid;
  task.command = known.command;

  ++out.tasks;
  out.task_threads += task.threads;
  if (task.state == 'Z') ++out.zombies;
  out.task_list.push_back(task);
  if (threads && task.threads > 1) {
    read_threads(known, task, out);
  } else {
    known.threads.clear();
  }
}

void TaskTable::read_threads(Known& known, const Task& process, Snapshot& out) {
  const std::string dir = probe::proc_path(process.pid, "task");
  const auto names = root_.list(dir);
  if (!names.ok()) return;
  std::unordered_map<int32_t, Usage> seen;
  seen.reserve(names->size());
  for (const std::string& name : *names) {
    const auto tid = parse_number<int32_t>(name);
    if (!tid || *tid == process.pid) continue;  // the main thread is the process's own row
    Task task;
    task.pid = process.pid;
    task.tid = *tid;
    path_ = dir;
    path_ += '/';
    path_ += name;
    path_ += "/stat";
    if (!read_stat(path_, task)) continue;
    task.ppid = process.pid;
    task.uid = process.uid;
    task.kernel = process.kernel;
    Usage& usage = seen[*tid];
    if (const auto old = known.threads.find(*tid); old != known.threads.end()) usage = old->second;
    task.cores = cores_since(usage, task);
    out.task_list.push_back(task);
  }
  known.threads = std::move(seen);
}

void TaskTable::read_identity(Known& known, const Task& process) {
  known.comm = process.comm;
  if (process.kernel) {
    known.command = std::make_shared<const std::string>();
    known.uid = 0;
    return;
  }
  if (root_.read_into(probe::proc_path(process.pid, "status"), buffer_, 16 << 10).ok()) {
    known.uid = probe::parse_pid_status(buffer_).uid.value_or(known.uid);
  }
  std::string command;
  if (root_.read_into(probe::proc_path(process.pid, "cmdline"), buffer_, kMaxCommand).ok()) {
    command = probe::join_command_line(buffer_, kMaxCommand);
  }
  if (known.command == nullptr || *known.command != command) {
    known.command = std::make_shared<const std::string>(std::move(command));
  }
}

void TaskTable::read_io(Known& known, const Task& process) {
  // Whose it is does not change often: what was denied is asked again rarely.
  const bool due = (looks_ + static_cast<uint64_t>(process.pid)) % kRarely == 0;
  if (known.io_denied && !due) return;
  const Status got = root_.read_into(probe::proc_path(process.pid, "io"), buffer_, 4096);
  const auto io = got.ok() ? probe::parse_pid_io(buffer_) : std::nullopt;
  known.io_denied = !io;
  if (!io) {
    known.read_rate = known.write_rate = -1;
    return;
  }
  const TimePoint now = clock_();
  if (known.io_at != TimePoint{} && now > known.io_at) {
    const double seconds = to_s(now - known.io_at);
    const auto rate = [&](uint64_t before, uint64_t after) {
      return after < before ? 0.0F
                            : static_cast<float>(static_cast<double>(after - before) / seconds);
    };
    known.read_rate = rate(known.read_bytes, io->read_bytes);
    known.write_rate = rate(known.write_bytes, io->write_bytes);
  }
  known.read_bytes = io->read_bytes;
  known.write_bytes = io->write_bytes;
  known.io_at = now;
}

const std::string& UserNames::name(uint32_t uid) {
  if (!read_) {
    read_ = true;
    const std::string text = root_.read("etc/passwd").value_or("");
    std::string_view rest = text, line;
    while (next_line(rest, line)) {
      const std::vector<std::string_view> fields = split(line, ':');
      if (fields.size() < 3) continue;
      if (const auto id = parse_number<uint32_t>(fields[2])) names_.try_emplace(*id, fields[0]);
    }
  }
  const auto known = names_.find(uid);
  if (known != names_.end()) return known->second;
  std::string found;
  if (root_.is_real()) {  // of a directory service
    passwd entry{};
    passwd* result = nullptr;
    std::array<char, 4096> buffer{};
    if (::getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &result) == 0 &&
        result != nullptr) {
      found = entry.pw_name;
    }
  }
  return names_.emplace(uid, found.empty() ? std::to_string(uid) : found).first->second;
}

}  // namespace flatout::screen
