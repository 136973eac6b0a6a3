#include "screen/disk_users.h"

#include <algorithm>
#include <vector>

#include "base/text.h"
#include "probe/proc_files.h"
#include "probe/reading.h"

namespace flatout::screen {
namespace {

// A look at a process's files costs up to two system calls for each of them.
constexpr size_t kMostProcesses = 8;
constexpr size_t kMostFiles = 64;

float traffic(const Task& task) {
  return std::max(task.read_bytes_per_s, 0.0F) + std::max(task.write_bytes_per_s, 0.0F);
}

int16_t index_of(const std::string& disk, const Snapshot& snapshot) {
  for (size_t i = 0; i < snapshot.disks.size(); ++i) {
    if (snapshot.disks[i].name == disk) return static_cast<int16_t>(i);
  }
  return Task::kNoDisk;
}

}  // namespace

std::string DiskUsers::disk_of_file(int32_t pid, int64_t mount_id, TimePoint now) {
  const probe::Mount* mount = mounts_.find(root_, pid, mount_id, now);
  if (mount == nullptr) return "";
  const std::string key = mount->device + ' ' + mount->source;
  const auto known = disks_.find(key);
  if (known != disks_.end()) return known->second;
  return disks_.emplace(key, probe::disk_of(root_, *mount)).first->second;
}

int16_t DiskUsers::disk_of_process(int32_t pid, const Snapshot& out) {
  const auto [entry, is_new] = known_.try_emplace(pid);
  Process& process = entry->second;
  process.look = looks_;
  std::map<int32_t, OpenFile> files;
  std::set<std::string> open, moved;
  const auto names = root_.list(probe::proc_path(pid, "fd"));
  if (!names.ok()) return Task::kNoDisk;
  for (const std::string& name : *names) {
    if (files.size() == kMostFiles) break;
    const auto fd = parse_number<int32_t>(name);
    const auto info = root_.read(probe::proc_path(pid, "fdinfo/" + name), 1024);
    if (!fd || !info.ok()) continue;
    const auto mount = probe::find_field(*info, "mnt_id");
    const auto position = probe::parse_fd_position(*info);
    if (!mount || !position) continue;
    std::string disk = disk_of_file(pid, static_cast<int64_t>(*mount), out.at);
    if (disk.empty()) continue;  // a pipe, a socket, a file in memory or on another machine
    open.insert(disk);
    // A file that was opened since the last look and read from has moved, too.
    const auto before = process.files.find(*fd);
    const int64_t was = before == process.files.end() ? 0 : before->second.position;
    if (!is_new && *position != was) moved.insert(disk);
    files.emplace(*fd, OpenFile{std::move(disk), *position});
  }
  process.files = std::move(files);
  // Files that are read by pread() or mapped do not move: then all that are open count.
  const std::set<std::string>& used = moved.empty() ? open : moved;
  return used.size() == 1 ? index_of(*used.begin(), out) : Task::kNoDisk;
}

void DiskUsers::look(Snapshot& out) {
  ++looks_;
  for (const Disk& disk : out.disks) {
    if (disk.requests_per_s > 0 || disk.in_flight > 0) active_.insert(disk.name);
  }
  std::vector<Task*> users;
  for (Task& task : out.task_list) {
    if (!task.is_thread() && traffic(task) > 0) users.push_back(&task);
  }
  if (active_.size() == 1) {  // whoever reads or writes does it there
    const int16_t only = index_of(*active_.begin(), out);
    for (Task* task : users) task->disk = only;
    return;
  }
  const size_t most = std::min(users.size(), kMostProcesses);
  std::partial_sort(users.begin(), users.begin() + static_cast<std::ptrdiff_t>(most), users.end(),
                    [](const Task* a, const Task* b) { return traffic(*a) > traffic(*b); });
  users.resize(most);
  for (Task* task : users) task->disk = disk_of_process(task->pid, out);
  std::erase_if(known_, [&](const auto& entry) { return entry.second.look != looks_; });
}

}  // namespace flatout::screen
