// Other threads beside a training thread whose waits say nothing themselves: in a program without
// Python they may make its batches, or compute for it.
#pragma once

#include <vector>

#include "model/run.h"

namespace flatout::timeline {

/// How much of their time threads worked, by what the training thread did meanwhile. By readings.
struct BesideTraining {
  struct Thread {
    model::ThreadId thread = 0;
    double while_waits = 0, while_runs = 0;  // seconds of work
    bool in_team = false;                    // on an OpenMP region of the training thread's
  };
  double waits = 0, runs = 0;              // seconds of the training thread
  double while_waits = 0, while_runs = 0;  // of these, in which any other worked
  // Of its waits whose stacks are known, seconds within OpenMP's regions or library, and elsewhere.
  double waits_for_team = 0, waits_elsewhere = 0;
  double computes = 0;          // part of its time, by its CPU time outside of the kernel
  std::vector<Thread> threads;  // the others of its process

  /// Those that work while the training thread computes, too, as what makes its batches ahead
  /// does; what computes for it is idle then, or in a region with it. None where too little was
  /// seen.
  std::vector<model::ThreadId> working_ahead() const;
  /// Hands its computing to others (fork and join): they work while it waits, and not while it
  /// computes, if it does at all.
  bool computes_in_team() const;
};

/// Nothing where Python runs: its waits say more.
BesideTraining beside_training(const model::Run& run, model::ThreadId training_thread);

}  // namespace flatout::timeline
