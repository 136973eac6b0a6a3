// The panels above the table: cores, memory, disks, GPUs, jobs.
#pragma once

#include "screen/render.h"

namespace flatout::screen {

/// Draws the panels from row `y` on into at most `room` rows; gives the row after them.
int draw_panels(Session& session, Frame& frame, int y, int room);

/// "12.3M": bytes in four or five characters, three digits of them.
std::string short_bytes(double bytes);
/// "3:07.12" or "12h34m": CPU time from clock ticks.
std::string cpu_time(uint64_t ticks, double tick_ns);

}  // namespace flatout::screen
