// What `explain` says of a log and `check` of a machine: plain data for people and scripts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/finding.h"

namespace flatout::model {

/// Somebody who holds some of what ran out.
struct Holder {
  std::string what;  // "pid 4711 python train.py on GPU 0"
  std::optional<uint64_t> bytes;
};

/// A line of the log that the answer rests on.
struct SeenLine {
  uint64_t number = 0;  // from 1
  std::string text;     // at most a few hundred bytes; as hostile as the log
};

/// The answer to "why did this fail?".
struct Explanation {
  std::string kind = "none";  // a kind of docs/explain.md; "unknown": an error that no rule knows
  std::string finding;        // an id of docs/findings, or empty
  double sure = 0;            // 0 to 1
  std::string text;
  bool well = false;             // nothing failed, as the log itself says
  std::vector<std::string> now;  // what bears on it on this machine at this time
  std::vector<Holder> holders;
  std::vector<Suggestion> advice;
  std::vector<SeenLine> seen;     // the cause first
  std::vector<std::string> also;  // kinds that were seen as well, and follow or matter less
  uint64_t lines = 0, bytes = 0;  // of the log
};

/// Something about the machine that will hurt a training job.
struct Problem {
  std::string id;  // docs/check.md
  std::string text;
  std::string hint;
  bool fails = true;  // false: worth knowing, but no reason for a script to stop
};

struct CheckUp {
  bool about_flatout = false;  // what it cannot measure here, not what a job will meet
  std::vector<Problem> problems;
  std::vector<std::pair<std::string, std::string>> machine;  // facts, in order: key, value
  bool ok() const {
    for (const Problem& p : problems) {
      if (p.fails) return false;
    }
    return true;
  }
};

}  // namespace flatout::model
