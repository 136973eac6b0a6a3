// From what was read of a log, and of the machine, to one answer.
#pragma once

#include "advise/log_reader.h"
#include "advise/machine.h"
#include "model/advice.h"

namespace flatout::advise {

/// The cause is the first error of the last episode that has one; a job that went on for long after
/// an error got over it. An error that no rule knows is "unknown", a log without one "none".
model::Explanation explain(const LogReading& log, const Machine& machine);

/// What one event of the log means by itself.
model::Explanation explain_event(const LogReading& log, const LogEvent& event);

}  // namespace flatout::advise
