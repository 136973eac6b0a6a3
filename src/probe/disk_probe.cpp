// Disks (/proc/diskstats) and the free space of file systems that a job can fill.
#include <sys/statvfs.h>
#include <sys/sysmacros.h>

#include <memory>
#include <set>

#include "probe/job_tree.h"
#include "probe/kernel_files.h"
#include "probe/probes.h"
#include "probe/reading.h"

namespace flatout::probe {
namespace {

using model::EntityKind;
using model::SignalId;

class DiskProbe : public Probe {
 public:
  explicit DiskProbe(const Scope& scope) : root_(scope.root) {}
  const char* name() const override { return "disk"; }
  Nanos period() const override { return std::chrono::milliseconds(500); }

  void read(TimePoint now, model::Sink& sink) override {
    const Status got = root_.read_into("proc/diskstats", buffer_);
    if (!got.ok()) {
      missing_(sink, "disk", got.error().message, "disks are not seen in this container");
      return;
    }
    for (const DiskStat& disk : parse_disk_stats(buffer_)) {
      if (!wanted(disk)) continue;
      const int64_t key = static_cast<int64_t>(makedev(disk.major, disk.minor));
      const Deliver deliver(sink, sink.entity(EntityKind::kDisk, key, disk.name, model::kNoEntity),
                            now);
      const auto sectors = [](uint64_t n) { return static_cast<double>(n) * DiskStat::kSector; };
      const auto ms = [](uint64_t n) { return static_cast<double>(n) * 1e6; };
      deliver(SignalId::kDiskReads, static_cast<double>(disk.reads));
      deliver(SignalId::kDiskReadBytes, sectors(disk.read_sectors));
      deliver(SignalId::kDiskReadTime, ms(disk.read_ms));
      deliver(SignalId::kDiskWrites, static_cast<double>(disk.writes));
      deliver(SignalId::kDiskWriteBytes, sectors(disk.write_sectors));
      deliver(SignalId::kDiskWriteTime, ms(disk.write_ms));
      deliver(SignalId::kDiskBusy, ms(disk.busy_ms));
      deliver(SignalId::kDiskQueue, static_cast<double>(disk.in_flight));
      deliver(SignalId::kDiskFlushTime, disk.flush_ms, 1e6);
    }
  }

 private:
  // Whole disks only, and only those that have ever been used: a partition repeats its disk.
  bool wanted(const DiskStat& disk) {
    if (disk.reads + disk.writes == 0 && disk.in_flight == 0) return false;
    const uint64_t key = makedev(disk.major, disk.minor);
    if (whole_.contains(key)) return true;
    if (parts_.contains(key)) return false;
    // Without a readable /sys nothing tells them apart: take all.
    const bool have_sys = root_.exists("sys/block");
    std::string leaf(disk.name);
    for (char& c : leaf) {
      if (c == '/') c = '!';  // as sysfs writes "cciss/c0d0"
    }
    const bool whole = !have_sys || root_.exists("sys/block/" + leaf);
    (whole ? whole_ : parts_).insert(key);
    return whole;
  }

  fs::Root root_;
  std::string buffer_;
  std::set<uint64_t> whole_, parts_;
  MissingOnce missing_;
};

// Free space of /dev/shm as the job sees it, and of the job's working directory.
class MountProbe : public Probe {
 public:
  explicit MountProbe(const Scope& scope) : root_(scope.root), job_(scope.job) {}
  const char* name() const override { return "mount"; }
  Nanos period() const override { return std::chrono::seconds(1); }

  void read(TimePoint now, model::Sink& sink) override {
    const std::string pid = std::to_string(job_ == nullptr ? 0 : job_->main_pid());
    // Through the job's own root where we may (it may live in a container), else through ours.
    if (!read_one(0, "/dev/shm", "proc/" + pid + "/root/dev/shm", now, sink) &&
        !read_one(0, "/dev/shm", "dev/shm", now, sink)) {
      no_shm_(sink, "mount.free_bytes", "there is no /dev/shm", "mount a tmpfs on /dev/shm");
    }
    // A network file system may block in statvfs: only what is local, judged by the kernel's own
    // name for the directory, is asked; the working directory therefore rarely.
    if (now >= next_cwd_) {
      next_cwd_ = now + std::chrono::seconds(10);
      const auto cwd = root_.read_link("proc/" + pid + "/cwd");
      if (cwd.ok() && cwd->starts_with('/')) read_one(1, *cwd, "proc/" + pid + "/cwd", now, sink);
    }
  }

 private:
  bool read_one(int64_t key, std::string_view shown, const std::string& path, TimePoint now,
                model::Sink& sink) {
    struct statvfs fs {};
    if (::statvfs(root_.full(path).c_str(), &fs) != 0 || fs.f_blocks == 0) return false;
    const Deliver deliver(sink, sink.entity(EntityKind::kMount, key, shown, model::kNoEntity), now);
    const double block = static_cast<double>(fs.f_frsize);
    deliver(SignalId::kMountFree, static_cast<double>(fs.f_bavail) * block);
    deliver(SignalId::kMountTotal, static_cast<double>(fs.f_blocks) * block);
    return true;
  }

  fs::Root root_;
  const JobTree* job_;
  TimePoint next_cwd_{};
  MissingOnce no_shm_;
};

}  // namespace

std::unique_ptr<Probe> make_disk_probe(const Scope& s) { return std::make_unique<DiskProbe>(s); }
std::unique_ptr<Probe> make_mount_probe(const Scope& s) { return std::make_unique<MountProbe>(s); }

}  // namespace flatout::probe
