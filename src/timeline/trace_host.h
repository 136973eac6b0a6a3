// What a host thread did during some stretch of time: its innermost slice at each moment, and the
// user's own line below it.
#pragma once

#include <string>
#include <vector>

#include "model/trace_summary.h"
#include "timeline/trace_index.h"

namespace flatout::timeline {

/// A window of a trace that is looked at closely, since looking at all of a long one would cost
/// more than it tells.
struct Window {
  int64_t begin = 0, end = 0;
};
/// Whole steps from the middle, or the middle of a trace without steps: about 200,000 slices at
/// most.
Window closer_look(const TraceIndex& index);

/// What thread `track` did in the parts of `times` within the window.
model::HostUse host_use(const TraceIndex& index, model::TrackId track, const Window& window,
                        const Intervals& times);

/// Adds what another thread did.
void add_use(model::HostUse& to, const model::HostUse& from);

/// The host thread that trains: it holds the steps, else most of the launches, else the longest
/// operators. kNoEvent: none.
model::TrackId training_thread(const TraceIndex& index);

/// "train.py(47): fit" taken apart; false for what is no line of Python, or a library's.
bool user_line(std::string_view slice, model::Where& where);

}  // namespace flatout::timeline
