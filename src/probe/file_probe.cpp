// The data files that the job has open: how much of them is cached, in what order they are read.
//
// By sampling: the links in /proc/PID/fd name the files, "pos" in fdinfo shows how reading goes on
// (not for pread or mmap). Only local file systems are touched, since opening a file on a dead
// server would block. Facts for people: "data.file.N.*" for the biggest files, see
// docs/run-folder.md.
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <unordered_set>

#include "base/text.h"
#include "probe/job_tree.h"
#include "probe/mount_table.h"
#include "probe/page_cache.h"
#include "probe/probes.h"
#include "probe/proc_files.h"
#include "probe/reading.h"

namespace flatout::probe {
namespace {

using model::SignalId;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr size_t kScansPerTick = 4;  // processes
constexpr size_t kLinksPerScan = 96;
constexpr size_t kPositionsPerTick = 32;
constexpr size_t kMaxFiles = 2000;  // remembered one by one
constexpr size_t kMaxSeen = 20000;
constexpr size_t kMaxFacts = 8;
constexpr uint64_t kWorthCaching = 1 << 20;  // smaller files are not asked for their cached part
constexpr Nanos kScanPeriod = seconds(1);
constexpr Nanos kIdleScanPeriod = seconds(2);  // where no data file was open
constexpr Nanos kResidencyPeriod = seconds(5);

bool is_data_file(std::string_view path) {
  if (!path.starts_with('/') || path.ends_with(" (deleted)")) return false;
  for (const std::string_view prefix : {"/dev/", "/proc/", "/sys/", "/memfd:", "/run/", "/etc/"}) {
    if (path.starts_with(prefix)) return false;
  }
  const size_t slash = path.rfind('/');
  const std::string_view leaf = path.substr(slash + 1);
  for (const std::string_view suffix : {".py", ".pyc", ".so", ".log", ".pyi", ".egg"}) {
    if (leaf.ends_with(suffix)) return false;
  }
  return leaf.find(".so.") == std::string_view::npos;
}

class FileProbe : public Probe {
 public:
  explicit FileProbe(const Scope& scope) : root_(scope.root), job_(scope.job) {}
  const char* name() const override { return "file"; }
  Nanos period() const override { return milliseconds(500); }

  void read(TimePoint now, model::Sink& sink) override {
    if (job_ == nullptr) return;
    std::erase_if(processes_, [&](const auto& entry) { return !job_->contains(entry.first); });
    scan_some(now, sink);
    sample_positions(now, sink);
    look_at_one_file(now, sink);
  }

 private:
  struct File {
    uint64_t bytes = 0;
    std::optional<uint64_t> cached;
    uint64_t moves = 0, jumps = 0;
    std::string fs_type;
    bool local = false, refused = false;
    TimePoint looked_at{};
    std::string via;  // "proc/PID/fd/N": a way to open it from any mount namespace
    int fact = -1;
  };
  struct Open {
    std::string path;
    int64_t position = -1;
  };
  struct Process {
    TimePoint next_scan{};
    std::map<int32_t, Open> files;  // by descriptor
    std::unordered_set<size_t> seen;
    uint64_t moves = 0, jumps = 0;
  };

  void scan_some(TimePoint now, model::Sink& sink) {
    std::vector<std::pair<TimePoint, int32_t>> due;
    for (const JobProcess* process : job_->processes()) {
      const Process& kept = processes_[process->pid];
      if (now >= kept.next_scan) due.emplace_back(kept.next_scan, process->pid);
    }
    std::sort(due.begin(), due.end());
    if (due.size() > kScansPerTick) due.resize(kScansPerTick);
    for (const auto& [when, pid] : due) scan(pid, now, sink);
  }

  void scan(int32_t pid, TimePoint now, model::Sink& sink) {
    Process& process = processes_[pid];
    const std::string dir = proc_path(pid, "fd");
    process.next_scan = now + kIdleScanPeriod;
    auto names = root_.list(dir);
    if (!names.ok()) {
      if (!is_gone(names.error())) {
        denied_(sink, "proc.open_data_bytes", names.error().message,
                "run flatout as the job's user, or with CAP_SYS_PTRACE");
      }
      return;
    }
    // The newest descriptors (the highest) are the most telling where there are too many.
    std::vector<int32_t> fds;
    for (const std::string& name : *names) {
      if (const auto fd = parse_number<int32_t>(name)) fds.push_back(*fd);
    }
    std::sort(fds.rbegin(), fds.rend());
    if (fds.size() > kLinksPerScan) fds.resize(kLinksPerScan);
    std::map<int32_t, Open> files;
    for (const int32_t fd : fds) {
      const std::string via = dir + "/" + std::to_string(fd);
      const auto path = root_.read_link(via);
      if (!path.ok() || !is_data_file(*path) || !note(pid, fd, *path, via, now)) continue;
      const auto old = process.files.find(fd);
      const bool same = old != process.files.end() && old->second.path == *path;
      files[fd] = same ? old->second : Open{*path, -1};
      if (process.seen.size() < kMaxSeen) process.seen.insert(std::hash<std::string>()(*path));
    }
    process.files = std::move(files);
    process.next_scan = now + (process.files.empty() ? kIdleScanPeriod : kScanPeriod);
    deliver(pid, process, now, sink);
  }

  // Remembers an open file; false if it is none that is read as data.
  bool note(int32_t pid, int32_t fd, const std::string& path, const std::string& via,
            TimePoint now) {
    const auto known = files_.find(path);
    if (known != files_.end()) {
      known->second.via = via;
      return true;
    }
    const std::string info = proc_path(pid, "fdinfo/") + std::to_string(fd);
    if (!root_.read_into(info, buffer_, 4096).ok()) return false;
    int64_t mount = -1;
    bool write_only = false;
    std::string_view text = buffer_, line;
    while (next_line(text, line)) {
      if (line.starts_with("flags:")) {
        const std::string_view flags = trim(line.substr(6));
        write_only = !flags.empty() && flags.back() == '1';  // octal; O_WRONLY is 1
      } else if (line.starts_with("mnt_id:")) {
        mount = parse_number<int64_t>(line.substr(7)).value_or(-1);
      }
    }
    if (write_only) return false;
    if (files_.size() >= kMaxFiles) return true;  // seen, but not remembered
    File& file = files_[path];
    file.via = via;
    file.fs_type = mounts_.type_of(root_, pid, mount, now);
    file.local = is_local_fs(file.fs_type);
    return true;
  }

  void sample_positions(TimePoint, model::Sink&) {
    size_t left = kPositionsPerTick;
    for (auto& [pid, process] : processes_) {
      for (auto& [fd, open] : process.files) {
        if (left == 0) return;
        --left;
        const std::string info = proc_path(pid, "fdinfo/") + std::to_string(fd);
        if (!root_.read_into(info, buffer_, 4096).ok()) continue;
        const auto position = parse_fd_position(buffer_);
        if (!position) continue;
        if (open.position >= 0 && *position != open.position) {
          const bool back = *position < open.position;
          ++process.moves;
          process.jumps += back ? 1 : 0;
          const auto file = files_.find(open.path);
          if (file != files_.end()) {
            ++file->second.moves;
            file->second.jumps += back ? 1 : 0;
          }
        }
        open.position = *position;
      }
    }
  }

  // The file that was looked at longest ago; one for each tick.
  void look_at_one_file(TimePoint now, model::Sink& sink) {
    std::set<std::string> open;
    for (const auto& [pid, process] : processes_) {
      for (const auto& [fd, file] : process.files) open.insert(file.path);
    }
    auto best = files_.end();
    for (const std::string& path : open) {
      const auto it = files_.find(path);
      if (it == files_.end() || !it->second.local || it->second.refused) continue;
      const bool due =
          it->second.looked_at == TimePoint{} || now - it->second.looked_at >= kResidencyPeriod;
      if (due && (best == files_.end() || it->second.looked_at < best->second.looked_at)) best = it;
    }
    if (best == files_.end()) return;
    File& file = best->second;
    const bool first = file.looked_at == TimePoint{};
    file.looked_at = now;
    struct stat st {};
    const std::string full = root_.full(file.via);
    if (::stat(full.c_str(), &st) != 0 || !S_ISREG(st.st_mode)) return;
    file.bytes = static_cast<uint64_t>(st.st_size);
    if (file.bytes < kWorthCaching) return;
    const auto residency = cached_part(full);
    if (!residency.ok()) {
      file.refused = true;
      hidden_(sink, "proc.open_data_cached_bytes", residency.error().message,
              residency.error().hint);
      return;
    }
    file.cached = residency->cached_bytes;
    tell(best->first, file, first, sink);
  }

  // Facts about the first big files.
  void tell(const std::string& path, File& file, bool first, model::Sink& sink) {
    if (file.fact < 0) {
      if (facts_ >= static_cast<int>(kMaxFacts)) return;
      file.fact = facts_++;
    }
    const std::string key = "data.file." + std::to_string(file.fact);
    const std::string share = format_number(static_cast<double>(*file.cached) /
                                            static_cast<double>(std::max<uint64_t>(1, file.bytes)));
    if (first) {
      sink.fact(key + ".path", path);
      sink.fact(key + ".fs", file.fs_type);
      sink.fact(key + ".bytes", std::to_string(file.bytes));
      sink.fact(key + ".cached_share_first", share);
    }
    sink.fact(key + ".cached_share", share);
    sink.fact(key + ".moves", std::to_string(file.moves));
    sink.fact(key + ".jumps", std::to_string(file.jumps));
  }

  void deliver(int32_t pid, const Process& process, TimePoint now, model::Sink& sink) {
    if (process.seen.empty()) return;
    const Deliver give(sink, process_entity(sink, pid), now);
    give(SignalId::kProcFilesSeen, static_cast<double>(process.seen.size()));
    give(SignalId::kProcFileMoves, static_cast<double>(process.moves));
    give(SignalId::kProcFileJumps, static_cast<double>(process.jumps));
    double bytes = 0, cached = 0;
    std::set<std::string> counted;
    for (const auto& [fd, open] : process.files) {
      const auto file = files_.find(open.path);
      if (file == files_.end() || !file->second.cached || !counted.insert(open.path).second) {
        continue;
      }
      bytes += static_cast<double>(file->second.bytes);
      cached += static_cast<double>(*file->second.cached);
    }
    if (bytes == 0) return;
    give(SignalId::kProcOpenDataBytes, bytes);
    give(SignalId::kProcOpenDataCached, cached);
  }

  fs::Root root_;
  const JobTree* job_;
  std::string buffer_;
  std::map<int32_t, Process> processes_;
  std::map<std::string, File> files_;  // by path
  MountsById mounts_;
  int facts_ = 0;
  MissingOnce denied_, hidden_;
};

}  // namespace

std::unique_ptr<Probe> make_file_probe(const Scope& s) { return std::make_unique<FileProbe>(s); }

}  // namespace flatout::probe
