// RunView: what the detectors ask of a Run, derived once: steady steps, roles of threads, profiles,
// counters per step, how batches are made, whose the cores were. Read only.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "diagnose/graph_pipeline.h"
#include "diagnose/loop_order.h"
#include "diagnose/profile.h"
#include "diagnose/stacks.h"
#include "model/run.h"

namespace flatout::diagnose {

struct Window {
  TimePoint begin, end;
};
/// The most of these that there are at a time. One that ends at the moment of another's begin is
/// not there beside it.
int side_by_side(const std::vector<Window>& lives);

/// Means over steady steps (no warm-up, validation, gaps), in seconds.
struct StepsView {
  int64_t seen = 0;   // all of them, those of the warm-up, too
  int64_t count = 0;  // steady steps
  int64_t slow = 0;   // of these, far longer than usual
  double total = 0;   // their time
  double mean = 0, median = 0;
  std::array<double, model::kPartCount> parts{};  // mean per step
  std::vector<const model::Step*> steady;
  std::vector<Window> windows;  // the steady time, in as few pieces as possible

  double part(model::Part p) const { return parts[static_cast<size_t>(p)]; }
};

enum class LoaderKind : uint8_t {
  kNone,       // no input seen
  kSerial,     // the training thread makes the batches
  kProcesses,  // worker processes
  kThreads,    // threads of the training process
};

/// How batches are made. Times are seconds per batch.
struct LoaderView {
  LoaderKind kind = LoaderKind::kNone;
  bool measured = false;  // by FETCH slices; else judged from what threads did
  bool graph = false;     // by RunView::pipeline()
  int workers = 0;        // that made batches side by side
  int64_t batches = 0;
  double fetch = 0;  // mean time of a producer per batch, hand-over included
  double collate = 0, handover = 0, samples = 0;  // parts of it
  double lived = 0;                               // seconds that producers lived, summed
  double batch_samples = 0, batch_bytes = 0;
  double busy = 0;  // share of the producers' time spent on batches
  double mask = 0;  // cores that its processes may use, where fewer than the training thread may
  std::vector<const model::Slice*> fetches;  // of producers, in steady time, by end
  std::vector<TimePoint> born;  // when processes of producers that nobody measures began
  int processes = 0;            // of these, side by side
};

/// CPU and cores per steady second (1.0: one core), measured.
struct CpuView {
  double cores = 0;     // of the host
  double usable = 0;    // for the job: affinity and quota
  double affinity = 0;  // cores in the mask; 0 not known
  std::optional<double> quota;
  double idle = 0;  // idle cores of the host; 0 if not known
  bool idle_known = false;
  double job = 0, trainer = 0, pool = 0, producers = 0;
  double others = 0;
  double stolen = 0, busy = 0;   // by the hypervisor for other machines; by anybody here
  double throttled = 0;          // seconds of stop per second, summed over cores
  double throttled_periods = 0;  // share of periods
};

/// Threads of the job that want a core at a time, on average, by what they are.
struct Crowd {
  double trainer = 0, pool = 0, producers = 0, producer_pool = 0, helpers = 0;
  // Share of the steps' time in which the training thread and its pool together want more cores
  // than are usable. A pool that fits them never does, whoever else wants them.
  double overfull = 0;
  double all() const { return trainer + pool + producers + producer_pool + helpers; }
  /// Whether pools of threads, or programs beside the training, make it too many for so many
  /// cores; workers alone have their own findings.
  bool too_many(double cores) const {
    if (cores <= 0) return false;
    return overfull > 0.1 || (all() > 1.3 * cores && pool + producer_pool + helpers > 0.25 * all());
  }
};

/// A process beside the training that used the CPU.
struct Neighbour {
  std::string name;
  int64_t pid = 0;
  double cores = 0;
};

class RunView {
 public:
  /// On the steps of [from, to) (step indices as in Step::index); all by default. `before`: the
  /// steps before the job slowed down; where() then asks which line has grown. Outlives this.
  explicit RunView(const model::Run& run, int64_t from = INT64_MIN, int64_t to = INT64_MAX,
                   const RunView* before = nullptr);

  const model::Run& run() const { return run_; }
  const StackIndex& stacks() const { return stacks_; }
  /// Of its stack, and kAtMutex where it waits for a lock. `reading`: one of the run's.
  Traits traits(const model::StackReading& reading) const;
  const Profile& profile() const { return profile_; }
  const StepsView& steps() const { return steps_; }
  const LoaderView& loader() const { return loader_; }
  const CpuView& cpu() const { return cpu_; }
  const GraphPipeline& pipeline() const { return pipeline_; }
  /// Processes outside the job, who used most first.
  const std::vector<Neighbour>& neighbours() const { return neighbours_; }
  /// Processes of the job that neither train nor make batches, who used most first.
  std::vector<Neighbour> programs_beside() const;
  /// Built to run without the interpreter's lock, which an extension may switch on all the same.
  bool free_threaded() const { return run().fact("python.version").ends_with('t'); }
  /// Enough of them to judge: five, or of a job that has ended three after its warm-up.
  bool has_steps() const {
    return steps_.count >= 5 || (run_.finished && steps_.seen >= 5 && steps_.count >= 3);
  }
  /// No steps are known, but when the training thread waited for its input; then a second of the
  /// run stands for a step wherever input is spoken of.
  bool knows_waits() const { return knows_waits_; }
  Crowd crowd() const;
  model::ThreadId trainer() const { return trainer_; }
  model::ProcessId trainer_process() const { return trainer_process_; }
  Role role(model::ThreadId thread) const;

  /// Seconds per step in cells that pass, of one role; scaled to the time the steps really took.
  double per_step(Role role, const Profile::Filter& filter) const;
  /// The same of the training thread within a part of the step.
  double trainer_in(model::Part part, const Profile::Filter& filter) const;
  /// Share of the training thread's wait for input in generators of the user's that its loop runs
  /// over.
  double in_generators() const { return in_generators_; }
  /// See LoopOrder.
  double input_before_forward() const { return order_.input_before_forward(run_, stacks_); }
  /// Time per step that the training thread (or the slowest pool thread, added) waited for a core.
  double trainer_delay() const { return trainer_delay_; }
  /// Of that, within input waits.
  double trainer_delay_in_wait() const { return trainer_delay_in_wait_; }
  double pool_delay() const { return pool_delay_; }
  /// Share of a producer's busy time that it waited for a core.
  double producer_delay_share() const;

  /// The user's line that cells passing the filter spend most time in.
  std::optional<model::Where> where(const Profile::Filter& filter) const;
  int64_t readings(const Profile::Filter& filter) const { return profile_.readings(filter); }
  /// Readings of a line in which native code was seen, by NativeCall.
  struct NativeCalls {
    int64_t lookups = 0, others = 0, unclear = 0;
  };
  NativeCalls native_calls(model::FrameId line) const {
    const auto it = native_calls_.find(line);
    return it == native_calls_.end() ? NativeCalls{} : it->second;
  }

  const model::Series* series(model::SignalId signal, model::EntityId entity) const;
  const model::Series* host(model::SignalId signal) const;
  std::optional<double> host_last(model::SignalId signal) const;
  const model::Series* process(model::SignalId signal, model::ProcessId process) const;
  const model::Series* thread(model::SignalId signal, model::ThreadId thread) const;
  /// Increase of a counter within the steady time; nullopt where it was not measured.
  std::optional<double> increase(const model::Series* series) const;
  /// Increase summed over the processes of the job that pass.
  double process_increase(model::SignalId signal,
                          const std::function<bool(model::ProcessId)>& which) const;
  /// Whether the training thread runs Python.
  bool is_python() const { return python_; }
  /// Threads of TensorFlow's and JAX's take work out of a queue, and meet at no barrier: who waits
  /// for them waits for their work, however many they are.
  bool pool_takes_work() const;
  bool is_producer_process(model::ProcessId process) const;
  double seconds() const { return steps_.count > 0 ? steps_.total : wall_; }

 private:
  void find_steps(int64_t from, int64_t to);
  void find_waits();
  /// Steps; without any, seconds.
  double units() const { return steps_.count > 0 ? static_cast<double>(steps_.count) : wall_; }
  void find_roles();
  void find_loader();
  bool fetches_in_loop() const;
  void find_graph_loader();
  bool feeds_pipeline(double seconds) const;
  void find_lock_waits();
  class SilentProducers;
  void find_silent_producers();
  std::unordered_set<model::FrameId> writing_lines() const;
  std::vector<bool> processes_that_only_write() const;
  void sum_readings();
  void count_native_call(model::FrameId line, NativeCall call);
  void find_delays(const std::unordered_map<model::ThreadId, double>& pool_queue);
  model::Part rest_part() const;
  double cores_of(const std::function<bool(model::ProcessId)>& which) const;
  void find_cpu();
  void find_host_cpu();
  void find_job_cpu();
  void find_usable_cores();
  void find_throttling();
  void find_neighbours();

  const model::Run& run_;
  const RunView* before_;
  StackIndex stacks_;
  Profile profile_;
  std::unordered_map<model::FrameId, NativeCalls> native_calls_;
  std::vector<bool> at_mutex_;  // by reading: waits until somebody lets go of a lock
  StepsView steps_;
  LoaderView loader_;
  GraphPipeline pipeline_;
  CpuView cpu_;
  std::vector<Neighbour> neighbours_;
  std::vector<Role> roles_;
  std::vector<bool> producer_process_;
  std::unordered_map<uint64_t, const model::Series*> series_;
  std::unordered_map<int64_t, model::EntityId> process_entities_, thread_entities_;
  model::ThreadId trainer_ = model::kNone;
  model::ProcessId trainer_process_ = model::kNone;
  bool python_ = false;
  bool knows_waits_ = false;
  double wall_ = 0;
  double in_generators_ = 0;
  LoopOrder order_;
  double scale_ = 1;  // real seconds per second of readings
  // Seconds of readings of the training thread, by how many of it and its pool wanted a core; 0:
  // it wanted none.
  std::vector<double> wanted_;
  double trainer_delay_ = 0, trainer_delay_in_wait_ = 0, pool_delay_ = 0;
};

}  // namespace flatout::diagnose
