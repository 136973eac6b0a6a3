#include "screen/sampler.h"

#include <fmt/format.h>
#include <sys/sysmacros.h>

#include <algorithm>

#include "base/text.h"
#include "probe/cgroup_memory.h"
#include "probe/proc_files.h"
#include "probe/reading.h"

namespace flatout::screen {
namespace {

constexpr Nanos kGroupPeriod = std::chrono::seconds(10);
constexpr size_t kMaxDisks = 256;
constexpr Nanos kGpuPatience = std::chrono::seconds(10);  // it answers twice a second

uint64_t increase(uint64_t before, uint64_t after) { return after > before ? after - before : 0; }

Core shares(const probe::CpuTicks& before, const probe::CpuTicks& after) {
  Core out;
  out.cpu = after.cpu;
  const auto part = [](uint64_t a, uint64_t b) { return static_cast<double>(increase(a, b)); };
  const double user = part(before.user, after.user);
  const double system = part(before.system, after.system) + part(before.irq, after.irq);
  const double iowait = part(before.iowait, after.iowait);
  const double steal = part(before.steal, after.steal);
  const double all = user + system + iowait + steal + part(before.idle, after.idle);
  if (all <= 0) return out;
  out.user = user / all;
  out.system = system / all;
  out.iowait = iowait / all;
  out.steal = steal / all;
  return out;
}

}  // namespace

Sampler::Sampler(SamplerOptions options)
    : options_(std::move(options)),
      root_(options_.root),
      tasks_(root_, options_.clock),
      jobs_(root_, options_.clock),
      disk_users_(root_),
      details_(root_, options_.redact, options_.clock) {
  host_ = std::string(trim(root_.read("proc/sys/kernel/hostname", 256).value_or("")));
  if (!options_.nvml.empty()) nvml_.emplace(options_.nvml);
}

std::shared_ptr<const Snapshot> Sampler::look(const Wanted& wanted) {
  auto out = std::make_shared<Snapshot>();
  out->at = options_.clock();
  out->unix_ns = unix_now_ns();
  out->host = host_;
  if (last_ != TimePoint{}) out->interval_s = to_s(out->at - last_);
  read_cores(*out);
  read_load(*out);
  read_memory(*out);
  read_group(wanted.group_pid, *out);
  out->cpu_waiting = read_pressure("cpu", *out);
  out->io_waiting = read_pressure("io", *out);
  out->memory_waiting = read_pressure("memory", *out);
  read_disks(*out);
  read_gpus(*out);
  tasks_.look(wanted.threads, *out);
  disk_users_.look(*out);
  give_gpu_memory(*out);
  jobs_.look(*out);
  out->details = details_.look(wanted.details_pid, wanted.native, *out);
  last_ = out->at;
  return out;
}

void Sampler::read_cores(Snapshot& out) {
  if (!root_.read_into("proc/stat", buffer_).ok()) return;
  auto stat = probe::parse_kernel_stat(buffer_);
  if (!stat) return;
  out.runnable = stat->running.value_or(0);
  out.blocked = probe::find_pair(buffer_, "procs_blocked").value_or(0);
  out.all.cpu = -1;
  if (last_ != TimePoint{}) out.all = shares(stat_.all, stat->all);
  for (const probe::CpuTicks& cpu : stat->cpus) {
    // A core may have been taken off line in between.
    const auto before = std::find_if(stat_.cpus.begin(), stat_.cpus.end(),
                                     [&](const probe::CpuTicks& c) { return c.cpu == cpu.cpu; });
    Core core;
    if (before != stat_.cpus.end()) core = shares(*before, cpu);
    core.cpu = cpu.cpu;
    out.cores.push_back(core);
  }
  stat_ = std::move(*stat);
}

void Sampler::read_load(Snapshot& out) {
  if (root_.read_into("proc/loadavg", buffer_, 256).ok()) {
    std::string_view text = buffer_;
    for (double& load : out.load) load = parse_number<double>(next_word(text)).value_or(0);
  }
  if (root_.read_into("proc/uptime", buffer_, 256).ok()) {
    std::string_view text = buffer_;
    out.uptime_s = parse_number<double>(next_word(text)).value_or(0);
  }
}

void Sampler::read_memory(Snapshot& out) {
  if (!root_.read_into("proc/meminfo", buffer_, 64 << 10).ok()) return;
  Memory& m = out.memory;
  using Row = std::pair<const char*, uint64_t*>;
  for (const auto& [key, value] :
       {Row{"MemTotal", &m.total}, Row{"MemFree", &m.free}, Row{"MemAvailable", &m.available},
        Row{"Buffers", &m.buffers}, Row{"Cached", &m.cached}, Row{"Shmem", &m.shmem},
        Row{"SReclaimable", &m.slab_reclaimable}, Row{"Dirty", &m.dirty},
        Row{"Writeback", &m.writeback}, Row{"SwapTotal", &m.swap_total},
        Row{"SwapFree", &m.swap_free}, Row{"HugePages_Total", &m.huge_pages},
        Row{"HugePages_Free", &m.huge_free}, Row{"Hugepagesize", &m.huge_page_bytes},
        Row{"AnonHugePages", &m.transparent_huge}}) {
    *value = probe::find_field(buffer_, key).value_or(0);
  }
}

void Sampler::read_group(int32_t pid, Snapshot& out) {
  const int32_t whose = pid != 0 ? pid : options_.self_pid;
  if (whose == 0) return;
  out.memory.group_pid = pid;
  if (out.at >= next_groups_ || groups_pid_ != whose) {
    next_groups_ = out.at + kGroupPeriod;
    groups_pid_ = whose;
    groups_ =
        probe::find_cgroups(root_, whose).value_or(std::map<std::string, probe::CgroupChain>{});
  }
  const auto chain = groups_.find("memory");
  if (chain == groups_.end()) return;
  const auto group = probe::tightest_memory(root_, chain->second);
  // The root group without a limit is the machine itself, which has its own figures.
  if (group && (group->limit || group->path != "/")) {
    out.memory.group_limit = group->limit;
    out.memory.group_used = group->used;
    out.memory.group_cache = group->cache;
  }
}

Waiting Sampler::read_pressure(const char* kind, const Snapshot& out) {
  Waiting waiting;
  // Where the kernel keeps no account of pressure the file is absent, or opening it fails.
  if (!root_.read_into(std::string("proc/pressure/") + kind, buffer_, 1024).ok()) return waiting;
  const auto now = probe::parse_pressure(buffer_);
  if (!now) return waiting;
  Totals& before = pressure_[kind];
  const auto share = [&](const std::optional<uint64_t>& a, const std::optional<uint64_t>& b) {
    if (!a || !b || out.interval_s <= 0) return std::optional<double>();
    const double waited_s = static_cast<double>(increase(*a, *b)) * 1e-6;
    return std::optional<double>(std::min(1.0, waited_s / out.interval_s));
  };
  waiting.some = share(before.some_us, now->some_us);
  waiting.full = share(before.full_us, now->full_us);
  before = {now->some_us, now->full_us};
  return waiting;
}

bool Sampler::whole_disk(const probe::DiskStat& disk) {
  // Without a readable /sys nothing tells a disk from its partitions: take all.
  if (!root_.exists("sys/block")) return true;
  std::string leaf(disk.name);
  std::replace(leaf.begin(), leaf.end(), '/', '!');  // as sysfs writes "cciss/c0d0"
  return root_.exists("sys/block/" + leaf);
}

void Sampler::read_disks(Snapshot& out) {
  if (!root_.read_into("proc/diskstats", buffer_).ok()) return;
  for (const probe::DiskStat& now : probe::parse_disk_stats(buffer_)) {
    if (now.reads + now.writes == 0 && now.in_flight == 0) continue;  // never used
    const uint64_t key = makedev(now.major, now.minor);
    auto known = disks_.find(key);
    const bool first = known == disks_.end();
    if (first) {
      if (disks_.size() >= kMaxDisks) continue;
      known = disks_.emplace(key, DiskTotals{std::string(now.name), whole_disk(now), now}).first;
    }
    DiskTotals& totals = known->second;
    if (!totals.whole) continue;
    const probe::DiskStat& before = totals.stat;
    Disk disk;
    disk.name = totals.name;
    disk.in_flight = now.in_flight;
    if (!first && out.interval_s > 0) {
      const auto per_s = [&](uint64_t a, uint64_t b) {
        return static_cast<double>(increase(a, b)) / out.interval_s;
      };
      const uint64_t ended = increase(before.reads + before.writes, now.reads + now.writes);
      const uint64_t took_ms =
          increase(before.read_ms, now.read_ms) + increase(before.write_ms, now.write_ms);
      disk.busy = std::min(1.0, per_s(before.busy_ms, now.busy_ms) * 1e-3);
      disk.read_bytes_per_s =
          per_s(before.read_sectors, now.read_sectors) * probe::DiskStat::kSector;
      disk.write_bytes_per_s =
          per_s(before.write_sectors, now.write_sectors) * probe::DiskStat::kSector;
      disk.requests_per_s = static_cast<double>(ended) / out.interval_s;
      if (ended > 0) {
        disk.latency_s = static_cast<double>(took_ms) * 1e-3 / static_cast<double>(ended);
      }
    }
    totals.stat = now;
    totals.stat.name = {};  // points into the buffer
    out.disks.push_back(disk);
  }
}

void Sampler::read_gpus(Snapshot& out) {
  if (!nvml_) return;
  const probe::NvmlThread::News news = nvml_->take();
  if (news.failed) out.gpu_trouble = probe::missing_gpu(root_, *news.failed).reason;
  for (const probe::NvmlThread::Timed& timed : news.readings) {
    auto& [gpu, at] = gpus_[timed.gpu.index];
    at = out.at;
    gpu.name = news.facts[timed.gpu.index].name;
    probe::GpuReading fresh = timed.gpu;
    if (!fresh.pcie_tx_bytes_per_s) {  // measured less often
      fresh.pcie_tx_bytes_per_s = gpu.now.pcie_tx_bytes_per_s;
      fresh.pcie_rx_bytes_per_s = gpu.now.pcie_rx_bytes_per_s;
    }
    gpu.now = std::move(fresh);
  }
  for (const auto& [index, last] : gpus_) {
    Gpu& shown = out.gpus.emplace_back(last.gpu);
    if (out.at - last.at <= kGpuPatience) continue;
    // Where a device hangs, so does the driver: old figures would look like new ones.
    shown.now = {};
    shown.now.index = index;
    shown.now.error =
        fmt::format("no answer from the driver for {}", format_duration(out.at - last.at));
  }
}

void Sampler::give_gpu_memory(Snapshot& out) const {
  std::map<int32_t, uint64_t> bytes;
  for (const Gpu& gpu : out.gpus) {
    for (const probe::GpuProcess& p : gpu.now.processes) bytes[p.pid] += p.memory_bytes.value_or(0);
  }
  if (bytes.empty()) return;
  for (Task& task : out.task_list) {
    const auto it = task.is_thread() ? bytes.end() : bytes.find(task.pid);
    if (it != bytes.end()) task.gpu_bytes = it->second;
  }
}

}  // namespace flatout::screen
