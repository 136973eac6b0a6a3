// Each process of the job: CPU time, memory, faults, I/O, open files, mappings.
#include <sys/stat.h>
#include <time.h>

#include <algorithm>
#include <map>
#include <memory>

#include "base/text.h"
#include "probe/host_facts.h"
#include "probe/job_cpu.h"
#include "probe/job_tree.h"
#include "probe/probes.h"
#include "probe/proc_files.h"
#include "probe/reading.h"

namespace flatout::probe {
namespace {

using model::SignalId;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr size_t kMaxProcesses = 512;  // beyond that, the newest are not read

class ProcessProbe : public Probe {
 public:
  explicit ProcessProbe(const Scope& scope) : root_(scope.root), job_(scope.job) {}
  const char* name() const override { return "process"; }
  Nanos period() const override { return milliseconds(500); }

  void read(TimePoint now, model::Sink& sink) override {
    if (job_ == nullptr) return;
    if (round_++ == 0) start();
    size_t count = 0;
    for (const JobProcess* process : job_->processes()) {
      if (++count > kMaxProcesses) {
        too_many_(sink, "proc", "the job has more than 512 processes", "the oldest 512 are read");
        break;
      }
      read_one(*process, now, sink);
    }
    std::erase_if(kept_, [&](const auto& entry) { return entry.second.round != round_; });
    cpu_.end_round();
    const Deliver host(sink, host_entity(sink), now);
    host(SignalId::kJobCpu, cpu_.total_ns());
    host(SignalId::kJobProcesses, static_cast<double>(job_->seen()));
  }

 private:
  // What is kept about one process between readings.
  struct Kept {
    uint64_t start_ticks = 0;
    uint64_t round = 0;  // in which it was last read
    TimePoint young_until{}, next_status{}, next_limits{};
    bool io_denied = false;
  };

  void start() {
    if (root_.read_into("proc/sys/vm/max_map_count", buffer_, 256).ok()) {
      map_limit_ = parse_number<uint64_t>(buffer_);
    }
    block_io_accounted_ = accounts_block_io(root_);
  }

  void read_one(const JobProcess& process, TimePoint now, model::Sink& sink) {
    const int32_t pid = process.pid;
    if (!root_.read_into(proc_path(pid, "stat"), buffer_, 4096).ok()) return;
    const auto stat = parse_pid_stat(buffer_);
    if (!stat || stat->start_ticks != process.start_time_ticks || stat->zombie()) return;
    Kept& kept = kept_[pid];
    if (kept.start_ticks != stat->start_ticks) {
      kept = Kept{};
      kept.start_ticks = stat->start_ticks;
      kept.young_until = now + seconds(60);
    }
    kept.round = round_;
    const Deliver deliver(sink, process_entity(sink, pid), now);
    const double tick = tick_ns();
    const double user = static_cast<double>(stat->user_ticks) * tick;
    const double system = static_cast<double>(stat->system_ticks) * tick;
    const double children =
        static_cast<double>(stat->children_user_ticks + stat->children_system_ticks) * tick;
    cpu_.note(*stat);
    deliver(SignalId::kProcCpuUser, user);
    deliver(SignalId::kProcCpuSystem, system);
    deliver(SignalId::kProcChildrenCpu, children);
    deliver(SignalId::kProcMinorFaults, static_cast<double>(stat->minor_faults));
    deliver(SignalId::kProcMajorFaults, static_cast<double>(stat->major_faults));
    deliver(SignalId::kProcThreads, static_cast<double>(stat->threads));
    if (block_io_accounted_) {
      deliver(SignalId::kProcBlockIoDelay, static_cast<double>(stat->block_io_ticks) * tick);
    } else {
      no_delay_(sink, "proc.block_io_delay_ns", "the kernel does not account block-I/O delay",
                "sysctl kernel.task_delayacct=1 (as root)");
    }
    read_io(pid, kept, deliver, sink);
    if (now >= kept.next_status) {
      // Growth must show within a short job's life.
      kept.next_status = now + (now < kept.young_until ? milliseconds(500) : seconds(1));
      read_status(pid, stat->rss_pages, deliver);
      read_fds(pid, deliver, sink);
    }
    if (now >= kept.next_limits) {
      kept.next_limits = now + seconds(3);  // a job may set its own
      if (root_.read_into(proc_path(pid, "limits"), buffer_, 8192).ok()) {
        deliver(SignalId::kProcFdLimit, parse_fd_limit(buffer_));
      }
      deliver(SignalId::kProcMapsLimit, map_limit_);
    }
  }

  void read_io(int32_t pid, Kept& kept, const Deliver& deliver, model::Sink& sink) {
    if (kept.io_denied) return;
    const Status got = root_.read_into(proc_path(pid, "io"), buffer_, 4096);
    if (!got.ok()) {
      if (is_gone(got.error()) && root_.exists(proc_path(pid, "stat"))) {
        no_io_(sink, "proc.read_bytes", "the kernel does not account I/O of processes",
               "a kernel with CONFIG_TASK_IO_ACCOUNTING");
      } else if (!is_gone(got.error())) {
        kept.io_denied = true;
        no_io_(sink, "proc.read_bytes", got.error().message,
               "run flatout as the job's user, or with CAP_SYS_PTRACE");
      }
      return;
    }
    const auto io = parse_pid_io(buffer_);
    if (!io) return;
    deliver(SignalId::kProcReadChars, static_cast<double>(io->read_chars));
    deliver(SignalId::kProcWriteChars, static_cast<double>(io->write_chars));
    deliver(SignalId::kProcReadCalls, static_cast<double>(io->read_calls));
    deliver(SignalId::kProcWriteCalls, static_cast<double>(io->write_calls));
    deliver(SignalId::kProcReadBytes, static_cast<double>(io->read_bytes));
    deliver(SignalId::kProcWriteBytes, static_cast<double>(io->write_bytes));
  }

  void read_status(int32_t pid, int64_t rss_pages, const Deliver& deliver) {
    if (!root_.read_into(proc_path(pid, "status"), buffer_, 8192).ok()) return;
    const PidStatus status = parse_pid_status(buffer_);
    if (status.rss_bytes) {
      deliver(SignalId::kProcRss, status.rss_bytes);
    } else if (rss_pages > 0) {
      deliver(SignalId::kProcRss, static_cast<double>(rss_pages) * page_bytes());
    }
    deliver(SignalId::kProcRssAnon, status.rss_anon_bytes);
    deliver(SignalId::kProcRssShmem, status.rss_shmem_bytes);
    deliver(SignalId::kProcSwap, status.swap_bytes);
    deliver(SignalId::kProcAllowedCores, status.allowed_cores);
  }

  void read_fds(int32_t pid, const Deliver& deliver, model::Sink& sink) {
    // From Linux 6.2 the size of the directory is the number of open files.
    const std::string path = proc_path(pid, "fd");
    struct stat st {};
    if (::stat(root_.full(path).c_str(), &st) == 0 && st.st_size > 0 && root_.is_real()) {
      deliver(SignalId::kProcFds, static_cast<double>(st.st_size));
      return;
    }
    const auto names = root_.list(path);
    if (names.ok()) {
      deliver(SignalId::kProcFds, static_cast<double>(names->size()));
    } else if (!is_gone(names.error())) {
      no_fds_(sink, "proc.fds", names.error().message,
              "run flatout as the job's user, or with CAP_SYS_PTRACE");
    }
  }

  fs::Root root_;
  const JobTree* job_;
  std::string buffer_;
  std::map<int32_t, Kept> kept_;
  JobCpu cpu_;
  std::optional<uint64_t> map_limit_;
  uint64_t round_ = 0;
  bool block_io_accounted_ = false;
  MissingOnce too_many_, no_delay_, no_io_, no_fds_;
};

}  // namespace

std::unique_ptr<Probe> make_process_probe(const Scope& s) {
  return std::make_unique<ProcessProbe>(s);
}

}  // namespace flatout::probe
