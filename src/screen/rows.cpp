#include "screen/rows.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <unordered_map>

#include "base/text.h"

namespace flatout::screen {
namespace {

constexpr int kDeepest = 60;  // bits of Row::lines

bool holds(std::string_view text, std::string_view part) {
  const auto same = [](char a, char b) {
    return std::tolower(static_cast<unsigned char>(a)) ==
           std::tolower(static_cast<unsigned char>(b));
  };
  return std::search(text.begin(), text.end(), part.begin(), part.end(), same) != text.end();
}

template <class T>
int compare(const T& a, const T& b) {
  return a < b ? -1 : b < a ? 1 : 0;
}

// < 0: a comes first.
int order(const Task& a, const Task& b, Column column, UserNames& users) {
  switch (column) {
    case Column::kPid:
    case Column::kCount:
      return 0;  // what is equal goes by pid
    case Column::kUser:
      return compare(users.name(a.uid), users.name(b.uid));
    case Column::kPriority:
      return compare(a.priority, b.priority);
    case Column::kNice:
      return compare(a.nice, b.nice);
    case Column::kVirtual:
      return compare(b.virtual_bytes, a.virtual_bytes);
    case Column::kResident:
    case Column::kMemory:
      return compare(b.rss_bytes, a.rss_bytes);
    case Column::kState:
      return compare(a.state, b.state);
    case Column::kCpu:
      return compare(b.cores, a.cores);
    case Column::kTime:
      return compare(b.cpu_ticks, a.cpu_ticks);
    case Column::kRead:
      return compare(b.read_bytes_per_s, a.read_bytes_per_s);
    case Column::kWrite:
      return compare(b.write_bytes_per_s, a.write_bytes_per_s);
    case Column::kDisk:
      return compare(b.disk, a.disk);  // those without a known one last
    case Column::kGpuMemory:
      return compare(b.gpu_bytes, a.gpu_bytes);
    case Column::kCommand: {
      const auto text = [](const Task& t) {
        return t.command != nullptr && !t.command->empty() ? std::string_view(*t.command)
                                                           : std::string_view(t.comm.data());
      };
      return text(a).compare(text(b));
    }
  }
  return 0;
}

using Children = std::unordered_map<int32_t, std::vector<const Task*>>;

class Tree {
 public:
  Tree(const Children& children, const RowChoice& choice, std::vector<Row>& out)
      : children_(children), choice_(choice), out_(out) {}

  void add(const std::vector<const Task*>& siblings, int depth, uint64_t lines) {
    for (size_t i = 0; i < siblings.size(); ++i) {
      const Task* task = siblings[i];
      const bool last = i + 1 == siblings.size();
      const uint64_t own = last ? lines : lines | (uint64_t{1} << depth);
      const size_t at = out_.size();
      out_.push_back({task, depth, last, own, 0});
      const auto below = task->is_thread() ? children_.end() : children_.find(task->pid);
      if (below == children_.end()) continue;
      if (choice_.collapsed.contains(task->pid)) {
        out_[at].hidden = count(below->second, depth + 1);
      } else {
        add(below->second, std::min(depth + 1, kDeepest), own);
      }
    }
  }

 private:
  uint32_t count(const std::vector<const Task*>& siblings, int depth) const {
    uint32_t all = static_cast<uint32_t>(siblings.size());
    if (depth > kDeepest * 4) return all;
    for (const Task* task : siblings) {
      const auto below = task->is_thread() ? children_.end() : children_.find(task->pid);
      if (below != children_.end()) all += count(below->second, depth + 1);
    }
    return all;
  }

  const Children& children_;
  const RowChoice& choice_;
  std::vector<Row>& out_;
};

// The pids of `root` and its descendants.
std::set<int32_t> family(const Snapshot& snapshot, int32_t root) {
  std::unordered_map<int32_t, std::vector<int32_t>> children;
  for (const Task& task : snapshot.task_list) {
    if (!task.is_thread()) children[task.ppid].push_back(task.pid);
  }
  std::set<int32_t> out;
  std::vector<int32_t> open{root};
  while (!open.empty()) {
    const int32_t pid = open.back();
    open.pop_back();
    if (!out.insert(pid).second) continue;
    const auto below = children.find(pid);
    if (below != children.end())
      open.insert(open.end(), below->second.begin(), below->second.end());
  }
  return out;
}

}  // namespace

std::string_view heading(Column column) {
  static constexpr std::array<std::string_view, static_cast<size_t>(Column::kCount)> kNames = {
      "PID",  "USER",  "PRI",    "NI",      "VIRT", "RES",    "S",      "CPU%",
      "MEM%", "TIME+", "READ/s", "WRITE/s", "DISK", "GPUMEM", "Command"};
  return kNames[static_cast<size_t>(column)];
}

bool mentions(const Task& task, std::string_view text) {
  return holds(task.comm.data(), text) || (task.command != nullptr && holds(*task.command, text));
}

std::vector<Row> choose_rows(const Snapshot& snapshot, const RowChoice& choice, UserNames& users) {
  std::vector<std::string_view> words;
  for (const std::string_view word : split(choice.filter, '|')) {
    if (!word.empty()) words.push_back(word);
  }
  std::set<int32_t> wanted;
  if (choice.root != 0) wanted = family(snapshot, choice.root);
  std::vector<const Task*> tasks;
  tasks.reserve(snapshot.task_list.size());
  const Task* process = nullptr;
  for (const Task& task : snapshot.task_list) {
    if (!task.is_thread()) process = &task;
    if (task.kernel && !choice.kernel) continue;
    if (choice.root != 0 && !wanted.contains(task.pid)) continue;
    if (choice.user && task.uid != *choice.user) continue;
    // A thread is shown with its process, and by its own name.
    const bool fits =
        words.empty() || std::any_of(words.begin(), words.end(), [&](std::string_view word) {
          return mentions(task, word) ||
                 (task.is_thread() && process != nullptr && mentions(*process, word));
        });
    if (fits) tasks.push_back(&task);
  }
  std::sort(tasks.begin(), tasks.end(), [&](const Task* a, const Task* b) {
    const int first = order(*a, *b, choice.sort, users);
    if (first != 0) return choice.reversed ? first > 0 : first < 0;
    const int by_pid = compare(std::pair(a->pid, a->tid), std::pair(b->pid, b->tid));
    return choice.reversed && choice.sort == Column::kPid ? by_pid > 0 : by_pid < 0;
  });
  std::vector<Row> out;
  out.reserve(tasks.size());
  if (!choice.tree) {
    for (const Task* task : tasks) out.push_back({task, 0, false, 0, 0});
    return out;
  }
  std::set<int32_t> shown;
  for (const Task* task : tasks) {
    if (!task->is_thread()) shown.insert(task->pid);
  }
  Children children;
  std::vector<const Task*> roots;
  for (const Task* task : tasks) {
    const bool below = shown.contains(task->ppid) && task->ppid != task->tid;
    if (below) {
      children[task->ppid].push_back(task);
    } else {
      roots.push_back(task);
    }
  }
  Tree(children, choice, out).add(roots, 0, 0);
  return out;
}

}  // namespace flatout::screen
