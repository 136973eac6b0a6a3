// The figures in a message, and in lines around it: what they say of the cause, and the number in
// "use a smaller batch".
#pragma once

#include "advise/log_reader.h"
#include "model/advice.h"

namespace flatout::advise {

/// `answer` is what the rule of `event` says; where its message has figures, they make it exact.
void add_figures(const LogReading& log, const LogEvent& event, model::Explanation& answer);

}  // namespace flatout::advise
