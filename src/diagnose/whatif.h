// What a step would take if something were otherwise: the model behind every gain.
//
// A step is bound by the slowest of three: the training thread's own work, the producers' rate of
// batches, and the CPU time that all of them need on the cores they have. Taking a cause away
// shortens one of them; the next one then bounds.
#pragma once

#include "diagnose/view.h"

namespace flatout::diagnose {

/// What is taken away. Seconds.
struct Relief {
  double fetch = 0;        // per batch, of a producer's time
  double fetch_cpu = 0;    // per batch, CPU time among that
  double trainer = 0;      // per step, of the training thread's own time (outside input waits)
  double trainer_cpu = 0;  // per step, CPU time among that
  double handling = 0;     // per step, of the time to take a ready batch out of the queue
  double uneven = 0;       // per step, of waits that the producers' work does not explain
  int workers = 0;         // as many producers instead; 0: as they are
  double cores = 0;        // that many more cores
  double others = 0;       // cores that other processes leave
};

class WhatIf {
 public:
  explicit WhatIf(const RunView& view);
  /// Seconds per step after the relief.
  double step_with(const Relief& relief) const;
  double saved_by(const Relief& relief) const { return step_ - step_with(relief); }
  /// How many times as long work takes beside that many busy cores of the host.
  double beside(double busy) const;
  /// Seconds per step of all that the job does, once it comes to run on all cores.
  double on_all_cores() const;
  double step() const { return step_; }
  /// Seconds per step if input never had to be waited for.
  double compute() const { return compute_; }
  /// Seconds per step that computing waits for cores on which producers run.
  double competing() const { return competing_; }

 private:
  double bound(double compute, double fetch, int workers, double cpu, double cores) const;
  double relieved(double computing, double now, double then, double saved) const;

  double step_ = 0, compute_ = 0, handling_ = 0, wait_ = 0, fetch_ = 0, per_step_ = 1;
  double cpu_main_ = 0, cpu_fetch_ = 0, cores_ = 0, competing_ = 0;
  double others_ = 0, host_ = 0;  // cores that other processes use; of the host
  double computing_ = 0;          // of a step, the training thread on a core outside input waits
  double take_ = 0;               // what a batch from a worker costs on either side
  double uneven_ = 0;             // of a step, beyond what even batches would take
  double late_ = 0;               // part of these that shrinks with the producers' work
  double exposed_ = 1;            // part of the waits for even batches that is seen
  int workers_ = 0;
  bool serial_ = false, pipeline_ = false;
};

}  // namespace flatout::diagnose
