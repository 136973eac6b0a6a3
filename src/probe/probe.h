// Probes: each reads some of the kernel's own files (or NVML) and delivers readings to a Sink.
//
// Contract: read() never blocks on the job, never throws, never writes to what it observes. What
// cannot be read becomes Missing, never 0. Counters are delivered as running totals. Entities of
// kind kProcess, kThread and kOther are keyed by pid or tid; those of the first two have the empty
// name, since a process may change its name (it stands in Run::processes and Run::threads).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/fs.h"
#include "model/sink.h"

namespace flatout::probe {

class JobTree;

/// What to look at, and from where.
struct Scope {
  fs::Root root{"/"};            // where proc, sys and dev lie
  int32_t self_pid = 0;          // flatout itself
  const JobTree* job = nullptr;  // outlives the probes; its owner calls JobTree::update
  int32_t launcher_pid = 0;      // what it has started besides flatout are ranks of the same job
};

class Probe {
 public:
  virtual ~Probe() = default;
  virtual const char* name() const = 0;
  /// Time from one read() to the next; may change after each read().
  virtual Nanos period() const = 0;
  virtual void read(TimePoint now, model::Sink& sink) = 0;
  /// The last time, of a job that failed: may wait a moment for news of what made it fail.
  virtual void read_after_failure(TimePoint now, model::Sink& sink) { read(now, sink); }
};

/// All probes of the operating system and NVML, each paced: where a reading costs more than its
/// share of a core, its period grows. (Stacks are read by StackProbe.)
std::vector<std::unique_ptr<Probe>> make_probes(const Scope& scope);

}  // namespace flatout::probe
