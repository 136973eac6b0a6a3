// The ranks of one job from its recordings: one that has several, or one of each rank.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/finding.h"
#include "model/rank.h"
#include "model/run.h"

namespace flatout::cli {

/// The ranks that one recording holds; empty where it holds at most one.
std::vector<model::Rank> ranks_of(const model::Run& run);

/// One recording as a rank, whatever it holds.
model::Rank rank_of(const model::Run& run);

/// The ranks of these run folders, by number, clocks aligned. Folders that cannot be read, and
/// earlier recordings of a rank that was started again, are left out; the first are warned of.
std::vector<model::Rank> read_ranks(const std::vector<std::string>& folders);

/// The run folders of all ranks of the job, this one first, where it is rank 0's and others lie
/// beside it; else none.
std::vector<std::string> folders_of_job(const std::string& folder);

/// What rank 0, whose folder and recording these are, says for all ranks whose folders lie beside
/// its own. nullopt for another rank, and where there are no others.
std::optional<model::Diagnosis> judge_launch(const std::string& folder, const model::Run& run);

/// Puts ranks in order, the last recording of each, and their clocks together.
void settle(std::vector<model::Rank>& ranks);

}  // namespace flatout::cli
