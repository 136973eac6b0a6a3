// The panel of GPUs: figures, the parts of a divided GPU (MIG), who holds its memory, and curves of
// utilisation and memory over time.
#pragma once

#include "screen/canvas.h"
#include "screen/history.h"
#include "screen/snapshot.h"

namespace flatout::screen {

/// How many lines the panel would like, where all panels together have `room`.
int gpu_panel_lines(const Snapshot& snapshot, int room);

/// Draws as much detail as fits into `lines`.
void draw_gpu_panel(Canvas& canvas, const Snapshot& snapshot, const History& history, int y,
                    int lines);

}  // namespace flatout::screen
