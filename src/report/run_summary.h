// What a list of runs says of each: from a Run, or from the JSON files that its end has left.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "model/finding.h"
#include "model/run.h"

namespace flatout::report {

struct RunSummary {
  std::string command, host;
  std::string rank;   // "" outside a job of several
  std::string group;  // what the ranks of one job have in common, "" without a rank
  double begin_unix_s = 0, length_s = 0;
  bool finished = false;  // the job has ended, and how is known
  bool failed = false;
  std::string exit;  // "exit code 3"; "" where it is not known
  int64_t steps = 0;
  double median_ms = 0, p95_ms = 0, samples_per_s = 0;  // 0: not known
  double input_wait = 0;                                // share of the median step
  std::string verdict, headline;
};

RunSummary summarise(const model::Run& run, const model::Diagnosis& diagnosis);

/// From run.json and findings.json; nullopt where they are not what this version writes.
std::optional<RunSummary> read_summary(std::string_view run_json, std::string_view findings_json);

struct ListedRun {
  std::string id;
  bool live = false;
  bool read = true;  // else `summary` is empty: its turn is still to come
  RunSummary summary;
};
/// {"revision", "runs": [{"id", "live", "command", ...}]}: for the page of runs, and for scripts.
std::string runs_json(std::span<const ListedRun> runs, uint64_t revision);

}  // namespace flatout::report
