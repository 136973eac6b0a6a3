#include "cache/warm.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "base/clock.h"
#include "base/page_residency.h"
#include "base/text.h"
#include "probe/cgroup_files.h"
#include "probe/proc_files.h"

namespace flatout::cache {
namespace {

constexpr uint64_t kPiece = 1 << 20;
constexpr uint64_t kLookAgain = 64 << 20;  // bytes after which the room is asked for again
// Below about this share of free memory the kernel's reclaim starts (its watermarks).
constexpr double kReserve = 0.02;
constexpr uint64_t kLeastReserve = 64 << 20;

// The least that any of this process's control groups has left. From memory.high on the kernel
// reclaims, too.
std::optional<uint64_t> left_in_groups(const fs::Root& root) {
  const auto chains = probe::own_cgroups(root);
  if (!chains.ok()) return std::nullopt;
  const auto memory = chains->find("memory");
  if (memory == chains->end()) return std::nullopt;
  const bool v2 = memory->second.v2;
  const std::vector<const char*> limits =
      v2 ? std::vector{"/memory.max", "/memory.high"} : std::vector{"/memory.limit_in_bytes"};
  std::optional<uint64_t> least;
  for (const probe::CgroupDir& level : memory->second.levels) {
    const auto text = root.read(level.dir + (v2 ? "/memory.current" : "/memory.usage_in_bytes"));
    const auto used = text.ok() ? parse_number<uint64_t>(*text) : std::nullopt;
    if (!used) continue;
    for (const char* name : limits) {
      const auto limit = root.read(level.dir + name);
      const auto most = limit.ok() ? probe::parse_limit(*limit) : std::nullopt;
      if (!most) continue;
      const uint64_t left = *most - std::min(*most, *used);
      least = std::min(least.value_or(left), left);
    }
  }
  return least;
}

// Others' reads go first.
void lower_io_priority() {
  constexpr int kProcess = 1, kIdleClass = 3 << 13;
  ::syscall(SYS_ioprio_set, kProcess, 0, kIdleClass);
}

bool is_in_memory(int fd) {
  struct statfs fs {};
  if (::fstatfs(fd, &fs) != 0) return false;
  return fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC || fs.f_type == HUGETLBFS_MAGIC;
}

class Warmer {
 public:
  explicit Warmer(const WarmOptions& options)
      : options_(options), buffer_(kPiece), begin_(MonotonicClock::now()) {}

  Warmed run(const std::vector<std::string>& files) {
    const DataSet before = look_at(files, 0);
    out_.skipped = before.skipped;
    out_.total_bytes = before.bytes;
    out_.cached_before = before.cached_bytes;
    done_ = 0;
    for (const CachedFile& file : before.files) {
      if (file.cached_bytes < file.bytes && !read(file.path)) break;
      done_ += file.bytes;
      if (options_.progress) options_.progress(done_, out_.total_bytes);
    }
    return std::move(out_);
  }

 private:
  bool has_room(uint64_t bytes) {
    if (!options_.room) return true;
    if (!room_ || read_since_ >= kLookAgain) {
      room_ = options_.room();
      read_since_ = 0;
    }
    return !room_ || *room_ >= read_since_ + bytes;
  }

  bool read(const std::string& path) {
    auto file = QuietFile::open(path);
    if (!file.ok()) {
      out_.skipped.push_back({path, file.error().message});
      return true;
    }
    // Without read-ahead: what is read is what is counted, and no more than there is room for.
    ::posix_fadvise(file->fd(), 0, 0, POSIX_FADV_RANDOM);
    for (uint64_t at = 0; at < file->bytes(); at += kPiece) {
      const uint64_t part = std::min(kPiece, file->bytes() - at);
      const auto cached = cached_bytes(*file, at, part);
      if (cached && cached->cached >= part) continue;
      if (!has_room(part)) {
        out_.stopped = true;
        return false;
      }
      const ssize_t got = ::pread(file->fd(), buffer_.data(), part, static_cast<off_t>(at));
      if (got < 0) {
        out_.skipped.push_back({path, fs::error_from_errno(errno, "cannot read " + path).message});
        return true;
      }
      if (got == 0) break;
      out_.read_bytes += static_cast<uint64_t>(got);
      read_since_ += static_cast<uint64_t>(got);
      if (options_.progress) options_.progress(done_ + at + part, out_.total_bytes);
      keep_pace();
    }
    return true;
  }

  void keep_pace() const {
    if (options_.bytes_per_s <= 0) return;
    const auto due =
        begin_ + nanos(static_cast<double>(out_.read_bytes) / options_.bytes_per_s * 1e9);
    const Nanos ahead = due - MonotonicClock::now();
    if (ahead > Nanos(0)) std::this_thread::sleep_for(ahead);
  }

  const WarmOptions& options_;
  std::vector<char> buffer_;
  TimePoint begin_;
  Warmed out_;
  std::optional<uint64_t> room_;
  uint64_t read_since_ = 0, done_ = 0;
};

}  // namespace

std::optional<uint64_t> room(const fs::Root& root) {
  std::optional<uint64_t> out = left_in_groups(root);
  const auto text = root.read("proc/meminfo");
  if (!text.ok()) return out;
  const auto free = probe::find_field(*text, "MemFree"),
             total = probe::find_field(*text, "MemTotal");
  if (!free || !total) return out;
  const uint64_t reserve =
      std::max(kLeastReserve, static_cast<uint64_t>(kReserve * static_cast<double>(*total)));
  const uint64_t spare = *free - std::min(*free, reserve);
  return out ? std::min(*out, spare) : spare;
}

Warmed warm(const std::vector<std::string>& files, const WarmOptions& options) {
  lower_io_priority();
  return Warmer(options).run(files);
}

Dropped drop(const std::vector<std::string>& files, bool sync) {
  Dropped out;
  for (const std::string& path : files) {
    const auto file = QuietFile::open(path);
    if (!file.ok()) {
      out.skipped.push_back({path, file.error().message});
      continue;
    }
    const auto before = cached_bytes(*file, 0, file->bytes());
    if (sync) ::fdatasync(file->fd());
    const int failed = ::posix_fadvise(file->fd(), 0, 0, POSIX_FADV_DONTNEED);
    if (failed != 0) {
      out.skipped.push_back({path, fs::error_from_errno(failed, "cannot drop " + path).message});
      continue;
    }
    if (!before || !file->may_know()) {
      out.uncounted.push_back(path);
      continue;
    }
    auto after = cached_bytes(*file, 0, file->bytes());
    // What the kernel wrote since then no longer stays for that.
    if (after && after->cached > 0 && after->dirty == 0) {
      ::posix_fadvise(file->fd(), 0, 0, POSIX_FADV_DONTNEED);
      after = cached_bytes(*file, 0, file->bytes());
    }
    out.before_bytes += before->cached;
    if (!after || after->cached == 0) continue;
    out.after_bytes += after->cached;
    out.stayed.push_back(
        {path, file->bytes(), after->cached, after->dirty, is_in_memory(file->fd())});
  }
  return out;
}

std::optional<uint64_t> machine_cache(const fs::Root& root) {
  const auto text = root.read("proc/meminfo");
  if (!text.ok()) return std::nullopt;
  const auto field = [&](const char* key) { return probe::find_field(*text, key); };
  const auto cached = field("Cached");
  if (!cached) return std::nullopt;
  // Files in memory (tmpfs, shared memory) count as cached, and cannot be dropped.
  const uint64_t all = *cached + field("Buffers").value_or(0);
  return all - std::min(all, field("Shmem").value_or(0));
}

Status drop_all(const fs::Root& root) {
  const std::string path = root.full("proc/sys/vm/drop_caches");
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) {
    return Error{Code::kDenied, "cannot drop the page cache of the whole machine",
                 "only root may: sudo flatout cache drop --all"};
  }
  const bool fine = ::write(fd, "1\n", 2) == 2;
  const int failed = errno;
  ::close(fd);
  if (!fine) return fs::error_from_errno(failed, "cannot write " + path);
  return {};
}

}  // namespace flatout::cache
