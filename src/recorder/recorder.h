// The recorder: starts a job in place or watches one that runs, drives the probes, listens to the
// agents, writes the run folder, and gives the live Run to whoever shows it.
// One thread, one event loop. The job never waits for it and goes on if it dies.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "model/run.h"
#include "recorder/agents.h"
#include "recorder/code_facts.h"
#include "recorder/event_loop.h"
#include "recorder/exit_watch.h"
#include "recorder/fault_file.h"
#include "recorder/folder.h"
#include "recorder/packet_sink.h"
#include "recorder/rank_place.h"
#include "recorder/recording.h"
#include "recorder/schedule.h"
#include "recorder/signals.h"
#include "recorder/status_terminal.h"

namespace flatout::probe {
class JobTree;
class Probe;
class StackProbe;
}  // namespace flatout::probe

namespace flatout::recorder {

struct Options {
  std::vector<std::string> command;  // run
  int32_t attach_pid = 0;            // or attach
  std::string out;                   // run folder; empty: the usual place
  bool agent = true;
  std::string torch_profile;  // run: "20-25", the steps that PyTorch's own profiler records
  bool cupti = false;         // run: the agent records the device's work, too
  bool allocator = false;     // run: preload libflatout_malloc.so into the job
  bool stdout_to_stderr = false;
  bool status = true;
  int status_fd = -1;        // a socket for the status line, instead of the terminal
  bool stacks_only = false;  // no run folder, no other probes: for a look at the stacks
  double stacks_per_s = 40;
  Nanos limit{0};  // end after so long; 0: with the job
  // A trial of `fix`: signals end the recording and are not passed on, the command dies with this
  // process, and it is enough once agents have marked so many steps (0: never) and so much time has
  // passed since the first. Who ends the recording before the job ends the job.
  bool trial = false;
  uint64_t enough_steps = 0;
  Nanos enough_time{0};
  RecordingLimits limits;
};

/// What to show of the run so far. May take some 100 ms: it is called rarely enough to cost little.
using StatusMaker = std::function<StatusText(model::Run&)>;

/// A process of the job that outlives its command.
struct Leftover {
  int32_t pid = 0;
  std::string name;
};

class Recorder {
 public:
  /// Makes the run folder and everything that can fail. Call before any thread is started.
  static Result<std::unique_ptr<Recorder>> open(Options options);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// Starts the job, or checks that it can be watched. Errors of run: kNotFound (127), kDenied
  /// (126), others 125.
  Status start();
  /// Until the job's command has ended, or attach is told to end.
  void record(const StatusMaker& make_status);

  model::Run& run() { return recording_.run(); }
  /// The command's process.
  int32_t job() const { return job_; }
  const RunFolder& folder() const { return folder_; }
  /// Which rank of a job of several this recording is of, if it is.
  const RankPlace& place() const { return place_; }
  /// False when files could not be written (any more).
  bool on_disk() const { return recording_.on_disk(); }
  /// As waitpid; -1 where not known (attach).
  int wait_status() const { return wait_status_; }
  /// Whether Ctrl-C came to this process as well.
  bool interrupted() const { return signals_->interrupted(); }
  /// The job's processes that went on when record() ended.
  std::vector<Leftover> leftovers() const;

 private:
  explicit Recorder(Options options);
  Status start_command();
  void preload(const char* what, const std::string& library, std::vector<std::string>& environment);
  Status start_attach();
  void watch_cuda(std::vector<std::string>& environment, const std::string& agent);
  void watch_job();
  void tell_facts();
  void on_child();
  void on_process_end(int32_t pid, int wait_status);
  void on_stop_or_continue(bool stopped);
  void step(TimePoint now);
  void read_tree(TimePoint now);
  void read_probes(TimePoint now);
  void read_stacks(TimePoint now);
  void read_self(TimePoint now);
  void drain(TimePoint now);
  void show_status(TimePoint now, const StatusMaker& make_status);
  bool has_fallen_silent(TimePoint now);
  void pump(TimePoint now, bool all);
  void finish();
  TimePoint next_deadline() const;
  bool attached() const { return options_.attach_pid != 0; }
  bool has_enough(TimePoint now) const;

  Options options_;
  std::vector<std::string> environment_;  // the job's
  RankPlace place_;
  RunFolder folder_;
  Recording recording_;
  PacketSink sink_{recording_};
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<SignalRelay> signals_;
  std::unique_ptr<AgentServer> agents_;
  FaultFile faults_;
  CodeFacts code_{fs::Root("/")};
  std::unique_ptr<ExitWatch> exits_;
  std::unique_ptr<StatusTerminal> terminal_;
  std::unique_ptr<probe::JobTree> tree_;
  std::vector<std::unique_ptr<probe::Probe>> probes_;
  std::vector<TimePoint> probe_due_;  // parallel to probes_
  std::unique_ptr<probe::StackProbe> stacks_;
  StackPace pace_;

  int32_t job_ = 0;
  int wait_status_ = -1;
  bool ended_ = false, code_told_ = false, verdict_told_ = false;
  TimePoint begin_{}, last_wake_{}, stopped_since_{};
  TimePoint last_stacks_{}, next_stacks_{}, next_tree_{}, next_drain_{}, next_self_{};
  TimePoint next_status_{}, next_text_{};
  uint64_t silent_after_ = 0;  // steps, when the job was last looked at for its silence
  StatusText status_;
};

}  // namespace flatout::recorder
