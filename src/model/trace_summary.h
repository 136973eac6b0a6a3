// What a trace says, as numbers: steps, what each device did and why it was idle, kernels,
// launches. Times in nanoseconds. The definitions are in docs/traces.md.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/finding.h"
#include "model/trace.h"

namespace flatout::model {

enum class KernelType : uint8_t { kCompute, kCommunication, kMemory };

/// Why a device or a stream was idle, in ns. They add up to its idle time.
struct IdleBlame {
  int64_t host_wait = 0;    // the next event was launched only after the gap began: less input_wait
  int64_t input_wait = 0;   // of that, while a data loader was asked for a batch (devices only)
  int64_t kernel_wait = 0;  // short gaps between events that were launched in time
  int64_t other = 0;        // what is left: dependencies, or launches that the trace lacks
};

struct StreamSummary {
  int64_t stream = 0;
  uint64_t events = 0, uncorrelated = 0;
  IdleBlame idle;
  int64_t queue_max = 0;
  std::optional<double> queue_mean;  // weighted by time
};

struct KernelStat {
  KernelType type = KernelType::kCompute;
  std::string name;
  int64_t sum = 0, max = 0, min = 0;
  uint64_t count = 0;
  std::string owner;  // the operator that most of its time belongs to; empty: not known
};

/// An operator or a module, with the work of a device that it launched.
struct OwnerStat {
  std::string name;
  int64_t time = 0;    // of the device
  uint64_t count = 0;  // device events
};
/// Whose work a device did, in the window that is looked at closely.
struct WorkOwners {
  int64_t time = 0;                           // of the device, looked at
  std::vector<OwnerStat> operators, modules;  // most time first
};

/// Launches by the call that made them.
struct LaunchCall {
  std::string name;
  uint64_t count = 0, events = 0;  // calls, and what they started: a graph starts many
  int64_t host = 0, delay = 0;
};

struct LaunchSummary {
  uint64_t count = 0;  // one per correlation id
  int64_t host = 0, device = 0, delay = 0;
  uint64_t shorter_than_launch = 0;
  uint64_t late = 0;              // delay above 100 us
  std::vector<LaunchCall> calls;  // most often first
};

struct CopySummary {
  std::string name;
  uint64_t count = 0, bytes = 0;
  int64_t time = 0;  // of those whose size is known
  int64_t all_time = 0;
  uint64_t all_count = 0;
};

/// A share of a device's time within one window.
struct DeviceTimes {
  int64_t span = 0, busy = 0, compute = 0, communication = 0, memory = 0;
  int64_t overlap = 0;         // of communication with compute
  int64_t exposed_copies = 0;  // copies from and to the host, while nothing else runs
  int64_t idle() const { return span - busy; }
  int64_t exposed_communication() const { return communication - overlap; }
};

/// Something the host did while a device waited for it.
struct HostBlame {
  std::string name;
  int64_t time = 0;
};
/// Part of what a host thread did. Longest first; `lines`: the user's own, as "train.py(47): fit".
struct HostPart {
  int64_t time = 0;
  std::vector<HostBlame> slices, lines;
};
/// What a host thread did during some stretch of time, by its innermost slice.
struct HostUse {
  int64_t time = 0;  // looked at
  int64_t launch = 0, sync = 0, operators = 0, python = 0;
  int64_t nothing = 0;  // between slices: Python, where no stacks were recorded
  std::vector<HostBlame> slices,
      lines;             // longest first; lines: the user's own, as "train.py(47): fit"
  HostPart asleep;       // of `python`: in a sleep
  HostPart saving;       // a checkpoint, whatever the innermost slice is
  HostPart interpreter;  // of `python`: neither of these, nor waiting for another thread
};

struct DeviceSummary {
  int64_t device = 0;
  std::string name;
  int64_t begin = 0;
  DeviceTimes times;
  IdleBlame idle;
  int64_t sync_wait = 0;   // of host_wait: gaps that began while the host waited for this device
  int64_t short_wait = 0;  // of host_wait: gaps shorter than a millisecond, less sync_wait
  int64_t collective_wait =
      0;  // of host_wait: meanwhile a host thread was in a collective (gloo, MPI)
  int64_t first_input_wait = 0;  // before `begin`, from the first step on
  int64_t unknown = 0;           // of idle.other: what came next has no launch in the trace
  int64_t unknown_input = 0;     // of unknown: meanwhile a data loader was asked for a batch
  int64_t unknown_sync =
      0;  // of unknown: gaps that began while the host waited, less unknown_input
  uint64_t gaps = 0;
  std::vector<StreamSummary> streams;
  LaunchSummary launch;
  std::vector<KernelStat> kernels;  // by total time
  std::vector<CopySummary> copies;
  HostUse host;  // what the launching thread did during host_wait
  WorkOwners owners;
};

/// What tells where a trace's steps begin and end.
enum class TraceStepSource : uint8_t {
  kNoSteps,
  kProfiler,  // ranges of the profiler or the framework: ProfilerStep#3
  kRanges,    // of the program: train_step
  kOptimizer  // from one end of the optimizer's step to the next
};

constexpr std::string_view name(TraceStepSource source) {
  constexpr std::string_view kNames[] = {"none", "profiler", "ranges", "optimizer"};
  return kNames[static_cast<size_t>(source)];
}

struct TraceStepSummary {
  std::string name;
  int64_t begin = 0, wall = 0, input_wait = 0;
  std::map<int64_t, DeviceTimes> devices;
};

/// Host time by what it was spent on.
struct HostSummary {
  int64_t span = 0;             // of the steps, or of all slices where there are none
  int64_t operators = 0;        // of that, some thread was in an operator
  int64_t input_wait = 0;       // of that, some thread waited for a batch
  int64_t collective_wait = 0;  // of that, some thread was in a collective, and none in the above
  uint64_t operator_count = 0, python_count = 0;
  HostUse input;                  // what the thread that asked for a batch did meanwhile
  HostUse training;               // what the training thread did otherwise
  bool worker_processes = false;  // the loader has any
  std::string loader;             // the name of its range
  bool fed = false;               // by feed_dict
  uint64_t feeds = 0;             // batches that were fed through Python (TensorFlow)
};

/// What a stretch of the critical path is.
enum class PathPart : uint8_t {
  kInput,  // a data loader was asked for a batch
  kHost,   // other work of the host: operators, Python, calls of the runtime
  kDelay,  // from a launch to its begin, from one kernel to the next, from an end to who waited for
           // it
  kCompute,
  kCommunication,
  kCopies,
  kUnknown,  // the device was idle before work whose launch the trace lacks
};
inline constexpr size_t kPathParts = 7;

/// The chain of work that a step's length follows from: each piece begins when the one before ends.
struct CriticalPath {
  std::string step;  // its name; empty: a window of a trace without steps
  int64_t begin = 0, length = 0;
  int64_t parts[kPathParts] = {};  // by PathPart; they add up to `length`

  struct Piece {
    PathPart part = PathPart::kHost;
    std::string name;
    int64_t time = 0;
  };
  std::vector<Piece> pieces;  // by name, longest first

  /// How long the path would be if something took no time, everything else being as it was.
  struct WhatIf {
    PathPart part = PathPart::kHost;
    std::string name;  // of one kernel; empty: all of the part
    int64_t length = 0;
  };
  std::vector<WhatIf> what_if;  // the largest saving first
};

/// One device as HolisticTraceAnalysis counts it (timeline/trace_hta.h); ns.
struct HtaSummary {
  int64_t device = 0;
  int64_t kernel_time = 0, idle_time = 0, compute_time = 0, non_compute_time = 0;
  int64_t communication_time = 0, overlap = 0;

  /// As pandas describes a column of values.
  struct Description {
    uint64_t count = 0;
    double mean = 0, min = 0, quartile1 = 0, median = 0, quartile3 = 0, max = 0;
    std::optional<double> deviation;  // of one value there is none
  };
  struct Stream {
    int64_t stream = 0;
    int64_t host_wait = 0, kernel_wait = 0, other = 0;  // ns; negative where events overlap
    std::optional<Description> queue;  // its length after each launch and each begin
  };
  std::vector<Stream> streams;

  /// Calls with what they started, ns.
  struct Launches {
    uint64_t count = 0;
    Description host, device, delay;
    uint64_t slow = 0;     // calls above 50 us
    uint64_t shorter = 0;  // on the device than on the host, of the others
    uint64_t late = 0;     // delays above 100 us
  } launches;

  /// Of one name, ns.
  struct Kernel {
    std::string name;
    bool communication = false;
    int64_t sum = 0;
    Description each;
  };
  std::vector<Kernel> kernels;  // computation and communication, longest first
  /// Which types ran at once, and for how long, us: "COMPUTATION overlapping COMMUNICATION".
  std::map<std::string, int64_t> types;
  std::map<std::string, Description> bandwidth;  // "Memcpy DtoH", GB/s
};

struct TraceSummary {
  std::string file, format;
  int rank = -1, world_size = -1;
  uint64_t bytes = 0, events = 0, device_events = 0;
  // Calls that start kernels or graphs (not while a graph is captured), and how many of them left
  // nothing on a device: a recording with many such is incomplete, and its idle time may be work.
  uint64_t launches = 0, unrecorded_launches = 0;
  int64_t begin = 0, end = 0;
  std::map<std::string, uint64_t> slices_by_category;
  TraceStepSource steps_from = TraceStepSource::kNoSteps;
  std::vector<TraceStepSummary> steps;
  std::vector<DeviceSummary> devices;
  HostSummary host;
  TraceDamage damage;
  bool epoch_times = false;

  /// A collective on the device (of the host where no device has any), for comparing ranks: in
  /// order of their start.
  struct Collective {
    int64_t begin, end;
    std::string name;
  };
  std::vector<Collective> collectives;
  std::vector<HtaSummary> hta;       // only where it was asked for
  std::optional<CriticalPath> path;  // of the median step

  /// How long the recording is: of the devices, or of the host where there are none.
  int64_t length() const {
    int64_t out = devices.empty() ? host.span : 0;
    for (const DeviceSummary& d : devices) out = std::max(out, d.times.span);
    return out;
  }
  /// Whether so much of the devices' work is missing that idle time means little. A few launches
  /// near the end of a recording always have their work after it.
  bool incomplete() const {
    return unrecorded_launches > 10 && unrecorded_launches * 20 > launches;
  }
};

/// A rank that others wait for.
struct Straggler {
  int rank = -1;
  int64_t delay = 0;         // median of a step, ns
  std::vector<int> waiting;  // the ranks that wait for it
};

/// What one rank waits in collectives for another that comes last; ns a step.
struct RankWait {
  int rank = -1, for_rank = -1;
  int64_t time = 0;
};

/// Verdict on one trace, or on those of several ranks of one job.
struct TraceDiagnosis : Diagnosis {
  std::vector<Straggler> stragglers;
  std::vector<RankWait> waits;  // those of at least a hundredth of a step, longest first
};

}  // namespace flatout::model
