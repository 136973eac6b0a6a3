// Where threads were last seen, as evidence.
#pragma once

#include <map>

#include "diagnose/view.h"
#include "model/finding.h"

namespace flatout::diagnose {

struct LastSeen {
  Act act = Act::kUnknown;
  model::StackId stack = 0;
};

/// Adds the stacks, innermost frame first: the training thread's, then by how many threads share
/// one.
void add_last_stacks(const RunView& view, const std::map<model::ThreadId, LastSeen>& threads,
                     model::Finding& f);
/// Those of one process at its end.
void add_last_stacks(const RunView& view, const model::Process& process, model::Finding& f);

}  // namespace flatout::diagnose
