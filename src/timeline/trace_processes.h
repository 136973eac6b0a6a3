// Traces of several processes in one file.
#pragma once

#include <cstdint>

#include "model/trace.h"

namespace flatout::timeline {

/// From here on Trace::correlation stands for an id that does not fit into it.
inline constexpr uint32_t kLargeCorrelations = 0xF000'0000;

/// Processes count their correlation ids each for itself, so calls of several may have the same.
/// Gives those of all but the first new ones, and to what they launched: a device's events belong
/// to the process none of whose launches comes after what it would have launched. Devices that
/// several processes share by their number are told apart event by event.
void separate_processes(model::Trace& trace);

}  // namespace flatout::timeline
