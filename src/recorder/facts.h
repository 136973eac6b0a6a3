// What may explain a slow-down without a change of code: host, kernel, driver, limits, mounts,
// clocks; the code itself is in code_facts.h. Keys: docs/run-folder.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/fs.h"
#include "model/run.h"
#include "model/sink.h"
#include "recorder/rank_place.h"

namespace flatout::recorder {

struct JobFacts {
  std::vector<std::string> command;
  std::vector<std::string> environment;
  std::string cwd;
};

/// host.*, kernel.*, cpu.*, driver.*, limit.*, mount.*
void tell_machine(const fs::Root& root, int32_t job_pid, model::Sink& sink);
/// command, cwd, env.*, git.*
void tell_job(const fs::Root& root, const JobFacts& job, model::Sink& sink);
/// clock.*: what was usual, once the run is over.
void tell_clocks(const model::Run& run, model::Sink& sink);
/// rank, rank.*, launch.id
void tell_rank(const RankPlace& place, model::Sink& sink);

}  // namespace flatout::recorder
