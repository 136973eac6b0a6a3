// What the devices of the training process did, and what they waited for.
#pragma once

#include <span>

#include "model/run.h"
#include "timeline/steps.h"

namespace flatout::timeline {

/// Fills in run.devices from run.device_windows and the agent's slices of long idle times: what of
/// these lies within `pieces` of input wait, the device waited for input, whatever the agent held
/// for its cause. Call when the steps are known.
void find_device_use(model::Run& run, std::span<const PartPiece> pieces);

}  // namespace flatout::timeline
