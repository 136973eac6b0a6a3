// Rank: one process of a job of several that train together, in as few numbers as a thousand of
// them allow. Made by diagnose from the Run of each rank, rendered by report.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/finding.h"
#include "model/step.h"

namespace flatout::model {

/// A step as the other ranks see it: all meet in its collectives, whoever comes last.
struct RankStep {
  int64_t index = 0;
  TimePoint met;  // its last collective was over, by the rank's own clock
  Nanos length{};
  Nanos waiting{};  // in collectives: for the others, and for the data itself

  Nanos own() const { return length - waiting; }
};

/// What a rank has done since its last step.
enum class RankState : uint8_t {
  kUnknown,
  kInCollective,  // waits for the others
  kWorking,       // on a core, in line for one, or reading
  kBlocked,       // waits for something else
  kStopped,       // by a signal or a debugger
};
std::string_view name(RankState state);  // "in_collective"

/// A line of the user's and what the training thread spends there, collectives left out.
struct RankLine {
  Where where;
  double seconds = 0;  // a step
};

/// A kind of collective and the time in it.
struct RankCollective {
  std::string name;    // "all_reduce"
  double seconds = 0;  // a step
};

struct Rank {
  int32_t number = -1;
  int32_t world = 0;  // ranks of the job, 0 where not known
  int32_t pid = 0;
  std::string host, folder;
  std::string program;        // the script or file that ran; "" where not known
  int32_t restarts = 0;       // processes before this one had the same rank
  int64_t begin_unix_ns = 0;  // of its recording
  Nanos recorded{};           // its length

  StepSummary steps;
  std::vector<RankStep> judged;             // at most a few thousand, evenly
  std::vector<RankStep> aside;              // after the warm-up, with a validation or a gap
  std::optional<Where> aside_at;            // the user's line that these spend most in
  double samples = 0;                       // a step; 0 where not known
  std::vector<RankLine> lines;              // the longest first
  std::vector<RankCollective> collectives;  // the longest first
  std::optional<Where> meets_at;            // the user's line that these are in
  std::vector<Finding> findings;            // of this rank alone
  std::array<double, kPartCount> parts{};   // seconds a step

  // How it stands, or stood when the recording ended.
  bool finished = false;
  int wait_status = -1;  // of its process, as waitpid; -1 not known
  TimePoint end;         // of its process, or of the recording
  int64_t last_step = -1;
  TimePoint last_step_end;
  Nanos longest_step{};  // warm-up aside
  RankState state{};
  std::optional<Where> at;  // the user's line that it has stood in since

  // Filled in from all ranks together.
  Nanos clock{};           // what its clock is behind the first rank's
  Nanos own{}, waiting{};  // mean of the common steps
  bool late = false;       // the others wait for it
  std::string cause;       // of that: the id of its own finding, "" where none explains it
};

/// A job's ranks together.
struct RankReport {
  std::vector<Rank> ranks;      // by number
  std::vector<int32_t> absent;  // numbers of which there is no recording
  int64_t common_steps = 0;     // that all ranks have
  Nanos step{};                 // their mean length
  Nanos exposed{};              // that even the last rank spends in collectives, a step
};

}  // namespace flatout::model
