// Snapshots as readings of signals, as probes deliver them: what `S` saves.
#pragma once

#include "model/sink.h"
#include "screen/history.h"

namespace flatout::screen {

/// Processes of which one snapshot says less than this are left out of it.
inline constexpr float kLeastCores = 0.005F;
inline constexpr uint64_t kLeastBytes = 64 << 20;

/// Oldest first. Counters begin at 0 with the first snapshot. Processes below `job` (0: none) are
/// the job's, others are others.
void deliver(const History& history, int32_t job, model::Sink& sink);

}  // namespace flatout::screen
