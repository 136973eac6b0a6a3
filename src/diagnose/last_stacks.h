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

/// A later reading of the thread; one without a stack does not take the place of one with. What it
/// waits for counts, also of a thread that has nothing to do.
void see(const RunView& view, model::StackReading reading, LastSeen& thread);

/// Adds the stacks, innermost frame first: the training thread's, then by how many threads share
/// one.
void add_last_stacks(const RunView& view, const std::map<model::ThreadId, LastSeen>& threads,
                     model::Finding& f);
/// Those of one process at its end.
void add_last_stacks(const RunView& view, const model::Process& process, model::Finding& f);

}  // namespace flatout::diagnose
