// Waiting for an answer that comes over the network.
#pragma once

#include "diagnose/view.h"
#include "model/finding.h"

namespace flatout::diagnose {

/// Says of a wait for a peer, whose cost is known, that acknowledgements which the kernel held back
/// make it up: small pieces that one side sends wait for them (Nagle's algorithm).
void add_delayed_acks(const RunView& view, model::Finding& f);

}  // namespace flatout::diagnose
