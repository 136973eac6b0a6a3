// Limits and accounting of the job's control groups, of the job's own group and of every ancestor
// that has a limit: the tightest binds.
//
// One entity for each group: key 0 is the job's own, 1 its parent ...; under v1 the controllers
// may have groups of different names, then each has an entity. The group with the tightest limit
// of a kind is delivered first, so that the first series of a signal is the one that counts.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "base/text.h"
#include "probe/cgroup_files.h"
#include "probe/job_tree.h"
#include "probe/kernel_files.h"
#include "probe/probes.h"
#include "probe/reading.h"

namespace flatout::probe {
namespace {

using model::EntityKind;
using model::SignalId;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr double kNone = std::numeric_limits<double>::infinity();

class CgroupProbe : public Probe {
 public:
  explicit CgroupProbe(const Scope& scope) : root_(scope.root), job_(scope.job) {}
  const char* name() const override { return "cgroup"; }
  Nanos period() const override { return milliseconds(500); }

  void read(TimePoint now, model::Sink& sink) override {
    if (job_ == nullptr) return;
    if (now >= next_search_ || moved()) {
      next_search_ = now + seconds(10);
      search(sink);
    }
    read_cpu(now, sink);
    // Reading memory.stat makes the kernel add up its per-core counts: half as often.
    odd_ = !odd_;
    if (!odd_) return;
    read_memory(now, sink);
    read_io(now, sink);
    read_pids(now, sink);
    read_pressure(now, sink);
  }

 private:
  // A group of a chain, with the limit that it sets.
  struct Level {
    const CgroupDir* group;
    int64_t depth;
    double limit = kNone;
  };

  // A wrapper may enter a group of its own only after it was started.
  bool moved() {
    std::string groups;
    if (!root_.read_into(fmt::format("proc/{}/cgroup", job_->main_pid()), groups, 16 << 10).ok()) {
      return false;
    }
    const bool other = groups != groups_;
    groups_ = std::move(groups);
    return other;
  }

  void search(model::Sink& sink) {
    auto found = find_cgroups(root_, job_->main_pid());
    if (found.ok()) {
      if (!found->empty()) chains_ = std::move(found).value();
      if (chains_.empty()) {
        none_(sink, "cgroup", "no cgroup file system is mounted",
              "limits are not seen; mount /sys/fs/cgroup");
      }
    } else if (!is_gone(found.error())) {
      none_(sink, "cgroup", found.error().message, "run flatout as the job's user");
    }
  }

  const CgroupChain* chain(const char* controller) const {
    const auto it = chains_.find(controller);
    return it == chains_.end() || it->second.levels.empty() ? nullptr : &it->second;
  }

  std::string_view file(const CgroupDir& group, std::string_view leaf) {
    path_ = group.dir;
    path_ += '/';
    path_ += leaf;
    if (!root_.read_into(path_, buffer_, 64 << 10).ok()) buffer_.clear();
    return buffer_;
  }

  Deliver to(const Level& level, TimePoint now, model::Sink& sink) const {
    return Deliver(
        sink, sink.entity(EntityKind::kCgroup, level.depth, level.group->path, model::kNoEntity),
        now);
  }

  // The job's own group and the ancestors that set a limit, the tightest first.
  template <class Limit>
  std::vector<Level> limited(const CgroupChain& of, Limit limit) {
    std::vector<Level> out;
    for (size_t i = 0; i < of.levels.size(); ++i) {
      Level level{&of.levels[i], static_cast<int64_t>(i)};
      level.limit = limit(*level.group);
      if (i == 0 || level.limit != kNone) out.push_back(level);
    }
    std::stable_sort(out.begin(), out.end(),
                     [](const Level& a, const Level& b) { return a.limit < b.limit; });
    return out;
  }

  void read_cpu(TimePoint now, model::Sink& sink) {
    const CgroupChain* cpu = chain("cpu");
    if (cpu == nullptr) return;
    const auto quota = [&](const CgroupDir& group) {
      if (cpu->v2) return parse_cpu_max(file(group, "cpu.max")).value_or(kNone);
      const std::string cores(file(group, "cpu.cfs_quota_us"));
      return cpu_quota(cores, file(group, "cpu.cfs_period_us")).value_or(kNone);
    };
    for (const Level& level : limited(*cpu, quota)) {
      const Deliver deliver = to(level, now, sink);
      if (level.limit != kNone) deliver(SignalId::kCgroupCpuLimit, level.limit);
      const std::string_view stat = file(*level.group, "cpu.stat");
      deliver(SignalId::kCgroupPeriods, find_pair(stat, "nr_periods"));
      deliver(SignalId::kCgroupThrottled, find_pair(stat, "nr_throttled"));
      deliver(SignalId::kCgroupThrottledTime, find_pair(stat, "throttled_time"));       // v1
      deliver(SignalId::kCgroupThrottledTime, find_pair(stat, "throttled_usec"), 1e3);  // v2
      deliver(SignalId::kCgroupCpuUsage, find_pair(stat, "usage_usec"), 1e3);
    }
    const CgroupChain* accounting = chain("cpuacct");
    if (accounting != nullptr && !accounting->v2) {
      const Level own{&accounting->levels[0], 0};
      to(own, now, sink)(SignalId::kCgroupCpuUsage,
                         parse_number<uint64_t>(file(*own.group, "cpuacct.usage")));
    }
  }

  void read_memory(TimePoint now, model::Sink& sink) {
    const CgroupChain* memory = chain("memory");
    if (memory == nullptr) return;
    const auto number = [](std::optional<uint64_t> value) {
      return value ? static_cast<double>(*value) : kNone;
    };
    const auto limit = [&](const CgroupDir& group) {
      if (!memory->v2) return number(parse_limit(file(group, "memory.limit_in_bytes")));
      const double max = number(parse_limit(file(group, "memory.max")));
      return std::min(max, number(parse_limit(file(group, "memory.high"))));
    };
    for (const Level& level : limited(*memory, limit)) {
      const Deliver deliver = to(level, now, sink);
      if (memory->v2) {
        read_memory_v2(*level.group, deliver);
      } else {
        read_memory_v1(level, deliver);
      }
    }
  }

  void read_memory_v2(const CgroupDir& group, const Deliver& deliver) {
    deliver(SignalId::kCgroupMemLimit, parse_limit(file(group, "memory.max")));
    deliver(SignalId::kCgroupMemHigh, parse_limit(file(group, "memory.high")));
    deliver(SignalId::kCgroupMemUsage, parse_number<uint64_t>(file(group, "memory.current")));
    const std::string_view events = file(group, "memory.events");
    deliver(SignalId::kCgroupMemMaxEvents, find_pair(events, "max"));
    deliver(SignalId::kCgroupMemHighEvents, find_pair(events, "high"));
    deliver(SignalId::kCgroupOomKills, find_pair(events, "oom_kill"));
    const std::string_view stat = file(group, "memory.stat");
    deliver(SignalId::kCgroupMemFile, find_pair(stat, "file"));
    const auto refault = find_pair(stat, "workingset_refault_file");
    deliver(SignalId::kCgroupRefaultFile,
            refault ? refault : find_pair(stat, "workingset_refault"));  // before Linux 5.9
    deliver(SignalId::kCgroupDirectScan, find_pair(stat, "pgscan_direct"));
  }

  void read_memory_v1(const Level& level, const Deliver& deliver) {
    const CgroupDir& group = *level.group;
    const std::string stat(file(group, "memory.stat"));
    // An ancestor outside a container's mount is seen only in this line.
    double limit = level.limit;
    if (const auto outer = parse_limit_line(stat, "hierarchical_memory_limit")) {
      limit = std::min(limit, static_cast<double>(*outer));
    }
    if (limit != kNone) deliver(SignalId::kCgroupMemLimit, limit);
    deliver(SignalId::kCgroupMemUsage,
            parse_number<uint64_t>(file(group, "memory.usage_in_bytes")));
    deliver(SignalId::kCgroupMemMaxEvents, parse_number<uint64_t>(file(group, "memory.failcnt")));
    deliver(SignalId::kCgroupOomKills, find_pair(file(group, "memory.oom_control"), "oom_kill"));
    const auto total = find_pair(stat, "total_cache");
    deliver(SignalId::kCgroupMemFile, total ? total : find_pair(stat, "cache"));
    deliver(SignalId::kCgroupRefaultFile, find_pair(stat, "total_workingset_refault_file"));
  }

  static std::optional<uint64_t> parse_limit_line(std::string_view stat, std::string_view key) {
    const auto value = find_pair(stat, key);
    return value && *value < uint64_t{1} << 60 ? value : std::nullopt;
  }

  void read_io(TimePoint now, model::Sink& sink) {
    const CgroupChain* io = chain("blkio");
    if (io == nullptr) return;
    std::vector<IoCaps> caps(io->levels.size());
    size_t index = 0;
    const auto limit = [&](const CgroupDir& group) {
      IoCaps& cap = caps[index++];
      if (io->v2) {
        cap = parse_io_max(file(group, "io.max"));
      } else {
        cap.read_bytes = parse_blkio_cap(file(group, "blkio.throttle.read_bps_device"));
        cap.read_ops = parse_blkio_cap(file(group, "blkio.throttle.read_iops_device"));
        cap.write_bytes = parse_blkio_cap(file(group, "blkio.throttle.write_bps_device"));
        cap.write_ops = parse_blkio_cap(file(group, "blkio.throttle.write_iops_device"));
      }
      double tightest = kNone;
      for (const auto& value : {cap.read_bytes, cap.read_ops, cap.write_bytes, cap.write_ops}) {
        if (value) tightest = std::min(tightest, static_cast<double>(*value));
      }
      return tightest;
    };
    for (const Level& level : limited(*io, limit)) {
      const Deliver deliver = to(level, now, sink);
      const IoCaps& cap = caps[static_cast<size_t>(level.depth)];
      deliver(SignalId::kCgroupIoLimitRead, cap.read_bytes);
      deliver(SignalId::kCgroupIoLimitReadOps, cap.read_ops);
      deliver(SignalId::kCgroupIoLimitWrite, cap.write_bytes);
      deliver(SignalId::kCgroupIoLimitWriteOps, cap.write_ops);
      std::optional<IoTotals> totals;
      if (io->v2) {
        if (!file(*level.group, "io.stat").empty()) totals = parse_io_stat(buffer_);
      } else if (!file(*level.group, "blkio.throttle.io_service_bytes_recursive").empty() ||
                 !file(*level.group, "blkio.throttle.io_service_bytes").empty()) {
        // Without a line for any device nothing was accounted (the root group).
        if (buffer_.find(':') != std::string::npos) totals = parse_blkio_bytes(buffer_);
      }
      if (!totals) continue;
      deliver(SignalId::kCgroupIoReadBytes, static_cast<double>(totals->read_bytes));
      deliver(SignalId::kCgroupIoWriteBytes, static_cast<double>(totals->write_bytes));
    }
  }

  void read_pids(TimePoint now, model::Sink& sink) {
    const CgroupChain* pids = chain("pids");
    if (pids == nullptr) return;
    const auto limit = [&](const CgroupDir& group) {
      const auto max = parse_limit(file(group, "pids.max"));
      return max ? static_cast<double>(*max) : kNone;
    };
    for (const Level& level : limited(*pids, limit)) {
      const Deliver deliver = to(level, now, sink);
      if (level.limit != kNone) deliver(SignalId::kCgroupPidsMax, level.limit);
      deliver(SignalId::kCgroupPids, parse_number<uint64_t>(file(*level.group, "pids.current")));
    }
  }

  // Only v2 accounts pressure by group; a hybrid system has it in the unified hierarchy.
  void read_pressure(TimePoint now, model::Sink& sink) {
    const CgroupChain* unified = chain("unified");
    if (unified == nullptr || !unified->v2) return;
    const Level own{&unified->levels[0], 0};
    const Deliver deliver = to(own, now, sink);
    const auto some = [&](std::string_view leaf, SignalId signal) {
      if (const auto pressure = parse_pressure(file(*own.group, leaf))) {
        deliver(signal, pressure->some_us, 1e3);
      }
    };
    some("cpu.pressure", SignalId::kCgroupPsiCpuSome);
    some("io.pressure", SignalId::kCgroupPsiIoSome);
    some("memory.pressure", SignalId::kCgroupPsiMemorySome);
  }

  fs::Root root_;
  const JobTree* job_;
  std::map<std::string, CgroupChain> chains_;
  std::string buffer_, path_, groups_;
  TimePoint next_search_{};
  bool odd_ = false;
  MissingOnce none_;
};

}  // namespace

std::unique_ptr<Probe> make_cgroup_probe(const Scope& s) {
  return std::make_unique<CgroupProbe>(s);
}

}  // namespace flatout::probe
