// One short run of the user's job, in a process of its own: started with a setting, recorded, ended
// after some steps, its files kept in a scratch folder, nothing of it left.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "model/finding.h"
#include "model/run.h"
#include "remedy/catalogue.h"

namespace flatout::remedy {

/// Finds the steps and the findings of a run.
using Judge = std::function<model::Diagnosis(model::Run&)>;

/// When a run has told enough: both, or its time is up.
struct Length {
  uint64_t steps = 0;
  Nanos time{0};   // since the first step
  Nanos limit{0};  // since the start
  // The same of steps that no agent marks: looked at from this time on, since the start. A look
  // takes as much of the machine as a small verdict does, so there are few.
  Nanos look_from{0};
};

/// Steps of a run that goes on, where only what repeats in it tells them.
struct OutsideSteps {
  uint64_t count = 0;
  Nanos time{0};  // from the first to the last
};
/// Reads the run folder that is being written; nothing where steps are marked, or none are seen.
using Watch = std::function<std::optional<OutsideSteps>(const std::string& run_folder)>;

struct TrialRun {
  std::vector<double> seconds;  // of the steady steps, in order
  double others = 0;            // cores that processes outside the job used
  double warmup_steps = 0;
  double start_seconds = 0;          // from the start to the first step
  bool outside = false;              // the steps are told by what repeats, seen from outside
  std::vector<double> losses;        // of the first steps of the first process that had any
  std::vector<std::string> applied;  // remedies that took effect inside the job
  std::vector<std::string> warmed;   // folders and files that were read ahead
  Situation situation;
  std::string verdict, headline;
  std::vector<model::Finding> findings;
  int exit_code = -1;       // of the job, where it ended by itself
  std::string output_tail;  // of what the job wrote
};

/// Whether the job waited for files that were not in memory.
bool waited_for_disk(const TrialRun& run);

struct TrialPlace {
  std::string folder;   // an empty folder of this run's own
  bool isolate = true;  // an overlay over the user's files; else the agent redirects what it can
  bool show_output = false;  // the job's output goes where it usually goes
  // A file that the job finds on its standard input, from `input_from` on; -1: nothing.
  int input = -1;
  int64_t input_from = 0;
};

/// Runs the command once. `stop` is asked every few milliseconds and ends the run when it says so.
/// `watch` (or none) tells when a run whose steps nobody marks has told enough.
/// Errors: kGone when stopped; others name what failed.
Result<TrialRun> run_trial(const std::vector<std::string>& command, const Setting& setting,
                           const Length& length, const TrialPlace& place, const Judge& judge,
                           const Watch& watch, const std::function<bool()>& stop);

/// Sets the variables of a setting, FLATOUT_REMEDIES among them, for the processes started next.
void apply_environment(const Setting& setting);

/// Ends all children of this process, theirs too, and waits for them. Needs to be their subreaper.
void end_children();

}  // namespace flatout::remedy
