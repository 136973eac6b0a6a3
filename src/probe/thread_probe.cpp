// Counters of the job's threads: CPU time, run-queue delay, switches, faults, affinity.
//
// Main threads and busy ones are read at each tick, all others in turn, a bounded number per tick:
// a job of 5,000 threads costs what one of 50 does.
#include <algorithm>
#include <map>
#include <memory>

#include "base/text.h"
#include "probe/job_tree.h"
#include "probe/probes.h"
#include "probe/proc_files.h"
#include "probe/reading.h"

namespace flatout::probe {
namespace {

using model::EntityKind;
using model::SignalId;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr size_t kHotPerTick = 64;
constexpr size_t kColdPerTick = 32;
constexpr double kBusyShare = 0.02;  // of a core, running or waiting for one
constexpr Nanos kColdPeriod = seconds(2);
constexpr Nanos kStatusPeriod = seconds(2);

class ThreadProbe : public Probe {
 public:
  explicit ThreadProbe(const Scope& scope) : root_(scope.root), job_(scope.job) {}
  const char* name() const override { return "thread"; }
  Nanos period() const override { return milliseconds(500); }

  void read(TimePoint now, model::Sink& sink) override {
    if (job_ == nullptr) return;
    ++round_;
    for (const JobProcess* process : job_->processes()) list_threads(*process, now);
    std::erase_if(processes_, [&](const auto& entry) { return entry.second.round != round_; });
    read_hot(now, sink);
    read_cold(now, sink);
  }

 private:
  struct Thread {
    int32_t tid = 0;
    bool busy = true;  // until a second reading shows otherwise
    bool ended = false;
    bool odd = false;      // the half of the readings that also look at stat
    uint64_t used_ns = 0;  // on a core or waiting for one
    TimePoint read_at{}, next_status{};
  };
  struct Process {
    uint64_t start_ticks = 0;
    uint64_t round = 0;
    TimePoint next_listing{};
    std::vector<Thread> threads;  // by tid
  };

  void list_threads(const JobProcess& job_process, TimePoint now) {
    Process& process = processes_[job_process.pid];
    if (process.start_ticks != job_process.start_time_ticks) process = Process{};
    process.start_ticks = job_process.start_time_ticks;
    process.round = round_;
    if (now < process.next_listing) return;
    const auto names = root_.list(proc_path(job_process.pid, "task"));
    if (!names.ok()) return;
    std::vector<int32_t> tids;
    for (const std::string& name : *names) {
      if (const auto tid = parse_number<int32_t>(name)) tids.push_back(*tid);
    }
    std::sort(tids.begin(), tids.end());
    std::vector<Thread> threads;
    threads.reserve(tids.size());
    auto old = process.threads.begin();
    for (const int32_t tid : tids) {
      while (old != process.threads.end() && old->tid < tid) ++old;
      if (old != process.threads.end() && old->tid == tid && !old->ended) {
        threads.push_back(*old);
      } else {
        threads.emplace_back();
        threads.back().tid = tid;
      }
    }
    process.threads = std::move(threads);
    process.next_listing = now + std::max<Nanos>(seconds(1), milliseconds(4) * tids.size());
  }

  // The main thread of every process, then busy threads, those read longest ago first.
  void read_hot(TimePoint now, model::Sink& sink) {
    std::vector<std::pair<int32_t, Thread*>> busy;
    for (auto& [pid, process] : processes_) {
      for (Thread& thread : process.threads) {
        if (thread.ended) continue;
        if (thread.tid == pid) {
          read_thread(pid, thread, now, sink);
        } else if (thread.busy) {
          busy.emplace_back(pid, &thread);
        }
      }
    }
    read_oldest(busy, kHotPerTick, now, sink);
  }

  void read_cold(TimePoint now, model::Sink& sink) {
    std::vector<std::pair<int32_t, Thread*>> cold;
    for (auto& [pid, process] : processes_) {
      for (Thread& thread : process.threads) {
        if (!thread.ended && now - thread.read_at >= kColdPeriod) cold.emplace_back(pid, &thread);
      }
    }
    read_oldest(cold, kColdPerTick, now, sink);
  }

  void read_oldest(std::vector<std::pair<int32_t, Thread*>>& threads, size_t limit, TimePoint now,
                   model::Sink& sink) {
    limit = std::min(limit, threads.size());
    std::partial_sort(
        threads.begin(), threads.begin() + static_cast<ptrdiff_t>(limit), threads.end(),
        [](const auto& a, const auto& b) { return a.second->read_at < b.second->read_at; });
    for (size_t i = 0; i < limit; ++i) read_thread(threads[i].first, *threads[i].second, now, sink);
  }

  void read_thread(int32_t pid, Thread& thread, TimePoint now, model::Sink& sink) {
    const std::string dir = proc_path(pid, "task/") + std::to_string(thread.tid) + "/";
    const Deliver deliver(
        sink, sink.entity(EntityKind::kThread, thread.tid, "", process_entity(sink, pid)), now);
    const Status got = root_.read_into(dir + "schedstat", buffer_, 256);
    SchedStat sched;
    const bool have_sched = got.ok() && parse_schedstat(buffer_, sched);
    if (!got.ok() && is_gone(got.error()) && !root_.exists(dir + "stat")) {
      thread.ended = true;
      return;
    }
    uint64_t used = thread.used_ns;
    if (have_sched) {
      deliver(SignalId::kThreadOnCpu, static_cast<double>(sched.on_cpu_ns));
      deliver(SignalId::kThreadRunDelay, static_cast<double>(sched.run_delay_ns));
      used = sched.on_cpu_ns + sched.run_delay_ns;
    } else {
      no_sched_(sink, "thread.run_delay_ns", "the kernel does not account run-queue delay",
                "a kernel with CONFIG_SCHED_INFO");
    }
    // Its resolution is 10 ms, so half as often will do; without schedstat it is all there is.
    thread.odd = !thread.odd;
    if (thread.odd || !have_sched || now - thread.read_at >= seconds(1)) {
      const std::optional<uint64_t> ticks = read_stat(dir, deliver);
      if (ticks && !have_sched)
        used = static_cast<uint64_t>(static_cast<double>(*ticks) * tick_ns());
    }
    if (now >= thread.next_status) {
      thread.next_status = now + kStatusPeriod;
      read_status(dir, deliver);
    }
    if (thread.read_at != TimePoint{} && now > thread.read_at) {
      const double span = static_cast<double>((now - thread.read_at).count());
      thread.busy =
          used > thread.used_ns && static_cast<double>(used - thread.used_ns) > kBusyShare * span;
    }
    thread.used_ns = used;
    thread.read_at = now;
  }

  std::optional<uint64_t> read_stat(const std::string& dir, const Deliver& deliver) {
    if (!root_.read_into(dir + "stat", buffer_, 4096).ok()) return std::nullopt;
    const auto stat = parse_pid_stat(buffer_);
    if (!stat) return std::nullopt;
    const double tick = tick_ns();
    deliver(SignalId::kThreadCpuUser, static_cast<double>(stat->user_ticks) * tick);
    deliver(SignalId::kThreadCpuSystem, static_cast<double>(stat->system_ticks) * tick);
    deliver(SignalId::kThreadMinorFaults, static_cast<double>(stat->minor_faults));
    deliver(SignalId::kThreadMajorFaults, static_cast<double>(stat->major_faults));
    if (stat->cpu >= 0) deliver(SignalId::kThreadCpu, static_cast<double>(stat->cpu));
    return stat->user_ticks + stat->system_ticks;
  }

  void read_status(const std::string& dir, const Deliver& deliver) {
    if (!root_.read_into(dir + "status", buffer_, 8192).ok()) return;
    const PidStatus status = parse_pid_status(buffer_);
    deliver(SignalId::kThreadVoluntary, status.voluntary_switches);
    deliver(SignalId::kThreadInvoluntary, status.involuntary_switches);
    deliver(SignalId::kThreadAllowedCores, status.allowed_cores);
  }

  fs::Root root_;
  const JobTree* job_;
  std::string buffer_;
  uint64_t round_ = 0;
  std::map<int32_t, Process> processes_;
  MissingOnce no_sched_;
};

}  // namespace

std::unique_ptr<Probe> make_thread_probe(const Scope& s) {
  return std::make_unique<ThreadProbe>(s);
}

}  // namespace flatout::probe
