// Findings from traces alone: the doctor's ids, with what a profiler's timeline can prove.
#pragma once

#include <span>

#include "model/trace_summary.h"

namespace flatout::diagnose {

/// One summary a rank (or the only one). Ranked by gain; verdict "none" where there is too little
/// to judge.
model::TraceDiagnosis diagnose_traces(std::span<const model::TraceSummary> ranks);

struct RankWaits {
  /// Ranks that take longer than the others from one collective to the next, so that these wait.
  /// Empty where nobody does.
  std::vector<model::Straggler> stragglers;
  std::vector<model::RankWait> waits;
};
RankWaits compare_ranks(std::span<const model::TraceSummary> ranks);

}  // namespace flatout::diagnose
