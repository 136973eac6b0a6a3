// The search of `flatout fix`: a diagnosed run, then the remedies that fit, one after another, each
// on top of what was kept so far, and in the end all that was kept against nothing.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "remedy/catalogue.h"
#include "remedy/decision.h"
#include "remedy/trial.h"

namespace flatout::remedy {

/// Runs of the job. The real one starts processes; tests have one that makes up its steps.
class Runner {
 public:
  virtual ~Runner() = default;
  virtual Result<TrialRun> run(const Setting& setting, const Length& length, bool show_output) = 0;
  /// Seconds of the budget that are left; negative when it is used up.
  virtual double seconds_left() = 0;
  virtual bool stopped() = 0;
  /// Tells the user what goes on: "num_workers: A 33.9 ms".
  virtual void tell(const std::string& text) = 0;
};

/// What the losses of the trials say of a remedy's effect.
enum class LossCheck {
  kUnknown,   // no losses were seen
  kBitEqual,  // the same, to the last bit
  kSpread,    // differ no more than runs of one setting may
  kDiffers,   // another loss curve
};
std::string_view name(LossCheck check);
/// a1, a2: losses of two runs of A; b: of one of B.
LossCheck check_losses(const std::vector<double>& a1, const std::vector<double>& a2,
                       const std::vector<double>& b);

/// One remedy and what came of it.
struct Attempt {
  Candidate candidate;
  std::string what;  // with the numbers filled in
  std::string code;
  Setting setting;                  // of this remedy alone
  std::vector<std::string> warmed;  // folders and files that it read ahead
  Decision decision;
  LossCheck losses = LossCheck::kUnknown;
  std::vector<std::vector<double>> a_seconds, b_seconds;  // steps of each run
  std::string note;                                       // why it was not judged, or not kept
  bool kept = false;
};

struct Outcome {
  TrialRun baseline;
  std::vector<Attempt> attempts;
  std::vector<std::string> not_tried;  // ids, for want of time
  double short_by = 0;                 // seconds more that the quickest of these would have needed
  std::vector<std::string> tunings;    // ids; what would be tried with `tune`: the job is healthy
  Setting setting;                     // of all that is kept
  std::vector<model::Finding> left;    // found in the latest run with all that is kept
  std::vector<std::string> kept;       // ids
  std::optional<Decision> together;    // all that is kept against nothing
  bool stopped = false, out_of_time = false;
  std::string stopped_by;  // an error that ended the search

  /// There was something to try, but no time for any of it: no answer to what helps.
  bool nothing_tried() const { return attempts.empty() && !not_tried.empty(); }
};

struct SearchOptions {
  bool tune = false;  // what answers no finding is tried on healthy jobs, too
  bool allow_changing = false;
  std::vector<std::string> skip;       // ids of remedies not to try
  std::vector<const Remedy*> instead;  // tried in place of what fits what is found
  double run_seconds = 3.5;            // steady time that a run should have
  double baseline_seconds = 8.0;       // the same of the first run, which is diagnosed
};

/// Errors: only where the very first run fails; later ones end the search and stand in the outcome.
Result<Outcome> search(Runner& runner, const SearchOptions& options);

}  // namespace flatout::remedy
