// From the ranks of one job to its findings: who holds up the others and why, what collectives cost
// all of them, which rank is missing where nothing goes on.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "model/finding.h"
#include "model/rank.h"
#include "model/run.h"

namespace flatout::diagnose {

/// What the others need to know of one rank. `run`: of this rank alone (timeline::run_of_rank, or
/// a recording of its own), with its steps. Its number is the caller's to fill in. Pure, as
/// diagnose().
model::Rank summarize_rank(const model::Run& run);

/// The job's findings; they hold the report of its ranks. `ranks`: by number, clocks aligned.
/// Causes that one rank alone has are said as that rank's; what most have is the job's.
model::Diagnosis diagnose_ranks(std::vector<model::Rank> ranks);

/// Why recordings cannot be those of one job's ranks, in words for people (folders as they are);
/// "" where they may be. Ranks that a launcher has numbered are taken at its word.
std::string not_one_job(std::span<const model::Rank> ranks);

/// "3", "1 and 3", "1, 3, 4 and 12 more".
std::string numbers_text(const std::vector<int32_t>& numbers);

}  // namespace flatout::diagnose
