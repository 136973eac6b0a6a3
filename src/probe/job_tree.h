// The processes of the job: the command and all its descendants, also those that daemonised.
//
// New pids are found through /proc/loadavg, which names the newest pid: while it stands still,
// nothing was created and an update costs one small file. Where it cannot be trusted (gVisor), or
// after many new pids, /proc is listed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/fs.h"
#include "model/sink.h"

namespace flatout::probe {

struct PidStat;

struct JobProcess {
  int32_t pid = 0;
  int32_t ppid = 0;
  uint64_t start_time_ticks = 0;
  TimePoint start;  // CLOCK_MONOTONIC
  bool main = false;
  bool python = false;    // its executable is an interpreter, or libpython is mapped
  bool reported = false;  // the sink knows it
  std::string name, exe, command;

  // Internal to JobTree.
  int32_t pgrp = 0, session = 0;
  TimePoint seen, next_python_check;
};

class JobTree {
 public:
  /// `job_pid` is the command itself. If it is a child of `self_pid` (run mode), every child of
  /// `self_pid` belongs to the job: flatout is the subreaper to which daemons are handed.
  JobTree(fs::Root root, int32_t job_pid, int32_t self_pid);

  /// A helper process of flatout's own, which is its child but not the job's.
  void ignore(int32_t pid) { ignored_pid_ = pid; }

  /// Finds new processes, execs and ends, and tells the sink. Cheap: may be called ten times a
  /// second; known processes are looked at again every 400 ms.
  void update(TimePoint now, model::Sink& sink);

  /// The job's live processes (zombies excluded), ordered by pid.
  const std::vector<const JobProcess*>& processes() const { return alive_; }
  const JobProcess* find(int32_t pid) const;
  bool contains(int32_t pid) const { return find(pid) != nullptr; }
  int32_t main_pid() const { return job_pid_; }
  /// When the job's main process was started, in ticks since boot; 0 before the first update.
  uint64_t main_start_ticks() const { return main_start_ticks_; }
  /// Processes of the job seen so far, ended ones included.
  uint64_t seen() const { return seen_; }

 private:
  void find_new(TimePoint now, model::Sink& sink);
  void list_all(TimePoint now, model::Sink& sink);
  /// Takes `pid` into the job if it belongs there; gives its parent back in any case.
  bool consider(int32_t pid, TimePoint now, model::Sink& sink, int32_t* ppid = nullptr);
  bool belongs(const PidStat& stat) const;
  bool is_helper(int32_t pid) const;
  void add(const PidStat& stat, TimePoint now, model::Sink& sink);
  void check_known(TimePoint now, model::Sink& sink);
  void read_identity(JobProcess& process, TimePoint now);
  bool looks_like_python(const JobProcess& process) const;
  void report(JobProcess& process, TimePoint now, model::Sink& sink);
  void rebuild();

  fs::Root root_;
  int32_t job_pid_, self_pid_;
  int32_t ignored_pid_ = 0;
  bool adopts_ = false;  // run mode
  std::map<int32_t, JobProcess> job_;
  std::vector<const JobProcess*> alive_;
  std::vector<int32_t> groups_;    // pids of job processes, live or ended: process group leaders
  std::vector<int32_t> all_pids_;  // of the last listing, sorted
  uint64_t main_start_ticks_ = 0;
  uint64_t seen_ = 0;
  int32_t newest_pid_ = -1;
  bool trust_newest_ = true;
  TimePoint last_listing_{}, last_check_{}, last_refill_{};
  bool listed_once_ = false;
  double tokens_ = 500;  // processes that may still be reported at once
  std::string buffer_;
};

}  // namespace flatout::probe
