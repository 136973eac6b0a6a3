// Finding: one cause that costs the job time or memory, with its evidence.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/run.h"

namespace flatout::model {

/// One measured statement. Each number in a finding's text stands in one of these.
struct Evidence {
  std::string text;
  double value = 0;
  std::string unit;
  std::string source;    // "probe.threads", "agent.loader", "stacks"
  int64_t readings = 0;  // readings or steps it rests on
};

/// The user's own line that is to blame.
struct Where {
  std::string file;
  int64_t line = 0;
  std::string function;
};

struct Suggestion {
  std::string id;    // a remedy: "num_workers", "feed", ...
  std::string text;  // what to do, in one sentence
};

struct Finding {
  std::string id;     // see docs/findings/
  std::string title;  // "Decoding images bounds the loader"
  double confidence = 0;
  std::optional<double> cost_ms_per_step;
  bool between_steps = false;  // that time lies between them, as in validations
  std::optional<double> cost_bytes;
  std::optional<double> gain;  // factor in steps per second if this cause alone were gone
  std::optional<Where> where;
  std::vector<Evidence> evidence;
  std::vector<Suggestion> remedies;
  bool ended_the_job = false;       // ranks before everything
  std::optional<double> ends_in_s;  // until it ends the job, if it goes on like this
};

struct RankReport;  // model/rank.h

/// What diagnose returns; findings in their order, empty for a healthy job.
struct Diagnosis {
  std::string verdict = "healthy";  // the first finding's id; "none" before there is enough data
  std::string headline;             // one sentence for people
  bool judged = true;               // false: without findings, and too little was seen to be sure
  std::string remark;               // what may make it slower that is no finding; or ""
  std::vector<Finding> findings;
  std::shared_ptr<const RankReport> ranks;  // of a job of several; else null
};

}  // namespace flatout::model
