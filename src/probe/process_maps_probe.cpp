// Files of each process of the job that cost in proportion to it (maps, smaps_rollup) and hold its
// mmap lock meanwhile. Read seldom, and apart from the cheap files, which must not wait for them.
#include <algorithm>
#include <map>

#include "base/cpu_time.h"
#include "probe/job_tree.h"
#include "probe/probes.h"
#include "probe/proc_files.h"
#include "probe/reading.h"

namespace flatout::probe {
namespace {

using model::SignalId;
using std::chrono::seconds;

// At most this share of a core for each process.
constexpr double kShare = 5e-5;
constexpr size_t kMaxProcesses = 512;

class ProcessMapsProbe : public Probe {
 public:
  explicit ProcessMapsProbe(const Scope& scope) : root_(scope.root), job_(scope.job) {}
  const char* name() const override { return "process_maps"; }
  Nanos period() const override { return seconds(1); }

  void read(TimePoint now, model::Sink& sink) override {
    if (job_ == nullptr) return;
    ++round_;
    size_t count = 0;
    for (const JobProcess* process : job_->processes()) {
      if (++count > kMaxProcesses) break;
      read_one(*process, now, sink);
    }
    std::erase_if(kept_, [&](const auto& entry) { return entry.second.round != round_; });
  }

 private:
  struct Kept {
    uint64_t start_ticks = 0;
    uint64_t round = 0;  // in which it was last seen
    TimePoint next_maps{}, next_pss{};
  };

  void read_one(const JobProcess& process, TimePoint now, model::Sink& sink) {
    Kept& kept = kept_[process.pid];
    if (kept.start_ticks != process.start_time_ticks) {
      kept = Kept{};
      kept.start_ticks = process.start_time_ticks;
      kept.next_maps = now + seconds(2);
      kept.next_pss = now + seconds(3);
    }
    kept.round = round_;
    const Deliver deliver(sink, process_entity(sink, process.pid), now);
    if (now >= kept.next_maps) {
      kept.next_maps = now + timed(seconds(4), [&] { read_maps(process.pid, deliver); });
    }
    if (now >= kept.next_pss) {
      kept.next_pss = now + timed(seconds(20), [&] { read_pss(process.pid, deliver, sink); });
    }
  }

  void read_maps(int32_t pid, const Deliver& deliver) {
    if (!root_.read_into(proc_path(pid, "maps"), buffer_, 16 << 20).ok() || buffer_.empty()) return;
    deliver(SignalId::kProcMaps,
            static_cast<double>(std::count(buffer_.begin(), buffer_.end(), '\n')));
    if (buffer_.capacity() > 1 << 20) std::string().swap(buffer_);
  }

  void read_pss(int32_t pid, const Deliver& deliver, model::Sink& sink) {
    const Status got = root_.read_into(proc_path(pid, "smaps_rollup"), buffer_, 8192);
    if (got.ok()) {
      deliver(SignalId::kProcPss, parse_pss_bytes(buffer_));
    } else if (!is_gone(got.error())) {
      no_pss_(sink, "proc.pss_bytes", got.error().message,
              "run flatout as the job's user, or with CAP_SYS_PTRACE");
    }
  }

  // Runs `work`; the time until it may run again, so that it keeps to its share.
  template <class Work>
  static Nanos timed(Nanos at_least, Work work) {
    const Nanos before = thread_cpu();
    work();
    return std::max(at_least, nanos(to_s(thread_cpu() - before) * 1e9 / kShare));
  }

  fs::Root root_;
  const JobTree* job_;
  std::string buffer_;
  std::map<int32_t, Kept> kept_;
  uint64_t round_ = 0;
  MissingOnce no_pss_;
};

}  // namespace

std::unique_ptr<Probe> make_process_maps_probe(const Scope& s) {
  return std::make_unique<ProcessMapsProbe>(s);
}

}  // namespace flatout::probe
