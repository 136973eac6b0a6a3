// Ranks: which processes of a recording train together, each one's part of it as a Run of its own,
// and their clocks.
#pragma once

#include <vector>

#include "model/rank.h"
#include "model/run.h"

namespace flatout::timeline {

struct RankProcess {
  int32_t number = -1;
  model::ProcessId process = model::kNone;
  int32_t restarts = 0;  // earlier processes of the same rank
};

/// The ranks that a recording holds, by number: processes whose agent told a rank. Of a rank that
/// was started again the last process. Empty where there is at most one.
std::vector<RankProcess> find_ranks(const model::Run& run);

/// What belongs to one rank: its process as the main one, its descendants, what was measured of
/// the machine, its own facts; nothing of the other ranks'. Steps are found too.
model::Run run_of_rank(const model::Run& run, const RankProcess& rank);

/// Fills in Rank::number and world of a recording of one rank, as the job or its launcher tells
/// them; -1 and 0 where neither does.
void tell_number(const model::Run& run, model::Rank& rank);

/// Fills in Rank::clock. Ranks of one host share a clock; those of others leave the collective of
/// a step together with the first rank. Without common steps a clock is left as it is.
void align_clocks(std::vector<model::Rank>& ranks);

}  // namespace flatout::timeline
