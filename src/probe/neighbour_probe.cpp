// Processes outside the job: who takes CPU, memory and I/O, who is a left-over of an old run.
//
// Active processes are looked at in each round, quiet ones in every fourth, kernel threads in every
// sixteenth; pacing stretches the rounds where there are very many. Only those that use something
// are delivered.
#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>

#include "base/text.h"
#include "probe/job_cpu.h"
#include "probe/job_tree.h"
#include "probe/kernel_files.h"
#include "probe/leftover.h"
#include "probe/probes.h"
#include "probe/proc_files.h"
#include "probe/reading.h"

namespace flatout::probe {
namespace {

using model::EntityKind;
using model::SignalId;
using std::chrono::seconds;

constexpr double kCpuShare = 0.02;           // of a core: worth delivering
constexpr double kBytesPerSecond = 1 << 20;  // of I/O
constexpr double kMemoryShare = 0.02;        // of the machine's memory
constexpr size_t kMaxDelivered = 300;        // different processes in one recording
constexpr double kMuchCpu = 0.25;            // delivered beyond that bound, up to kMaxDeliveredEver
constexpr size_t kMaxDeliveredEver = 1500;
constexpr size_t kMaxZombies = 20;           // delivered one by one; all are counted
constexpr size_t kMaxIoReads = 48;           // a round
constexpr size_t kMaxLeftoverChecks = 4;     // a round
constexpr size_t kFirstLeftoverChecks = 32;  // in the first rounds: old runs are there already
constexpr Nanos kLeftoverPeriod = seconds(20);
constexpr Nanos kKeepDelivering = seconds(30);

class NeighbourProbe : public Probe {
 public:
  explicit NeighbourProbe(const Scope& scope)
      : root_(scope.root),
        job_(scope.job),
        self_pid_(scope.self_pid),
        launcher_pid_(scope.launcher_pid) {}
  const char* name() const override { return "neighbour"; }
  Nanos period() const override { return seconds(1); }

  void read(TimePoint now, model::Sink& sink) override {
    const auto names = root_.list("proc");
    if (!names.ok()) {
      none_(sink, "other", names.error().message, "mount /proc");
      return;
    }
    if (round_++ == 0) start(sink);
    io_reads_ = leftover_checks_ = 0;
    if (root_.read_into("proc/uptime", buffer_, 256).ok()) {
      std::string_view text = buffer_;
      uptime_s_ = parse_number<double>(next_word(text)).value_or(0);
    }
    for (const std::string& name : *names) {
      if (name[0] < '0' || name[0] > '9') continue;
      const auto pid = parse_number<int32_t>(name);
      if (!pid || *pid == self_pid_) continue;
      if (job_ != nullptr && job_->contains(*pid)) {
        others_.erase(*pid);
        if (read_stat(*pid)) cpu_.note(*stat_);
        continue;
      }
      visit(*pid, now, sink);
    }
    std::erase_if(others_, [&](const auto& entry) { return entry.second.round != round_; });
    const bool complete = cpu_.end_round();
    deliver_totals(now, complete, sink);
    if (round_ == 2) tell_start(sink);
  }

 private:
  struct Other {
    uint64_t start_ticks = 0;
    uint64_t round = 0;  // last seen in the listing
    uint64_t cpu_ticks = 0;
    double cpu_share = 0;  // of a core, lately
    TimePoint read_at{};
    int32_t ppid = 0;
    bool kernel = false, zombie = false, active = false;
    bool sibling = false;    // of another rank of the job
    bool delivered = false;  // has an entity
    bool io_denied = false;
    std::optional<PidIo> io;
    TimePoint io_at{}, interesting_at{}, next_leftover{};
    std::optional<Leftover> leftover;
    std::string name;
  };

  void start(model::Sink& sink) {
    if (root_.read_into("proc/meminfo", buffer_).ok()) {
      memory_bytes_ = static_cast<double>(find_field(buffer_, "MemTotal").value_or(0));
    }
    // The kernel's own thread 2 is seen only from the machine's first pid namespace; even there
    // hidepid hides other users' processes.
    const bool all = read_stat(2) && stat_->kernel_thread() && read_stat(1);
    if (!all) {
      none_(sink, "other", "processes outside this container or of other users are hidden",
            "their CPU time is seen only in total (others.cpu_ns); run flatout on the host");
    }
  }

  bool read_stat(int32_t pid) {
    if (!root_.read_into(proc_path(pid, "stat"), buffer_, 4096).ok()) return false;
    stat_ = parse_pid_stat(buffer_);
    return stat_ && stat_->pid == pid;
  }

  /// Other ranks and what records them are no neighbours, though flatout did not start them.
  bool is_sibling(int32_t ppid) const {
    if (launcher_pid_ == 0) return false;
    if (ppid == launcher_pid_) return true;
    const auto parent = others_.find(ppid);
    return parent != others_.end() && parent->second.sibling;
  }

  void visit(int32_t pid, TimePoint now, model::Sink& sink) {
    const auto [it, fresh] = others_.try_emplace(pid);
    Other& other = it->second;
    other.round = round_;
    const uint64_t turn = static_cast<uint64_t>(pid) + round_;
    const bool skip = other.kernel ? turn % 16 != 0 : turn % 4 != 0;
    if (!fresh && !other.active && !other.sibling && skip) return;
    if (!read_stat(pid)) return;
    PidStat stat = *stat_;
    const std::string comm(stat.comm);  // the buffer is used again below
    stat.comm = comm;
    if (other.start_ticks != stat.start_ticks) {
      other = Other{};
      other.round = round_;
      other.start_ticks = stat.start_ticks;
    }
    other.ppid = stat.ppid;
    other.sibling = is_sibling(stat.ppid);
    if (other.sibling) {
      cpu_.note(stat);
      return;
    }
    other.kernel = stat.kernel_thread();
    const bool was_zombie = other.zombie;
    other.zombie = stat.zombie();
    if (!other.delivered) other.name = comm;
    const uint64_t cpu = stat.user_ticks + stat.system_ticks;
    const double span = to_s(now - other.read_at);
    const bool again = other.read_at != TimePoint{} && span > 0;
    const double cpu_share =
        again && cpu > other.cpu_ticks
            ? static_cast<double>(cpu - other.cpu_ticks) * tick_ns() * 1e-9 / span
            : 0;
    other.cpu_share = cpu_share;
    other.active = (!again && !other.kernel) || cpu > other.cpu_ticks;  // a second look soon
    const double rss = static_cast<double>(std::max<int64_t>(0, stat.rss_pages)) * page_bytes();
    bool interesting = cpu_share >= kCpuShare || rss >= kMemoryShare * memory_bytes_;
    if (((again && other.active) || stat.state == 'D') && !other.kernel) {
      interesting |= read_io(pid, other, now, sink);
    }
    if (!other.kernel && !other.zombie) {
      interesting |= check_leftover(pid, stat, other, rss, cpu_share, now);
    }
    // Each process is a zombie for a moment; only those that stay are delivered.
    if (was_zombie && other.zombie && zombies_delivered_ < kMaxZombies && !other.delivered) {
      ++zombies_delivered_;
      interesting = true;
    }
    if (interesting) other.interesting_at = now;
    if (may_deliver(other, cpu_share, now)) {
      deliver(pid, stat, other, rss, now, sink);
    }
    other.cpu_ticks = cpu;
    other.read_at = now;
  }

  bool may_deliver(const Other& other, double cpu_share, TimePoint now) const {
    if (other.interesting_at == TimePoint{} || now - other.interesting_at > kKeepDelivering) {
      return false;
    }
    if (other.delivered || delivered_ < kMaxDelivered) return true;
    return cpu_share >= kMuchCpu && delivered_ < kMaxDeliveredEver;
  }

  // True if it does much I/O.
  bool read_io(int32_t pid, Other& other, TimePoint now, model::Sink& sink) {
    if (other.io_denied || io_reads_ >= kMaxIoReads) return false;
    ++io_reads_;
    const Status got = root_.read_into(proc_path(pid, "io"), buffer_, 4096);
    if (!got.ok()) {
      other.io_denied = !is_gone(got.error());
      if (other.io_denied) {
        no_io_(sink, "other.read_bytes",
               "I/O of some other processes may not be read: " + got.error().message,
               "run flatout as root on the host");
      }
      return false;
    }
    const auto io = parse_pid_io(buffer_);
    if (!io) return false;
    bool much = false;
    if (other.io && now > other.io_at) {
      const auto moved = [](uint64_t now_bytes, uint64_t before) {
        return now_bytes > before ? static_cast<double>(now_bytes - before) : 0.0;
      };
      much = (moved(io->read_bytes, other.io->read_bytes) +
              moved(io->write_bytes, other.io->write_bytes)) >=
             kBytesPerSecond * to_s(now - other.io_at);
    }
    other.io = io;
    other.io_at = now;
    return much;
  }

  // True if it looks like a left-over, or keeps shared memory or a GPU.
  bool check_leftover(int32_t pid, const PidStat& stat, Other& other, double rss, double cpu_share,
                      TimePoint now) {
    const size_t max_checks = round_ <= 3 ? kFirstLeftoverChecks : kMaxLeftoverChecks;
    if (now >= other.next_leftover && leftover_checks_ < max_checks) {
      other.next_leftover = now + kLeftoverPeriod;
      const bool older = job_ == nullptr || job_->main_start_ticks() == 0 ||
                         stat.start_ticks < job_->main_start_ticks();
      other.leftover.reset();
      if (older && pid != 1 && rss >= kLeastLeftover) {
        ++leftover_checks_;
        other.leftover =
            inspect_leftover(root_, {.stat = stat,
                                     .name = other.name,
                                     .cpu_share = cpu_share,
                                     .memory_share = memory_bytes_ > 0 ? rss / memory_bytes_ : 0});
      }
    }
    return other.leftover && (other.leftover->orphan || other.leftover->holds_gpu ||
                              other.leftover->shm_bytes >= kLeastShm);
  }

  void deliver(int32_t pid, const PidStat& stat, Other& other, double rss, TimePoint now,
               model::Sink& sink) {
    const model::EntityId entity =
        sink.entity(EntityKind::kOther, pid, other.name, model::kNoEntity);
    const Deliver give(sink, entity, now);
    const bool first = !other.delivered;
    if (first) {
      ++delivered_;
      other.delivered = true;
      describe(pid, other, sink);
    }
    // What it used since it was last looked at must not be lost for want of an earlier reading.
    if (other.read_at != TimePoint{} && (first || now - other.read_at > seconds(5))) {
      sink.reading(SignalId::kOtherCpu, entity, other.read_at,
                   static_cast<double>(other.cpu_ticks) * tick_ns());
    }
    give(SignalId::kOtherCpu, static_cast<double>(stat.user_ticks + stat.system_ticks) * tick_ns());
    if (rss > 0) give(SignalId::kOtherRss, rss);  // not of kernel threads and the ended
    give(SignalId::kOtherAge, age_s(stat.start_ticks));
    if (other.zombie) give(SignalId::kOtherZombie, 1);
    if (other.io && other.io_at == now) {
      give(SignalId::kOtherReadBytes, static_cast<double>(other.io->read_bytes));
      give(SignalId::kOtherWriteBytes, static_cast<double>(other.io->write_bytes));
    }
    if (other.leftover) {
      give(SignalId::kOtherShm, static_cast<double>(other.leftover->shm_bytes));
      give(SignalId::kOtherOrphan, other.leftover->orphan ? 1 : 0);
      give(SignalId::kOtherHoldsGpu, other.leftover->holds_gpu ? 1 : 0);
    }
  }

  // Facts "other.PID.command" and "other.PID.parent": who it is, for people.
  void describe(int32_t pid, const Other& other, model::Sink& sink) {
    const std::string key = "other." + std::to_string(pid);
    if (root_.read_into(proc_path(pid, "cmdline"), buffer_, 512).ok() && !buffer_.empty()) {
      // A command line may hold a password: the program and the script will do.
      sink.fact(key + ".command", program_and_script(buffer_));
    }
    const std::string parent = std::to_string(other.ppid);
    if (read_stat(other.ppid)) sink.fact(key + ".parent", parent + " " + std::string(stat_->comm));
  }

  double age_s(uint64_t start_ticks) const {
    return std::max(0.0, uptime_s_ - static_cast<double>(start_ticks) * tick_ns() * 1e-9);
  }

  // Fact "neighbours.at_start": the busiest at the second round, for the comparison of two runs.
  void tell_start(model::Sink& sink) {
    std::vector<const Other*> busy;
    for (const auto& [pid, other] : others_) {
      if (other.cpu_share >= kCpuShare) busy.push_back(&other);
    }
    std::sort(busy.begin(), busy.end(),
              [](const Other* a, const Other* b) { return a->cpu_share > b->cpu_share; });
    if (busy.size() > 8) busy.resize(8);
    std::string text;
    for (const Other* other : busy) {
      if (!text.empty()) text += ", ";
      text += other->name + " (" + format_number(other->cpu_share) + " cores)";
    }
    sink.fact("neighbours.at_start", text.empty() ? "none" : text);
  }

  // The CPU time of all others is what the cores did less what the job and we did: so it also has
  // processes that we cannot see, or that lived too short.
  // What a part of the job used that nobody could read any more (`complete` is false) is not
  // theirs: nothing is counted then.
  void deliver_totals(TimePoint now, bool complete, model::Sink& sink) {
    const Deliver host(sink, host_entity(sink), now);
    size_t zombies = 0;
    for (const auto& [pid, other] : others_) zombies += other.zombie ? 1 : 0;
    host(SignalId::kHostZombies, static_cast<double>(zombies));
    if (!root_.read_into("proc/stat", buffer_).ok()) return;
    const auto stat = parse_kernel_stat(buffer_);
    if (!stat) return;
    const double all = static_cast<double>(stat->all.user + stat->all.system) * tick_ns();
    double own = 0;
    if (read_stat(self_pid_)) {
      own = static_cast<double>(stat_->user_ticks + stat_->system_ticks) * tick_ns();
    }
    // The kernel counts the cores' time in ticks and that of processes exactly: the difference may
    // fall for a moment, the counter may not.
    const double others = all - cpu_.total_ns() - own - unread_ns_;
    if (!complete) unread_ns_ += std::max(0.0, others - others_cpu_ns_);
    if (complete) others_cpu_ns_ = std::max(others_cpu_ns_, others);
    host(SignalId::kOthersCpu, others_cpu_ns_);
  }

  fs::Root root_;
  const JobTree* job_;
  int32_t self_pid_, launcher_pid_;
  std::string buffer_;
  std::optional<PidStat> stat_;  // of the last read_stat(); points into buffer_
  std::unordered_map<int32_t, Other> others_;
  JobCpu cpu_;
  double others_cpu_ns_ = 0, unread_ns_ = 0, memory_bytes_ = 0, uptime_s_ = 0;
  uint64_t round_ = 0;
  size_t delivered_ = 0, zombies_delivered_ = 0, io_reads_ = 0, leftover_checks_ = 0;
  MissingOnce none_, no_io_;
};

}  // namespace

std::unique_ptr<Probe> make_neighbour_probe(const Scope& s) {
  return std::make_unique<NeighbourProbe>(s);
}

}  // namespace flatout::probe
